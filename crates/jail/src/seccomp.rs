//! The system call filter: data from `policy/*.toml`, compiled to BPF by the build script.
//!
//! Everything not named in the table gets ENOSYS, as if the kernel were older. A call of another architecture (`int 0x80`,
//! x32, 32-bit ARM) kills the process: no native program makes one. Arguments are compared by their low 32 bits, which
//! is all the kernel looks at; anything behind a pointer is out of a filter's sight and so is refused as a whole.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "there is no system call policy for this architecture; add its numbers to crates/jail/policy"
);

/// One BPF instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// What a call gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// EPERM.
    Deny,
    /// ENOSYS, so that callers fall back to something older.
    Absent,
    /// The whole process dies of SIGSYS.
    Kill,
    /// Allowed with some arguments, else EPERM.
    Rules,
}

/// One call of the native architecture; without a name, a number that no call has.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub nr: u32,
    pub verdict: Verdict,
    pub reason: &'static str,
}

struct Policy {
    base: &'static [Instruction],
    network: &'static [Instruction],
    reachable: usize,
    entries: &'static [Entry],
}

include!(concat!(env!("OUT_DIR"), "/seccomp_policy.rs"));

#[cfg(target_arch = "x86_64")]
const NATIVE: Policy = X86_64;
#[cfg(target_arch = "aarch64")]
const NATIVE: Policy = AARCH64;

/// How many calls are allowed, some of them only with certain arguments.
pub const REACHABLE: usize = NATIVE.reachable;

/// How many call numbers the policy has decided on, from zero up without a hole.
pub const CLASSIFIED: usize = NATIVE.entries.len();

/// The program to install; `network` adds TCP and UDP sockets and nothing else.
pub const fn filter(network: bool) -> &'static [Instruction] {
    if network { NATIVE.network } else { NATIVE.base }
}

/// The table behind the program, in the order of call numbers.
pub const fn policy() -> &'static [Entry] {
    NATIVE.entries
}

#[cfg(test)]
#[path = "seccomp/tests.rs"]
mod tests;
