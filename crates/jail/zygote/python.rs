//! The few words of CPython's stable interface that are needed, and the module `_belljar` with its functions.

mod allocator;

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use crate::sys::{self, Fd, writes};
use crate::{environment, layout, pages};

/// Everything that runs under the interpreter's lock; nothing here is called by two threads.
#[repr(C)]
struct ModuleDef {
    refcount: isize,
    kind: *mut c_void,
    init: *mut c_void,
    index: isize,
    copy: *mut c_void,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *mut Method,
    slots: *mut c_void,
    traverse: *mut c_void,
    clear: *mut c_void,
    free: *mut c_void,
}

#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void>,
    flags: c_int,
    doc: *const c_char,
}

unsafe extern "C" {
    fn PyModule_Create2(definition: *mut ModuleDef, version: c_int) -> *mut c_void;
    fn PyLong_AsLong(object: *mut c_void) -> c_long;
    fn PyLong_FromLong(value: c_long) -> *mut c_void;
    fn PyBytes_FromStringAndSize(bytes: *const u8, length: isize) -> *mut c_void;
    fn PyBytes_AsStringAndSize(
        object: *mut c_void,
        bytes: *mut *mut u8,
        length: *mut isize,
    ) -> c_int;
    fn PyOS_BeforeFork();
    fn PyOS_AfterFork_Child();
}

/// The version of the stable interface.
const ABI: c_int = 3;
const NO_ARGUMENT: c_int = 4;
const ONE_ARGUMENT: c_int = 8;
/// What the keeper leaves where an interpreter is to be laid out: what a scout has found, or nothing for a scout.
const LAYOUT: &CStr = c"/tmp/belljar-layout";

static mut METHODS: [Method; 10] = [
    Method {
        name: c"serve".as_ptr(),
        function: Some(serve),
        flags: ONE_ARGUMENT,
        doc: c"Serve the keeper on a socket. Returns in forked copies only: whether nobody waits for this one yet.".as_ptr(),
    },
    Method {
        name: c"need".as_ptr(),
        function: Some(need),
        flags: ONE_ARGUMENT,
        doc: c"Have these ranges of memory there for each copy: where one begins, its length, what to tell the kernel, and whether for all.".as_ptr(),
    },
    Method {
        name: c"share".as_ptr(),
        function: Some(share),
        flags: ONE_ARGUMENT,
        doc: c"Have these pieces of files there in each copy: where one begins, its length, and its rights. Gives how many, from the first on.".as_ptr(),
    },
    Method {
        name: c"gather".as_ptr(),
        function: Some(gather),
        flags: ONE_ARGUMENT,
        doc: c"Put these pieces of memory into large pages: where one begins, its length, and its rights. Gives 0 if the kernel has none.".as_ptr(),
    },
    Method {
        name: c"settle".as_ptr(),
        function: Some(settle),
        flags: NO_ARGUMENT,
        doc: c"All that copies begin with is loaded. True if this interpreter is there to find out what they write to.".as_ptr(),
    },
    Method {
        name: c"end_with_parent".as_ptr(),
        function: Some(end_with_parent),
        flags: NO_ARGUMENT,
        doc: c"In a copy that is thrown away: it ends when this interpreter does, if that has not ended before. False if that cannot be.".as_ptr(),
    },
    Method {
        name: c"begin_copy".as_ptr(),
        function: Some(begin_this_copy),
        flags: NO_ARGUMENT,
        doc: c"In a copy that `serve` has not made: what it makes from now on lies together.".as_ptr(),
    },
    Method {
        name: c"watch".as_ptr(),
        function: Some(watch),
        flags: ONE_ARGUMENT,
        doc: c"See each write to these pieces of memory from now on: where one begins, its length, and its rights. False if that cannot be.".as_ptr(),
    },
    Method {
        name: c"seen".as_ptr(),
        function: Some(seen),
        flags: NO_ARGUMENT,
        doc: c"See no more, and tell what was written to, as it is given to other interpreters.".as_ptr(),
    },
    Method {
        name: core::ptr::null(),
        function: None,
        flags: 0,
        doc: core::ptr::null(),
    },
];

