//! The interpreter's own allocators, with our hand in them while it starts.

use core::ffi::{c_int, c_void};

use crate::layout::{Layout, Mode};
use crate::sys;
use crate::sys::memory;
use crate::yard::{Refusal, Yard};

/// `PyMemAllocatorEx`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Allocator {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void),
}

impl Allocator {
    fn is(&self, other: &Self) -> bool {
        let addresses = |one: &Self| {
            let give = (one.malloc as usize, one.calloc as usize);
            (one.context, give, one.realloc as usize, one.free as usize)
        };
        addresses(self) == addresses(other)
    }
}

unsafe extern "C" {
    fn PyMem_GetAllocator(domain: c_int, allocator: *mut Allocator);
    fn PyMem_SetAllocator(domain: c_int, allocator: *mut Allocator);
}

/// For what objects have besides themselves, and for objects. Not the one that needs no lock: the interpreter puts another allocator in its
/// place now and then, which knows nothing of ours.
const DOMAINS: [c_int; 2] = [1, 2];

/// What every call looks at.
#[repr(C, align(64))]
struct Hands {
    /// Where our own memory begins: a yard, and the nook behind it.
    start: usize,
    /// How much it is; nothing where there is none.
    length: usize,
    originals: [Option<Allocator>; 2],
}

static mut HANDS: Hands = Hands {
    start: 0,
    length: 0,
    originals: [None; 2],
};
static mut LAYOUT: Layout = Layout::new();

fn hands() -> &'static mut Hands {
    sys::statics(&raw mut HANDS)
}

pub fn layout() -> &'static mut Layout {
    sys::statics(&raw mut LAYOUT)
}

fn original<const DOMAIN: usize>() -> &'static Allocator {
    match &hands().originals[DOMAIN] {
        Some(allocator) => allocator,
        None => sys::exit(70),
    }
}

/// Called when the library is loaded; where there is something to lay out, before the interpreter has begun.
pub fn begin(layout_file: Option<&[u8]>) {
    hands().originals = DOMAINS.map(|domain| Some(get(domain)));
    if layout_file.is_some_and(|bytes| layout().begin(bytes, own_memory)) {
        set::<0>(starting::<0>());
        set::<1>(starting::<1>());
    }
}

/// Our own memory, with so much behind the yard, whose place it gives.
fn own_memory(nook: usize) -> Option<usize> {
    let length = size_of::<Yard>() + nook;
    let start = memory::room(length)?;
    (hands().start, hands().length) = (start, length);
    Some(start + size_of::<Yard>())
}

/// Called when it has all that copies begin with. What comes is for them, who have a yard each; and the nook is still there. True if this is a scout.
///
/// Not where something that was loaded has its own hands in the allocators: it would take ours away with them one day, and leave to the original what
/// the original has not given.
pub fn settle() -> bool {
    let was = layout().mode();
    layout().end();
    let has_room = hands().length > 0 || own_memory(0).is_some();
    if has_room && is_ours::<0>(was) && is_ours::<1>(was) {
        set::<0>(settled::<0>());
        set::<1>(settled::<1>());
    } else if was == Mode::Plain {
        hands().length = 0;
    }
    was == Mode::Scouting
}

/// Whether it is what we have left there.
fn is_ours<const DOMAIN: usize>(mode: Mode) -> bool {
    let ours = match mode {
        Mode::Plain => *original::<DOMAIN>(),
        Mode::Scouting | Mode::Laid => starting::<DOMAIN>(),
    };
    get(DOMAINS[DOMAIN]).is(&ours)
}

/// In a copy: what it makes from now on lies together.
pub fn begin_copy() {
    if is_settled::<0>() {
        yard().open();
    }
}

fn is_settled<const DOMAIN: usize>() -> bool {
    get(DOMAINS[DOMAIN]).is(&settled::<DOMAIN>())
}

/// The yard is full: whoever asks for memory need not pass by here any more, unless somebody else stands in front of us and knows us.
#[cold]
fn retire<const DOMAIN: usize>() {
    if is_settled::<DOMAIN>() {
        let original = original::<DOMAIN>();
        set::<DOMAIN>(Allocator {
            malloc: original.malloc,
            calloc: original.calloc,
            ..settled::<DOMAIN>()
        });
    }
}

fn yard() -> &'static mut Yard {
    // SAFETY: called where our memory is there, which begins with it; all of it may be nought, and one thread at a time is in here.
    unsafe { &mut *(hands().start as *mut Yard) }
}

fn get(domain: c_int) -> Allocator {
    let mut allocator = core::mem::MaybeUninit::uninit();
    // SAFETY: the interpreter writes all of it; called before it has begun, or under its lock.
    unsafe {
        PyMem_GetAllocator(domain, allocator.as_mut_ptr());
        allocator.assume_init()
    }
}

fn set<const DOMAIN: usize>(mut allocator: Allocator) {
    // SAFETY: as above. Each of ours takes what any of them has given.
    unsafe { PyMem_SetAllocator(DOMAINS[DOMAIN], &raw mut allocator) }
}

