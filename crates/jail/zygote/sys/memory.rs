//! Memory of the interpreter: pages that are there at once, pieces that go over with a fork, and large pages; and memory of our own.

use super::{EINVAL, exit};
use crate::call::{call, nr};

/// Has the pages of this range there at once, to be read or to be written to. Whether the kernel can do that.
pub fn populate(start: usize, length: usize, advice: usize) -> bool {
    call(nr::MADVISE, [start, length, advice, 0, 0, 0]) != Err(EINVAL)
}

const READ_WRITE: usize = 1 | WRITE;

/// So many bytes of memory, all nought, of which what is used will be there. Where it begins.
pub fn room(bytes: usize) -> Option<usize> {
    const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    const NOWHERE: usize = usize::MAX;
    let wanted = [
        0,
        bytes,
        READ_WRITE,
        PRIVATE_ANONYMOUS_NORESERVE,
        NOWHERE,
        0,
    ];
    call(nr::MMAP, wanted).ok()
}

/// What may be all nought.
pub trait Blank {}

/// So many of them, all nought, for as long as the process lives.
pub fn reserve<T: Blank>(count: usize) -> Option<&'static mut [T]> {
    let start = room(count * size_of::<T>())?;
    // SAFETY: it is there, begins on a page, is nobody else's, and nought is a value that it may have.
    Some(unsafe { core::slice::from_raw_parts_mut(start as *mut T, count) })
}

/// Memory of a process: where it begins, its length, and what may be done with it.
#[derive(Clone, Copy, Default)]
pub struct Piece {
    pub start: usize,
    pub length: usize,
    pub rights: usize,
}

const WRITE: usize = 2;

/// Whether all of it can be read: something may have been given back since it was found, and a file may be shorter than its mapping.
fn is_there(piece: Piece) -> bool {
    const POPULATE_READ: usize = 22;
    let Piece { start, length, .. } = piece;
    call(nr::MADVISE, [start, length, POPULATE_READ, 0, 0, 0]).is_ok()
}

fn protect(start: usize, length: usize, rights: usize) -> bool {
    call(nr::MPROTECT, [start, length, rights, 0, 0, 0]).is_ok()
}

/// Has all pages of a piece of a file go over to a copy with the fork. The kernel leaves them out, for each copy to find again, unless something of
/// the piece is the process's own: the first byte of it is written anew.
pub fn share(piece: Piece) -> bool {
    let Piece {
        start,
        length,
        rights,
    } = piece;
    if !is_there(piece) || !protect(start, length, rights | WRITE) {
        return false;
    }
    let first = start as *mut u8;
    // SAFETY: the caller knows that this is mapped; nobody else runs, and it stays what it was.
    unsafe { first.write_volatile(first.read_volatile()) };
    if !protect(start, length, rights) {
        exit(70);
    }
    true
}

#[cfg(target_arch = "x86_64")]
pub mod large {
    use core::arch::asm;

    use super::{Piece, READ_WRITE, call, exit, is_there, nr, protect};

    const PAGE: usize = 4096;
    /// The size of a large page.
    const BLOCK: usize = 2 << 20;
    /// Large pages that pieces can be moved into.
    pub struct Room {
        start: usize,
        length: usize,
        /// Where the next piece goes, and where the last page ends.
        next: usize,
        end: usize,
    }

    impl Room {
        /// For pieces of so many bytes. None if the kernel has no large pages, or too few.
        pub fn new(bytes: usize) -> Option<Self> {
            const PRIVATE_ANONYMOUS: usize = 0x22;
            const NOWHERE: usize = usize::MAX;
            let large = bytes.next_multiple_of(BLOCK);
            let length = large + BLOCK;
            let wanted = [0, length, READ_WRITE, PRIVATE_ANONYMOUS, NOWHERE, 0];
            let start = call(nr::MMAP, wanted).ok()?;
            let next = start.next_multiple_of(BLOCK);
            let end = next + large;
            let room = Self {
                start,
                length,
                next,
                end,
            };
            (next..end).step_by(BLOCK).all(collapse).then_some(room)
        }

        /// Moves a piece, and has it where it was before. Whether it could be: else it is what it was.
        ///
        /// Nobody writes to it meanwhile: the process has one thread.
        pub fn take(&mut self, piece: Piece) -> bool {
            let Piece {
                start,
                length,
                rights,
            } = piece;
            let place = self.next;
            if self.end - place < length || !is_movable(piece) {
                return false;
            }
            // SAFETY: both are there, and the place is ours alone.
            unsafe {
                core::ptr::copy_nonoverlapping(start as *const u8, place as *mut u8, length);
            }
            self.next += length;
            let has_rights = rights == READ_WRITE || protect(place, length, rights);
            has_rights && move_back(piece, place)
        }
    }

    impl Drop for Room {
        /// What has moved is no longer in it.
        fn drop(&mut self) {
            let _ = call(nr::MUNMAP, [self.start, self.length, 0, 0, 0, 0]);
        }
    }

    /// Linux 6.1, and a kernel that has large pages at all. The first byte is there, so that there is something to collapse.
    fn collapse(block: usize) -> bool {
        const COLLAPSE: usize = 25;
        // SAFETY: it is ours alone.
        unsafe { (block as *mut u8).write_volatile(0) };
        call(nr::MADVISE, [block, BLOCK, COLLAPSE, 0, 0, 0]).is_ok()
    }

    fn move_back(piece: Piece, place: usize) -> bool {
        const MAYMOVE_FIXED: usize = 1 | 2;
        let Piece { start, length, .. } = piece;
        let moved = call(nr::MREMAP, [place, length, length, MAYMOVE_FIXED, start, 0]).is_ok();
        // The kernel takes away what was there before it finds that it has no memory for the new.
        if !moved && !is_there(piece) {
            exit(70);
        }
        moved
    }

    /// Whether it is still there, and has nothing that is written to while it is copied: the stack, and where a thread has its own memory.
    fn is_movable(piece: Piece) -> bool {
        let (thread, stack): (usize, usize);
        // SAFETY: reads a register, and where the thread's own memory is, which every thread has there.
        unsafe {
            asm!("mov {}, fs:0", "mov {}, rsp", out(reg) thread, out(reg) stack, options(nostack, readonly));
        }
        let all = piece.start..piece.start + piece.length;
        let changes = all.contains(&thread) || all.contains(&stack);
        !changes && piece.length.is_multiple_of(PAGE) && is_there(piece)
    }
}

/// Where the kernel writes to a thread's own memory is another matter there.
#[cfg(not(target_arch = "x86_64"))]
pub mod large {
    use super::Piece;

    pub struct Room;

    impl Room {
        pub fn new(_: usize) -> Option<Self> {
            None
        }

        pub fn take(&mut self, _: Piece) -> bool {
            false
        }
    }
}
