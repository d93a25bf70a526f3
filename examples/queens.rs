//! Ways to place n queens so that none attacks another.   belljar run examples/queens.rs -- 10

fn ways(n: u32, row: u32, columns: u32, left: u32, right: u32) -> u64 {
    if row == n {
        return 1;
    }
    let mut free = !(columns | left | right) & ((1 << n) - 1);
    let mut total = 0;
    while free != 0 {
        let queen = free & free.wrapping_neg();
        free ^= queen;
        total += ways(n, row + 1, columns | queen, (left | queen) << 1, (right | queen) >> 1);
    }
    total
}

fn main() {
    let n = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(8).clamp(1, 14);
    println!("{n} queens can be placed in {} ways", ways(n, 0, 0, 0, 0));
}
