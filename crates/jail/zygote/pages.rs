//! What copies get at once instead of page by page, as `belljar_kernel/pages.py` has found out: pages of their own, and code in large ones.

use crate::sys;
use crate::sys::memory::large::Room;
use crate::sys::memory::{Piece, populate, share as share_one};

/// More than an interpreter with large libraries has; further ones are found page by page.
const MOST: usize = 2048;
/// Of large pages, at a time: what is moved is there twice for a moment.
const MOST_BYTES: usize = 64 << 20;

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

/// Remembers ranges for [`take`]: of each four numbers, its beginning, its length, what to tell the kernel of it, and who gets it.
pub fn need(bytes: &[u8]) -> usize {
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

/// Of eight bytes.
fn number(bytes: &[u8]) -> usize {
    let mut own = [0; 8];
    own.copy_from_slice(bytes);
    u64::from_le_bytes(own) as usize
}

/// Puts pieces of memory into large pages, one behind the other. How many: none if the kernel has no such pages, and only as many as have room.
/// They are where they were, and a copy shares them as before.
///
/// Who forks, and who ends, goes through all small pages one by one, and each has a record somewhere else in memory. A large page has one.
pub fn gather(bytes: &[u8]) -> usize {
    let length: usize = pieces(bytes).map(|piece| piece.length).sum();
    let room = Room::new(length.min(MOST_BYTES));
    room.map_or(0, |mut room| {
        pieces(bytes).filter(|&piece| room.take(piece)).count()
    })
}

/// Has pieces of files there in every copy from the beginning. How many of them.
pub fn share(bytes: &[u8]) -> usize {
    pieces(bytes).filter(|&piece| share_one(piece)).count()
}

/// Of each three numbers: where it begins, its length, and what may be done with it.
pub fn pieces(bytes: &[u8]) -> impl Iterator<Item = Piece> {
    bytes.chunks_exact(24).map(|numbers| Piece {
        start: number(&numbers[..8]),
        length: number(&numbers[8..16]),
        rights: number(&numbers[16..]),
    })
}

/// In a copy, before it does anything: pages of its own, instead of those that it shares, and those of files.
pub fn take(early: bool) {
    let ranges = sys::statics(&raw mut RANGES).iter();
    let ranges = ranges.take_while(|range| range.length != 0);
    for range in ranges.filter(|range| early || range.whose == ALL) {
        // Linux 5.14; before that every page comes when it is written to.
        if !populate(range.start, range.length, range.advice) {
            return;
        }
    }
}
