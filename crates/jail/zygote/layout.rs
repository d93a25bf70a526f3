//! Where the interpreter's objects lie: those that every copy writes to, next to each other.
//!
//! Theory of operation. The interpreter counts references in all that it looks at, so the first run of a copy writes to some seven hundred objects
//! of the zygote's, and these lie on three hundred pages, each of which becomes the copy's own for their sake. Objects cannot be moved. But an
//! interpreter that starts again the same way asks for the same memory in nearly the same order: an object is known by its size, and by how many of this
//! size were asked for since the last *mark*. A mark is a larger object, known by its own size and by how many such marks there were, so that one object more or
//! less, as hash seeds have it, does not make strangers of all that follow. So one interpreter, the *scout*, is started only to be looked at: it remembers who its objects are, and a
//! copy of it does a run in which each write is seen. What was written to is the *layout*. All later interpreters are given it, and put these objects
//! into a *nook* of their own, a few dozen pages.
//!
//! Nothing depends on it but speed: an object that was mistaken for another is in the nook, or not in it, and works in either place.

use crate::sys;
use crate::sys::memory;

/// Larger ones have pages to themselves, nearly.
const LARGEST: usize = 4096;
/// Objects in a layout.
pub const MOST: usize = 4096;
const MOST_NOOK: usize = 4 << 20;
/// Objects that a scout remembers: beyond them, the library to be loaded is so large that the rest will do.
const SLOTS: usize = 1 << 21;
/// How far an object may be from where its address says.
const PROBES: usize = 64;
const GRAIN: usize = 16;

/// Who an object is: which mark was before it, its size, and how many of this size have been asked for since that.
type Key = u64;

/// What is larger is a mark: files that are read, tables, code.
const MARK: usize = 512;
/// Marks whose sizes leave the same rest are counted together.
const KINDS_OF_MARKS: usize = 4096;

const fn size_of_key(key: Key) -> usize {
    (key >> 16 & 0x1fff) as usize
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Objects go where they always do, and nobody is remembered.
    Plain,
    /// Where each is, is remembered.
    Scouting,
    /// Those of the layout go into the nook.
    Laid,
}

/// An object that is remembered, or one that was: then it has no key.
#[derive(Clone, Copy)]
pub struct Slot {
    place: usize,
    key: Key,
}

impl memory::Blank for Slot {}

pub struct Layout {
    mode: Mode,
    /// The upper part of keys since the last mark.
    mark: Key,
    /// How many marks there were,
    marks: u32,
    /// and how many of each kind.
    kinds: [u16; KINDS_OF_MARKS],
    /// Of each size, behind how many marks the last one was asked for, and how many there have been since that.
    counts: [(u32, u16); LARGEST + 1],
    keys: [Key; MOST],
    planned: usize,
    nook: core::ops::Range<usize>,
    next: usize,
    slots: Option<&'static mut [Slot]>,
}

