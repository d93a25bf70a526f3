//! Our own code, in large pages.

use std::ops::Range;
use std::sync::Once;
use std::{ptr, slice};

/// The size of a large page.
const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;
/// Linux 6.1. Not every C library has a name for it.
const COLLAPSE: libc::c_int = 25;

/// Puts the program's code and constants into large pages, where the kernel has some. What is done thousands of times a second is spread over
/// hundreds of small ones, and the processor forgets where they are whenever something else runs.
///
/// For processes that last, while they have one thread; done once.
pub fn gather_code() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !cfg!(target_arch = "x86_64") {
            return;
        }
        let constants = blocks(loaded(libc::PF_R));
        let code = blocks(loaded(libc::PF_R | libc::PF_X));
        // A large page that begins with constants and goes on with code can be executed as a whole.
        gather(
            constants.start..constants.end.min(code.start),
            libc::PROT_READ,
        );
        gather(code, libc::PROT_READ | libc::PROT_EXEC);
    });
}

/// Where the part of the program is that was loaded with just these rights. Empty if there is none.
fn loaded(rights: u32) -> Range<usize> {
    // SAFETY: the kernel says where the program's own headers are, and how many; they stay mapped.
    let headers = unsafe {
        let first = libc::getauxval(libc::AT_PHDR) as *const libc::Elf64_Phdr;
        if first.is_null() {
            return 0..0;
        }
        slice::from_raw_parts(first, number(libc::getauxval(libc::AT_PHNUM)))
    };
    let of = |kind: u32| move |header: &&libc::Elf64_Phdr| header.p_type == kind;
    // Between where a program was meant to be and where it is.
    let own = headers.iter().find(of(libc::PT_PHDR));
    let moved = own.map_or(0, |own| {
        (headers.as_ptr() as usize).wrapping_sub(number(own.p_vaddr))
    });
    let mut parts = headers.iter().filter(of(libc::PT_LOAD));
    parts
        .find(|part| part.p_flags == rights)
        .map_or(0..0, |part| {
            let start = moved.wrapping_add(number(part.p_vaddr));
            start..start + number(part.p_memsz)
        })
}

/// What the kernel says of a program with 64 bits.
fn number(said: u64) -> usize {
    usize::try_from(said).unwrap_or(usize::MAX)
}

/// The large pages that a part begins in, and all further ones that it fills.
fn blocks(part: Range<usize>) -> Range<usize> {
    let start = part.start / BLOCK * BLOCK;
    start..(part.end / BLOCK * BLOCK).max(start)
}

fn gather(part: Range<usize>, rights: libc::c_int) {
    let (start, length) = (part.start, part.len());
    if length == 0 {
        return;
    }
    let mut there = vec![0; length / PAGE];
    // SAFETY: the kernel says that there is memory all the way. Nobody writes to it, and it has the same bytes at the same place afterwards. Only
    // if the kernel had no memory for its own records nothing would be there: then the process ends, before anybody depends on it.
    unsafe {
        if libc::mincore(start as *mut libc::c_void, length, there.as_mut_ptr()) != 0 {
            return;
        }
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let room = libc::mmap(ptr::null_mut(), length + BLOCK, writable, private, -1, 0);
        if room == libc::MAP_FAILED {
            return;
        }
        let copy = (room as usize).next_multiple_of(BLOCK) as *mut libc::c_void;
        ptr::copy_nonoverlapping(start as *const u8, copy.cast(), length);
        if libc::madvise(copy, length, COLLAPSE) == 0 && libc::mprotect(copy, length, rights) == 0 {
            let there = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            libc::mremap(copy, length, length, there, start as *mut libc::c_void);
        }
        // What has moved is no longer in it.
        libc::munmap(room, length + BLOCK);
    }
}
