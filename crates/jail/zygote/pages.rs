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

/// Remembers ranges for [`take`]: of each two numbers of eight bytes, its beginning and its length.
pub fn own(bytes: &[u8]) -> usize {
    let number = |bytes: &[u8]| {
        let mut own = [0; 8];
        own.copy_from_slice(bytes);
        u64::from_le_bytes(own) as usize
    };
    let ranges = sys::statics(&raw mut RANGES);
    let mut count = 0;
    for (range, pair) in ranges.iter_mut().zip(bytes.chunks_exact(16)) {
        let (start, length) = pair.split_at(8);
        *range = Range {
            start: number(start),
            length: number(length),
        };
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