impl Layout {
    pub const fn new() -> Self {
        Self {
            mode: Mode::Plain,
            mark: 0,
            marks: 0,
            kinds: [0; KINDS_OF_MARKS],
            counts: [(0, 0); LARGEST + 1],
            keys: [0; MOST],
            planned: 0,
            nook: 0..0,
            next: 0,
            slots: None,
        }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Begins, with the layout as a scout has found it; an empty one makes this a scout. `memory` gives so much for the nook. Whether there is anything
    /// to do.
    pub fn begin(&mut self, bytes: &[u8], memory: impl FnOnce(usize) -> Option<usize>) -> bool {
        if bytes.is_empty() {
            self.slots = memory::reserve(SLOTS);
            if self.slots.is_some() {
                self.mode = Mode::Scouting;
            }
            return self.mode != Mode::Plain;
        }
        let mut room = 0;
        for (own, bytes) in self.keys.iter_mut().zip(bytes.as_chunks().0) {
            let key = Key::from_le_bytes(*bytes);
            let size = size_of_key(key).next_multiple_of(GRAIN);
            if size == 0 || size > LARGEST || room + size > MOST_NOOK {
                break;
            }
            *own = key;
            room += size;
            self.planned += 1;
        }
        if let Some(start) = memory(room) {
            self.nook = start..start + room;
            self.next = start;
            self.mode = Mode::Laid;
        }
        self.mode != Mode::Plain
    }

    /// The interpreter has what it starts with: what it asks for from now on is like what anybody asks for.
    pub fn end(&mut self) {
        self.mode = Mode::Plain;
    }

    /// One of this size is asked for: its key, if it is to be remembered, and its place in the nook, if it has one there.
    pub fn ask(&mut self, size: usize) -> (Key, Option<usize>) {
        let key = self.pass(size);
        let wanted = key != 0
            && self.mode == Mode::Laid
            && self.keys[..self.planned].binary_search(&key).is_ok();
        (key, wanted.then(|| self.place(size)).flatten())
    }

    /// The same for one that stays where it is. Nought: nobody who is to be remembered.
    pub fn pass(&mut self, size: usize) -> Key {
        if self.mode == Mode::Plain || size == 0 {
            return 0;
        }
        let key = self.key(size);
        if size > MARK {
            self.pass_mark(size);
        }
        if size > LARGEST { 0 } else { key }
    }

    fn key(&mut self, size: usize) -> Key {
        let Some((behind, count)) = self.counts.get_mut(size) else {
            return 0;
        };
        if *behind != self.marks {
            (*behind, *count) = (self.marks, 0);
        }
        let key = self.mark | (size as Key) << 16 | Key::from(*count);
        *count = count.saturating_add(1);
        key
    }

    fn pass_mark(&mut self, size: usize) {
        let kind = &mut self.kinds[size % KINDS_OF_MARKS];
        *kind = kind.wrapping_add(1);
        self.mark = (size as Key & 0xff_ffff) << 40 | Key::from(*kind & 0x7ff) << 29;
        self.marks += 1;
    }

    fn place(&mut self, size: usize) -> Option<usize> {
        let place = self.next;
        let next = place + size.next_multiple_of(GRAIN);
        (next <= self.nook.end).then(|| {
            self.next = next;
            place
        })
    }

    pub fn has(&self, place: usize) -> bool {
        self.nook.contains(&place)
    }

    /// How many bytes of the nook there are from here on.
    pub fn rest(&self, place: usize) -> usize {
        self.nook.end - place
    }

    /// There is an object with this key here now; with none, there is no object.
    pub fn remember(&mut self, place: usize, key: Key) {
        let slot = self
            .slots
            .as_deref_mut()
            .and_then(|slots| find(slots, place));
        if let Some(at) = slot
            && let Some(slots) = &mut self.slots
            && (key != 0 || slots[at].place == place)
        {
            slots[at] = Slot { place, key };
        }
    }

    /// The layout for what has been written to, as bytes.
    pub fn of(&mut self, words: &mut [usize]) -> &[u8] {
        words.sort_unstable();
        let mut found = 0;
        let mut last = 0;
        for &word in words.iter() {
            let key = self.object_at(word).unwrap_or_default();
            if key != 0 && key != last && found < MOST {
                self.keys[found] = key;
                found += 1;
                last = key;
            }
        }
        self.keys[..found].sort_unstable();
        self.planned = found;
        sys::as_bytes(&self.keys[..found])
    }

    /// The object that has this byte.
    fn object_at(&mut self, word: usize) -> Option<Key> {
        let slots = self.slots.as_deref_mut()?;
        let nearest = word & !(GRAIN - 1);
        let mut places = (0..=LARGEST / GRAIN).map(|back| nearest.wrapping_sub(back * GRAIN));
        let (place, key) = places.find_map(|place| {
            let slot = slots[find(slots, place)?];
            (slot.place == place && slot.key != 0).then_some((place, slot.key))
        })?;
        (place + size_of_key(key) > word).then_some(key)
    }
}

/// The slot of an object, or a free one for it. Neighbours in memory are neighbours here.
fn find(slots: &[Slot], place: usize) -> Option<usize> {
    let first = place / GRAIN;
    let mut nearby = (first..first + PROBES).map(|at| at % SLOTS);
    nearby.find(|&at| slots[at].place == place || slots[at].place == 0)
}
