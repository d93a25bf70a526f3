//! One system call, as the kernel takes it. For programs that have no libc.

use core::arch::asm;

/// Numbers of system calls. Each program needs some of them.
#[cfg(target_arch = "x86_64")]
#[allow(dead_code)]
pub mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const PREAD64: usize = 17;
    pub const MREMAP: usize = 25;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const SENDMSG: usize = 46;
    pub const RECVMSG: usize = 47;
    pub const SOCKETPAIR: usize = 53;
    pub const CLONE: usize = 56;
    pub const EXECVE: usize = 59;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const FCNTL: usize = 72;
    pub const CHDIR: usize = 80;
    pub const SETSID: usize = 112;
    pub const SETRESUID: usize = 117;
    pub const SETRESGID: usize = 119;
    pub const CAPSET: usize = 126;
    pub const FSTATFS: usize = 138;
    pub const PRCTL: usize = 157;
    pub const GETDENTS64: usize = 217;
    pub const EXIT_GROUP: usize = 231;
    pub const WAITID: usize = 247;
    pub const KEYCTL: usize = 250;
    pub const OPENAT: usize = 257;
    pub const MKDIRAT: usize = 258;
    pub const UNLINKAT: usize = 263;
    pub const RENAMEAT: usize = 264;
    pub const FACCESSAT: usize = 269;
    pub const PPOLL: usize = 271;
    pub const SIGNALFD4: usize = 289;
    pub const DUP3: usize = 292;
    pub const PIPE2: usize = 293;
    pub const PRLIMIT64: usize = 302;
    pub const SETNS: usize = 308;
    pub const SECCOMP: usize = 317;
    pub const STATX: usize = 332;
    pub const CLOSE_RANGE: usize = 436;
    pub const LANDLOCK_CREATE_RULESET: usize = 444;
    pub const LANDLOCK_ADD_RULE: usize = 445;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}
/// Numbers of system calls. Each program needs some of them.
#[cfg(target_arch = "aarch64")]
#[allow(dead_code)]
pub mod nr {
    pub const DUP3: usize = 24;
    pub const FCNTL: usize = 25;
    pub const IOCTL: usize = 29;
    pub const MKDIRAT: usize = 34;
    pub const UNLINKAT: usize = 35;
    pub const RENAMEAT: usize = 38;
    pub const FSTATFS: usize = 44;
    pub const FACCESSAT: usize = 48;
    pub const CHDIR: usize = 49;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const PIPE2: usize = 59;
    pub const GETDENTS64: usize = 61;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PREAD64: usize = 67;
    pub const PPOLL: usize = 73;
    pub const SIGNALFD4: usize = 74;
    pub const CAPSET: usize = 91;
    pub const EXIT_GROUP: usize = 94;
    pub const WAITID: usize = 95;
    pub const KILL: usize = 129;
    pub const SIGPROCMASK: usize = 135;
    pub const SETRESUID: usize = 147;
    pub const SETRESGID: usize = 149;
    pub const SETSID: usize = 157;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const SOCKETPAIR: usize = 199;
    pub const SENDMSG: usize = 211;
    pub const RECVMSG: usize = 212;
    pub const MUNMAP: usize = 215;
    pub const MREMAP: usize = 216;
    pub const KEYCTL: usize = 219;
    pub const CLONE: usize = 220;
    pub const EXECVE: usize = 221;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MADVISE: usize = 233;
    pub const WAIT4: usize = 260;
    pub const PRLIMIT64: usize = 261;
    pub const SETNS: usize = 268;
    pub const SECCOMP: usize = 277;
    pub const STATX: usize = 291;
    pub const CLOSE_RANGE: usize = 436;
    pub const LANDLOCK_CREATE_RULESET: usize = 444;
    pub const LANDLOCK_ADD_RULE: usize = 445;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}

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
