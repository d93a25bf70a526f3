//! What a copy makes for itself, close together.
//!
//! The interpreter's allocator keeps each size of small objects on pages of its own, so a short run, which makes a few of each, comes to fifty pages.
//! A yard is a piece of memory for the first ones that a copy makes, of all sizes, one behind the other; where one has ended, another of the same
//! size may come. When it is full, memory comes from where it always does, and the yard is left alone: what ends there leaves its place empty. It is used by one thread alone, and so needs no lock,
//! whatever locks the interpreter has.

use crate::sys;

const GRAIN: usize = 16;
/// What the interpreter takes for small.
const LARGEST: usize = 512;
const SIZES: usize = LARGEST / GRAIN;
const LENGTH: usize = 64 << 10;
const BLOCKS: usize = LENGTH / GRAIN;
const NOBODY: usize = 0;

/// A block that was given back names the one that was before it.
type Block = [usize; 2];

/// It may be all nought. What comes behind it in memory begins at a grain again.
#[repr(C, align(16))]
pub struct Yard {
    /// Whose it is. Nobody's in the zygote itself.
    owner: usize,
    /// Where nothing has been yet, counted from the first block.
    next: usize,
    /// Of each size, the block that was given back last.
    free: [usize; SIZES],
    /// The size of what begins at each place, in grains less one.
    sizes: [u8; BLOCKS],
    blocks: [Block; BLOCKS],
}

/// Why there is no place.
pub enum Refusal {
    /// It is too large, or another thread asks.
    NotHere,
    /// Nobody has it any more. This is said once.
    Full,
}

impl Yard {
    /// It is this thread's from now on.
    pub fn open(&mut self) {
        self.owner = sys::thread();
    }

    /// A place for an object of this size.
    #[inline]
    pub fn take(&mut self, size: usize) -> Result<usize, Refusal> {
        let grains = size.wrapping_sub(1) / GRAIN;
        if grains >= SIZES || sys::thread() != self.owner {
            return Err(Refusal::NotHere);
        }
        let place = self.free[grains];
        if place != 0 {
            // SAFETY: a place that was given back is one of the blocks.
            self.free[grains] = unsafe { (*(place as *const Block))[0] };
            return Ok(place);
        }
        let first = self.next;
        if first + grains >= BLOCKS {
            self.owner = NOBODY;
            return Err(Refusal::Full);
        }
        self.next = first + grains + 1;
        self.sizes[first] = grains as u8;
        Ok(self.blocks.as_ptr() as usize + first * GRAIN)
    }

    /// What is there has ended. Where another thread says so, or nobody takes it, the place is not used again.
    #[inline]
    pub fn give_back(&mut self, place: usize) {
        if sys::thread() == self.owner {
            let grains = usize::from(self.sizes[self.index(place)]) % SIZES;
            // SAFETY: the caller knows that it is one of the blocks.
            unsafe { (*(place as *mut Block))[0] = self.free[grains] };
            self.free[grains] = place;
        }
    }

    /// How large an object can be in this place.
    pub fn size_at(&self, place: usize) -> usize {
        (usize::from(self.sizes[self.index(place)]) + 1) * GRAIN
    }

    fn index(&self, place: usize) -> usize {
        place.wrapping_sub(self.blocks.as_ptr() as usize) / GRAIN % BLOCKS
    }
}
