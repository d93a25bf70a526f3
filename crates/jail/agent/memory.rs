//! Memory for a program without libc: small blocks by size from lists of free ones, large ones from the kernel.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

use crate::sys;

const SMALLEST: usize = 32;
/// Powers of two from [`SMALLEST`] up.
const CLASSES: usize = 12;
const CHUNK: usize = 256 << 10;

struct Heap(UnsafeCell<State>);

struct State {
    free: [*mut u8; CLASSES],
    chunk: usize,
    left: usize,
}

// SAFETY: the program has one thread, and its signals are blocked.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(State {
    free: [ptr::null_mut(); CLASSES],
    chunk: 0,
    left: 0,
}));

fn class(layout: &Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    let class = size.next_power_of_two().trailing_zeros() - SMALLEST.trailing_zeros();
    Some(class as usize).filter(|class| *class < CLASSES)
}

// SAFETY: blocks are disjoint, as large as asked for, and aligned: each is a power of two from a page-aligned chunk that is cut
// in order of demand only at multiples of the block's own size.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(&layout) else {
            return sys::map(layout.size()).map_or(ptr::null_mut(), |memory| memory.as_mut_ptr());
        };
        // SAFETY: one thread, and no reference to the state outlives a call.
        let state = unsafe { &mut *self.0.get() };
        let head = state.free[class];
        if !head.is_null() {
            // SAFETY: a free block holds the address of the next one.
            state.free[class] = unsafe { head.cast::<*mut u8>().read() };
            return head;
        }
        let size = SMALLEST << class;
        let skip = state.chunk.wrapping_neg() & (size - 1);
        if state.left < skip + size {
            let Ok(chunk) = sys::map(CHUNK) else {
                return ptr::null_mut();
            };
            state.chunk = chunk.as_mut_ptr() as usize;
            state.left = CHUNK;
            return self.cut(state, size);
        }
        state.chunk += skip;
        state.left -= skip;
        self.cut(state, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(&layout) {
            // SAFETY: the block was mapped with this size by `alloc`.
            None => sys::unmap(unsafe { core::slice::from_raw_parts_mut(block, layout.size()) }),
            Some(class) => {
                // SAFETY: one thread; the block is free and large enough for an address.
                unsafe {
                    let state = &mut *self.0.get();
                    block.cast::<*mut u8>().write(state.free[class]);
                    state.free[class] = block;
                }
            }
        }
    }
}

impl Heap {
    fn cut(&self, state: &mut State, size: usize) -> *mut u8 {
        // A fresh chunk is page-aligned, but a block may be larger than a page.
        let skip = state.chunk.wrapping_neg() & (size - 1);
        if state.left < skip + size {
            return ptr::null_mut();
        }
        let block = state.chunk + skip;
        state.chunk = block + size;
        state.left -= skip + size;
        block as *mut u8
    }
}

/// # Safety
/// As for C's `memmove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    if (to as usize) < from as usize {
        let mut i = 0;
        while i < n {
            // SAFETY: the caller promises `n` valid bytes at both; going up, none is overwritten before it is read.
            unsafe { to.add(i).write_volatile(from.add(i).read()) };
            i += 1;
        }
    } else {
        let mut i = n;
        while i > 0 {
            i -= 1;
            // SAFETY: as above, going down.
            unsafe { to.add(i).write_volatile(from.add(i).read()) };
        }
    }
    to
}

/// # Safety
/// As for C's `memcmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    let mut i = 0;
    while i < n {
        // SAFETY: the caller promises `n` readable bytes at both.
        let (a, b) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
        i += 1;
    }
    0
}

/// # Safety
/// As for C's `bcmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the same promise.
    unsafe { memcmp(a, b, n) }
}
