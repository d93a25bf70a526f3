//! What a copy makes for itself, close together.
//!
//! The interpreter's allocator keeps each size of small objects on pages of its own, so a short run, which makes a few of each, comes to fifty pages.
//! A yard is a piece of memory for the first ones that a copy makes, of all sizes, one behind the other; where one has ended, another of the same
//! size may come. When it is full, memory comes from where it always does. It is used by one thread alone, and so needs no lock,
//! whatever locks the interpreter has.

use crate::sys;
use crate::sys::memory::{self, Blank};

const GRAIN: usize = 16;
/// What the interpreter takes for small.
const LARGEST: usize = 512;
const SIZES: usize = LARGEST / GRAIN;
const LENGTH: usize = 64 << 10;

#[repr(C, align(16))]
pub struct Yard {
    /// Whose it is. Nobody's in the zygote itself.
    owner: usize,
    /// Where nothing has been yet, counted from the first block.
    next: usize,
    /// Of each size, the block that was given back last. It names the one before it.
    free: [usize; SIZES],
    /// The size of what begins at each place, in grains less one.
    sizes: [u8; LENGTH / GRAIN],
    blocks: [[usize; 2]; LENGTH / GRAIN],
}

impl Blank for Yard {}

impl Yard {
    pub fn reserve() -> Option<&'static mut Self> {
        memory::reserve(1)?.first_mut()
    }

    /// It is this thread's from now on.
    pub fn open(&mut self) {
        self.owner = sys::thread();
    }

    /// A place for an object of this size. None if it is full, or not for the caller.
    pub fn take(&mut self, size: usize) -> Option<usize> {
        let grains = size.wrapping_sub(1) / GRAIN;
        if grains >= SIZES || sys::thread() != self.owner {
            return None;
        }
        let place = self.free[grains];
        if place != 0 {
            self.free[grains] = self.blocks[self.index(place)][0];
            return Some(place);
        }
        let first = self.next;
        if first + grains >= self.blocks.len() {
            return None;
        }
        self.next = first + grains + 1;
        self.sizes[first] = grains as u8;
        Some(self.first() + first * GRAIN)
    }

    /// What is there has ended. Where another thread says so, the place is not used again.
    pub fn give_back(&mut self, place: usize) {
        if sys::thread() == self.owner {
            let index = self.index(place);
            let grains = usize::from(self.sizes[index]);
            self.blocks[index][0] = self.free[grains];
            self.free[grains] = place;
        }
    }

    pub fn has(&self, place: usize) -> bool {
        place.wrapping_sub(self.first()) < LENGTH
    }

    /// How large an object can be in this place.
    pub fn size_at(&self, place: usize) -> usize {
        (usize::from(self.sizes[self.index(place)]) + 1) * GRAIN
    }

    fn first(&self) -> usize {
        self.blocks.as_ptr() as usize
    }

    fn index(&self, place: usize) -> usize {
        (place - self.first()) / GRAIN
    }
}