static mut MODULE: ModuleDef = ModuleDef {
    refcount: 1,
    kind: core::ptr::null_mut(),
    init: core::ptr::null_mut(),
    index: 0,
    copy: core::ptr::null_mut(),
    name: c"_belljar".as_ptr(),
    doc: core::ptr::null(),
    size: -1,
    methods: (&raw mut METHODS).cast(),
    slots: core::ptr::null_mut(),
    traverse: core::ptr::null_mut(),
    clear: core::ptr::null_mut(),
    free: core::ptr::null_mut(),
};

#[unsafe(no_mangle)]
pub extern "C" fn PyInit__belljar() -> *mut c_void {
    // SAFETY: called once by the interpreter, under its lock; the definition is static.
    unsafe { PyModule_Create2(&raw mut MODULE, ABI) }
}

/// Called when the library is loaded: ahead of the interpreter, where it is to be laid out.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    const LENGTH: usize = layout::MOST * size_of::<u64>();
    static mut BYTES: [u8; LENGTH] = [0; LENGTH];
    let room: &mut [u8; LENGTH] = sys::statics(&raw mut BYTES);
    allocator::begin(sys::take_file(LAYOUT, room));
    environment::forget();
}

extern "C" fn settle(_module: *mut c_void, _: *mut c_void) -> *mut c_void {
    // SAFETY: called under the interpreter's lock.
    unsafe { PyLong_FromLong(c_long::from(allocator::settle())) }
}

extern "C" fn end_with_parent(_module: *mut c_void, _: *mut c_void) -> *mut c_void {
    // SAFETY: called under the interpreter's lock.
    unsafe { PyLong_FromLong(c_long::from(sys::end_with_parent())) }
}

extern "C" fn begin_this_copy(_module: *mut c_void, _: *mut c_void) -> *mut c_void {
    begin_copy();
    // SAFETY: called under the interpreter's lock.
    unsafe { PyLong_FromLong(0) }
}

extern "C" fn watch(_module: *mut c_void, argument: *mut c_void) -> *mut c_void {
    told(argument, |bytes| {
        usize::from(writes::begin(pages::pieces(bytes)))
    })
}

extern "C" fn seen(_module: *mut c_void, _: *mut c_void) -> *mut c_void {
    let bytes = allocator::layout().of(writes::end());
    // SAFETY: called under the interpreter's lock; so many bytes are there.
    unsafe { PyBytes_FromStringAndSize(bytes.as_ptr(), bytes.len() as isize) }
}

extern "C" fn serve(_module: *mut c_void, argument: *mut c_void) -> *mut c_void {
    // SAFETY: the interpreter passes a live object; what is not a number gives -1, which no socket has.
    let control = unsafe { PyLong_AsLong(argument) } as Fd;
    let early = crate::serve(control);
    // SAFETY: called under the interpreter's lock.
    unsafe { PyLong_FromLong(c_long::from(early)) }
}

/// Gives the number of ranges.
extern "C" fn need(_module: *mut c_void, argument: *mut c_void) -> *mut c_void {
    told(argument, crate::pages::need)
}

extern "C" fn share(_module: *mut c_void, argument: *mut c_void) -> *mut c_void {
    told(argument, crate::pages::share)
}

extern "C" fn gather(_module: *mut c_void, argument: *mut c_void) -> *mut c_void {
    told(argument, crate::pages::gather)
}

/// Passes bytes on, and gives the number that comes back. Null, with an exception set, if the argument is no bytes.
fn told(argument: *mut c_void, function: fn(&[u8]) -> usize) -> *mut c_void {
    let mut bytes = core::ptr::null_mut();
    let mut length = 0;
    // SAFETY: the interpreter passes a live object, and keeps it until we return; it says where the bytes are and how many.
    unsafe {
        if PyBytes_AsStringAndSize(argument, &raw mut bytes, &raw mut length) != 0 {
            return core::ptr::null_mut();
        }
        let bytes = core::slice::from_raw_parts(bytes, length.unsigned_abs());
        PyLong_FromLong(function(bytes) as c_long)
    }
}

pub fn begin_copy() {
    allocator::begin_copy();
}

pub fn before_fork() {
    // SAFETY: called under the interpreter's lock, from its only thread; the same goes for the one below.
    unsafe { PyOS_BeforeFork() }
}

pub fn after_fork_in_child() {
    // SAFETY: as above, after `before_fork`, in the copy.
    unsafe { PyOS_AfterFork_Child() }
}