fn starting<const DOMAIN: usize>() -> Allocator {
    Allocator {
        context: core::ptr::null_mut(),
        malloc: malloc::<DOMAIN>,
        calloc: calloc::<DOMAIN>,
        realloc: realloc::<DOMAIN>,
        free: free::<DOMAIN>,
    }
}

/// With the context of the original, which its functions then get where they stand beside ours. See `retire`.
fn settled<const DOMAIN: usize>() -> Allocator {
    Allocator {
        context: original::<DOMAIN>().context,
        malloc: settled_malloc::<DOMAIN>,
        calloc: settled_calloc::<DOMAIN>,
        realloc: settled_realloc::<DOMAIN>,
        free: settled_free::<DOMAIN>,
    }
}

extern "C" fn malloc<const DOMAIN: usize>(_: *mut c_void, size: usize) -> *mut c_void {
    let (key, place) = layout().ask(size);
    if let Some(place) = place {
        return place as *mut c_void;
    }
    let original = original::<DOMAIN>();
    let new = (original.malloc)(original.context, size);
    layout().remember(new as usize, key);
    new
}

extern "C" fn calloc<const DOMAIN: usize>(
    _: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    // What does not fit is for the original to refuse.
    let (key, place) = layout().ask(count.checked_mul(size).unwrap_or_default());
    if let Some(place) = place {
        return place as *mut c_void; // all nought: nobody had it before
    }
    let original = original::<DOMAIN>();
    let new = (original.calloc)(original.context, count, size);
    layout().remember(new as usize, key);
    new
}

extern "C" fn realloc<const DOMAIN: usize>(
    _: *mut c_void,
    old: *mut c_void,
    size: usize,
) -> *mut c_void {
    if old.is_null() {
        return malloc::<DOMAIN>(old, size);
    }
    if layout().has(old as usize) {
        return leave(old, size, malloc::<DOMAIN>(core::ptr::null_mut(), size));
    }
    let key = layout().pass(size);
    let original = original::<DOMAIN>();
    let new = (original.realloc)(original.context, old, size);
    if !new.is_null() {
        layout().remember(old as usize, 0);
        layout().remember(new as usize, key);
    }
    new
}

extern "C" fn free<const DOMAIN: usize>(_: *mut c_void, old: *mut c_void) {
    if !old.is_null() && !layout().has(old as usize) {
        layout().remember(old as usize, 0);
        let original = original::<DOMAIN>();
        (original.free)(original.context, old);
    }
}

extern "C" fn settled_malloc<const DOMAIN: usize>(_: *mut c_void, size: usize) -> *mut c_void {
    match yard().take(size) {
        Ok(place) => return place as *mut c_void,
        Err(Refusal::Full) => {
            retire::<0>();
            retire::<1>();
        }
        Err(Refusal::NotHere) => {}
    }
    let original = original::<DOMAIN>();
    (original.malloc)(original.context, size)
}

extern "C" fn settled_calloc<const DOMAIN: usize>(
    _: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    let whole = count.checked_mul(size).unwrap_or_default();
    if let Ok(place) = yard().take(whole) {
        // SAFETY: so much is there, and nobody else's.
        unsafe { core::ptr::write_bytes(place as *mut u8, 0, whole) };
        return place as *mut c_void;
    }
    let original = original::<DOMAIN>();
    (original.calloc)(original.context, count, size)
}

extern "C" fn settled_realloc<const DOMAIN: usize>(
    context: *mut c_void,
    old: *mut c_void,
    size: usize,
) -> *mut c_void {
    let place = old as usize;
    if !is_own(place) {
        if old.is_null() {
            return settled_malloc::<DOMAIN>(context, size);
        }
        let original = original::<DOMAIN>();
        return (original.realloc)(original.context, old, size);
    }
    if layout().has(place) {
        return leave(old, size, settled_malloc::<DOMAIN>(context, size));
    }
    let had = yard().size_at(place);
    if size <= had && size > had / 2 {
        return old;
    }
    let new = settled_malloc::<DOMAIN>(context, size);
    if !new.is_null() {
        // SAFETY: so much is there at either place.
        unsafe { core::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), size.min(had)) };
        yard().give_back(place);
    }
    new
}

extern "C" fn settled_free<const DOMAIN: usize>(_: *mut c_void, old: *mut c_void) {
    let place = old as usize;
    if !is_own(place) {
        let original = original::<DOMAIN>();
        (original.free)(original.context, old);
    } else if !layout().has(place) {
        // Nothing in the nook is ever used again.
        yard().give_back(place);
    }
}

/// Whether it is in our own memory.
fn is_own(place: usize) -> bool {
    let hands = hands();
    place.wrapping_sub(hands.start) < hands.length
}

/// What was in the nook is in a new place.
fn leave(old: *mut c_void, size: usize, new: *mut c_void) -> *mut c_void {
    if !new.is_null() {
        // How large it was is not known; what comes behind it does no harm where nobody has written yet.
        let length = size.min(layout().rest(old as usize));
        // SAFETY: so much is readable at the one and writable at the other; they are different memory, or the new one is further on in
        // the nook, where copying forward may only repeat what nobody reads.
        unsafe { core::ptr::copy(old.cast::<u8>(), new.cast::<u8>(), length) };
    }
    new
}
