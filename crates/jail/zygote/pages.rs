//! What copies get at once instead of page by page, as `belljar_kernel/pages.py` has found out.

use crate::sys;

/// More than an interpreter with large libraries has; further ones are found page by page.
const MOST: usize = 2048;

#[derive(Clone, Copy)]
struct Range {
    start: usize,
    length: usize,
    advice: usize,
    whose: usize,
}

/// Of what every copy gets. Other ranges are for those that nobody waits for.
const ALL: usize = 1;

static mut RANGES: [Range; MOST] = [Range {
    start: 0,
    length: 0,
    advice: 0,
    whose: 0,
}; MOST];

/// Remembers ranges for [`take`]: of each four numbers of eight bytes, its beginning, its length, what to tell the kernel of it, and who gets it.
pub fn need(bytes: &[u8]) -> usize {
    let number = |bytes: &[u8]| {
        let mut own = [0; 8];
        own.copy_from_slice(bytes);
        u64::from_le_bytes(own) as usize
    };
    let ranges = sys::statics(&raw mut RANGES);
    let mut count = 0;
    for (range, numbers) in ranges.iter_mut().zip(bytes.chunks_exact(32)) {
        *range = Range {
            start: number(&numbers[..8]),
            length: number(&numbers[8..16]),
            advice: number(&numbers[16..24]),
            whose: number(&numbers[24..]),
        };
        count += 1;
    }
    count
}

/// In a copy, before it does anything: pages of its own, instead of those that it shares, and those of files.
pub fn take(early: bool) {
    let ranges = sys::statics(&raw mut RANGES).iter();
    let ranges = ranges.take_while(|range| range.length != 0);
    for range in ranges.filter(|range| early || range.whose == ALL) {
        // Linux 5.14; before that every page comes when it is written to.
        if !sys::populate(range.start, range.length, range.advice) {
            return;
        }
    }
}
