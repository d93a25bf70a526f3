//! Takes from a process, for good, the right to start others, and to become another program where it has no need to. Threads stay.
//! For `filesystem: "none"`.

use crate::call::call;

#[cfg(target_arch = "x86_64")]
mod nr {
    pub const SECCOMP: usize = 317;
    pub const CLONE: u32 = 56;
    /// `fork` and `vfork`.
    pub const OTHERS: [u32; 2] = [57, 58];
    /// `execve` and `execveat`.
    pub const PROGRAMS: [u32; 2] = [59, 322];
    pub const ARCH: u32 = 0xc000_003e;
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub const SECCOMP: usize = 277;
    pub const CLONE: u32 = 220;
    /// There is nothing but `clone`.
    pub const OTHERS: [u32; 2] = [220, 220];
    /// `execve` and `execveat`.
    pub const PROGRAMS: [u32; 2] = [221, 281];
    pub const ARCH: u32 = 0xc000_00b7;
}

/// `struct sock_filter`.
#[repr(C)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    filter: *const Instruction,
}

const fn load(k: u32) -> Instruction {
    Instruction {
        code: 0x20,
        yes: 0,
        no: 0,
        k,
    }
}

const fn equals(k: u32, yes: u8, no: u8) -> Instruction {
    Instruction {
        code: 0x15,
        yes,
        no,
        k,
    }
}

const fn has(k: u32, yes: u8, no: u8) -> Instruction {
    Instruction {
        code: 0x45,
        yes,
        no,
        k,
    }
}

const fn verdict(k: u32) -> Instruction {
    Instruction {
        code: 0x06,
        yes: 0,
        no: 0,
        k,
    }
}

const CLONE3: u32 = 435;
const CLONE_THREAD: u32 = 0x1_0000;
const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;

/// Beside the sandbox's own filter: of two verdicts the stricter holds. Offsets are those of `struct seccomp_data`.
const fn filter(others: [u32; 2]) -> [Instruction; LENGTH] {
    [
        load(4),
        equals(nr::ARCH, 1, 0),
        verdict(KILL),
        load(0),
        equals(nr::CLONE, 6, 0),
        equals(nr::OTHERS[0], 8, 0),
        equals(nr::OTHERS[1], 7, 0),
        equals(CLONE3, 5, 0),
        equals(others[0], 5, 0),
        equals(others[1], 4, 0),
        verdict(ALLOW),
        load(16),
        has(CLONE_THREAD, 2, 1),
        verdict(ENOSYS),
        verdict(EPERM),
        verdict(ALLOW),
    ]
}

const LENGTH: usize = 16;
/// Twice the same says no more than once.
static NO_PROCESSES: [Instruction; LENGTH] = filter(nr::OTHERS);
static NO_PROGRAMS: [Instruction; LENGTH] = filter(nr::PROGRAMS);

/// `programs`: who calls has yet to become one.
pub fn forbid_processes(programs: bool) -> Result<usize, i32> {
    const SET_MODE_FILTER: usize = 1;
    let filter = if programs {
        &NO_PROCESSES
    } else {
        &NO_PROGRAMS
    };
    let program = Program {
        length: LENGTH as u16,
        filter: filter.as_ptr(),
    };
    let at = &raw const program as usize;
    call(nr::SECCOMP, [SET_MODE_FILTER, 0, at, 0, 0, 0])
}
