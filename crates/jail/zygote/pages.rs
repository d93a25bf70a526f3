//! What copies get at once instead of page by page, as `belljar_kernel/pages.py` has found out.

use crate::sys;

/// More than an interpreter with large libraries has; further ones are found page by page.
const MOST: usize = 1024;

#[derive(Clone, Copy)]
struct Range {
    start: usize,
    length: usize,
}

static mut RANGES: [Range; MOST] = [Range {
    start: 0,
    length: 0,
}; MOST];

fn numbers<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [usize; N]> {
    bytes.chunks_exact(N * 8).map(|chunk| {
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(chunk.chunks_exact(8)) {
            let mut own = [0; 8];
            own.copy_from_slice(bytes);
            *number = u64::from_le_bytes(own) as usize;
        }
        numbers
    })
}

/// Writes to a page of each mapping what it holds: from then on the kernel copies the whole mapping when the process forks.
pub fn inherit(bytes: &[u8]) -> usize {
    let mappings = numbers::<3>(bytes);
    mappings
        .map(|[page, length, rights]| sys::rewrite(page, length, rights))
        .count()
}

/// Remembers ranges for [`take`].
pub fn own(bytes: &[u8]) -> usize {
    let ranges = sys::statics(&raw mut RANGES);
    let mut count = 0;
    for (range, [start, length]) in ranges.iter_mut().zip(numbers::<2>(bytes)) {
        *range = Range { start, length };
        count += 1;
    }
    count
}

/// In a copy, before it does anything: pages of its own, instead of those that it shares.
pub fn take() {
    let ranges = sys::statics(&raw mut RANGES).iter();
    for range in ranges.take_while(|range| range.length != 0) {
        // Linux 5.14; before that every page comes when it is written to.
        if !sys::populate(range.start, range.length) {
            return;
        }
    }
}
