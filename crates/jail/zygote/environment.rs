//! Variables of the process that are not for its copies.

unsafe extern "C" {
    static mut environ: *mut *mut u8;
}

/// Told to the loader, and to nobody else.
const OURS: [&[u8]; 2] = [b"LD_BIND_NOW=", b"LD_PRELOAD=/tmp/belljar-zygote.so\0"];

/// Takes them away, and makes them unreadable where the kernel shows with which variables a process was started: whoever takes an environment from
/// there would pass them on.
pub fn forget() {
    // SAFETY: called while there is one thread; the list and its strings are as the C library has them, which reads them only when asked.
    unsafe {
        let mut from = environ;
        if from.is_null() {
            return;
        }
        let mut to = from;
        while !(*from).is_null() {
            if OURS.iter().any(|ours| begins_with(*from, ours)) {
                let mut byte = *from;
                while *byte != 0 {
                    byte.write_volatile(0);
                    byte = byte.add(1);
                }
            } else {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null_mut();
    }
}

/// # Safety
/// The text ends with a nought.
unsafe fn begins_with(text: *const u8, start: &[u8]) -> bool {
    let mut at = text;
    start.iter().all(|&expected| {
        // SAFETY: nothing is read behind the nought, which differs from what is expected unless it is the end of that, too.
        let same = unsafe { *at } == expected;
        at = at.wrapping_add(1);
        same
    })
}
