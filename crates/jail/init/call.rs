//! One system call, as the kernel takes it. For programs that have no libc.

use core::arch::asm;

/// Issues one system call. Every wrapper below passes pointers only to memory that lives across the call.
#[cfg(target_arch = "x86_64")]
pub fn call(n: usize, a: [usize; 6]) -> Result<usize, i32> {
    let ret: isize;
    // SAFETY: the kernel's x86_64 convention; rcx and r11 are the registers it clobbers.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a[0], in("rsi") a[1],
             in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
             lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    decode(ret)
}

#[cfg(target_arch = "aarch64")]
pub fn call(n: usize, a: [usize; 6]) -> Result<usize, i32> {
    let ret: isize;
    // SAFETY: the kernel's aarch64 convention; all registers but x0 are preserved.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => ret, in("x1") a[1],
             in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    decode(ret)
}

fn decode(ret: isize) -> Result<usize, i32> {
    if (-4095..0).contains(&ret) {
        Err(-ret as i32)
    } else {
        Ok(ret as usize)
    }
}
