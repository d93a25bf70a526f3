//! The interpreter's own allocators, with our hand in them while it starts.

use core::ffi::{c_int, c_void};

use crate::layout::{Layout, Mode};
use crate::sys;
use crate::yard::Yard;

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

unsafe extern "C" {
    fn PyMem_GetAllocator(domain: c_int, allocator: *mut Allocator);
    fn PyMem_SetAllocator(domain: c_int, allocator: *mut Allocator);
}

/// For what objects have besides themselves, and for objects. Not the one that needs no lock: the interpreter puts another allocator in its
/// place now and then, which knows nothing of ours.
const DOMAINS: [c_int; 2] = [1, 2];

static mut ORIGINALS: [Option<Allocator>; 2] = [None; 2];
static mut LAYOUT: Layout = Layout::new();
static mut YARD: Option<&'static mut Yard> = None;

pub fn layout() -> &'static mut Layout {
    sys::statics(&raw mut LAYOUT)
}

fn original<const DOMAIN: usize>() -> Allocator {
    match sys::statics(&raw mut ORIGINALS)[DOMAIN] {
        Some(allocator) => allocator,
        None => sys::exit(70),
    }
}

/// Called before the interpreter has begun.
pub fn begin(bytes: &[u8]) {
    if layout().begin(bytes) {
        remember_originals();
        set::<0>(starting::<0>());
        set::<1>(starting::<1>());
    }
}

/// Called when it has all that copies begin with. What comes is for them, who have a yard each; and the nook is still there. True if this is a scout.
pub fn settle() -> bool {
    let was = layout().mode();
    layout().end();
    if was == Mode::Plain {
        remember_originals();
    }
    *sys::statics(&raw mut YARD) = Yard::reserve();
    set::<0>(settled::<0>());
    set::<1>(settled::<1>());
    was == Mode::Scouting
}

/// In a copy: what it makes from now on lies together.
pub fn begin_copy() {
    if let Some(yard) = yard() {
        yard.open();
    }
}

fn yard() -> Option<&'static mut Yard> {
    sys::statics(&raw mut YARD).as_deref_mut()
}

fn remember_originals() {
    for (original, domain) in sys::statics(&raw mut ORIGINALS).iter_mut().zip(DOMAINS) {
        *original = Some(get(domain));
    }
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

fn settled<const DOMAIN: usize>() -> Allocator {
    Allocator {
        context: core::ptr::null_mut(),
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
    let (key, _) = layout().ask(size);
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
    if let Some(place) = yard().and_then(|yard| yard.take(size)) {
        return place as *mut c_void;
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
    if let Some(place) = yard().and_then(|yard| yard.take(whole)) {
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
    if layout().has(place) {
        return leave(old, size, settled_malloc::<DOMAIN>(context, size));
    }
    if let Some(yard) = yard()
        && yard.has(place)
    {
        let had = yard.size_at(place);
        if size <= had && size > had / 2 {
            return old;
        }
        let new = settled_malloc::<DOMAIN>(context, size);
        if !new.is_null() {
            // SAFETY: so much is there at either place.
            unsafe { core::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), size.min(had)) };
            yard.give_back(place);
        }
        return new;
    }
    if old.is_null() {
        return settled_malloc::<DOMAIN>(context, size);
    }
    let original = original::<DOMAIN>();
    (original.realloc)(original.context, old, size)
}

extern "C" fn settled_free<const DOMAIN: usize>(_: *mut c_void, old: *mut c_void) {
    let place = old as usize;
    if let Some(yard) = yard()
        && yard.has(place)
    {
        yard.give_back(place);
    } else if !layout().has(place) {
        // Nothing in the nook is ever used again.
        let original = original::<DOMAIN>();
        (original.free)(original.context, old);
    }
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
