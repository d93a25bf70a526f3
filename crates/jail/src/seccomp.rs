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
    /// With the verdict [`Verdict::Rules`]: allowed when all conditions of one rule hold.
    pub rules: &'static [&'static [Condition]],
    /// Further ones of a sandbox with egress.
    pub network_rules: &'static [&'static [Condition]],
}

/// Looks at the low 32 bits of an argument.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    pub arg: u32,
    /// Only these bits count.
    pub mask: u32,
    pub values: &'static [u32],
    /// Whether it must be one of the values, or none of them.
    pub holds_if_found: bool,
}

struct Policy {
    base: &'static [Instruction],
    network: &'static [Instruction],
    early: &'static [Instruction],
    late: &'static [Instruction],
    late_network: &'static [Instruction],
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

/// How many filters whoever has it in parts has.
pub const PARTS: u32 = 2;

/// The part that those who make sandboxes can have already, and all that they fork inherits: every call but those that are needed until
/// the last moment. The kernel takes as long to translate it as the rest of a sandbox's locks together.
pub const fn early() -> &'static [Instruction] {
    NATIVE.early
}

/// What is missing then. Each call is decided by one of the two, and the other allows it.
pub const fn late(network: bool) -> &'static [Instruction] {
    if network {
        NATIVE.late_network
    } else {
        NATIVE.late
    }
}

/// The whole as bytes, laid out as the kernel takes them.
pub fn filter_bytes(network: bool) -> Vec<u8> {
    let bytes = |one: &Instruction| {
        let (code, k) = (one.code.to_ne_bytes(), one.k.to_ne_bytes());
        [code[0], code[1], one.jt, one.jf, k[0], k[1], k[2], k[3]]
    };
    filter(network).iter().flat_map(bytes).collect()
}

/// The table behind the program, in the order of call numbers.
pub const fn policy() -> &'static [Entry] {
    NATIVE.entries
}

#[cfg(test)]
mod tests;
