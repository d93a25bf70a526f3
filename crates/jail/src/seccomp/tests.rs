//! Runs the compiled programs on made-up calls and compares with the table.

mod arguments;
mod interpreter;
mod parts;

use super::{AARCH64, CLASSIFIED, Instruction, Policy, REACHABLE, Verdict, X86_64, filter, policy};

use interpreter::Action::{self, Allow, Enosys, Eperm, Kill};
use interpreter::interpret;

const AUDIT_X86_64: u32 = 0xc000_003e;
const AUDIT_AARCH64: u32 = 0xc000_00b7;
const AUDIT_I386: u32 = 0x4000_0003;
const AUDIT_ARM: u32 = 0x4000_0028;
const X32: u32 = 0x4000_0000;

const ARCHES: [(u32, &Policy); 2] = [(AUDIT_X86_64, &X86_64), (AUDIT_AARCH64, &AARCH64)];

fn number(policy: &Policy, name: &str) -> u32 {
    let entry = policy.entries.iter().find(|entry| entry.name == name);
    entry
        .unwrap_or_else(|| panic!("{name} is not in the table"))
        .nr
}

/// The same call on both architectures (where it exists) must get the same answer.
fn answer(network: bool, name: &str, args: &[u64]) -> Action {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let answers: Vec<Action> = ARCHES
        .iter()
        .filter(|(_, policy)| policy.entries.iter().any(|entry| entry.name == name))
        .map(|(arch, policy)| {
            let program = if network { policy.network } else { policy.base };
            interpret(program, *arch, number(policy, name), all).action
        })
        .collect();
    assert!(!answers.is_empty(), "{name} is not in the table");
    assert!(
        answers.iter().all(|action| *action == answers[0]),
        "{name}: {answers:?}"
    );
    answers[0]
}

/// Says which calls' answers were wrong, all at once.
fn check(network: bool, cases: &[(&str, &[u64], Action)]) {
    let high = 0xffff_ffff_0000_0000;
    for (name, args, expected) in cases {
        assert_eq!(answer(network, name, args), *expected, "{name} {args:x?}");
        // The kernel drops the upper half of these arguments; a filter that minds it can be fooled.
        let raised: Vec<u64> = args.iter().map(|arg| arg | high).collect();
        assert_eq!(
            answer(network, name, &raised),
            *expected,
            "{name} {raised:x?}"
        );
        let one_bit: Vec<u64> = args.iter().map(|arg| arg | 1 << 32).collect();
        assert_eq!(
            answer(network, name, &one_bit),
            *expected,
            "{name} {one_bit:x?}"
        );
    }
}

#[test]
fn every_number_gets_the_verdict_of_the_table() {
    for (arch, policy) in ARCHES {
        for program in [policy.base, policy.network] {
            for nr in 0..600 {
                let outcome = interpret(program, arch, nr, [0; 6]);
                let entry = policy.entries.get(nr as usize);
                let expected = match entry.map_or(Verdict::Absent, |entry| entry.verdict) {
                    Verdict::Allow => Allow,
                    Verdict::Deny => Eperm,
                    Verdict::Absent => Enosys,
                    Verdict::Kill => Kill,
                    Verdict::Rules => {
                        assert!(outcome.saw_arguments, "{nr} should depend on its arguments");
                        continue;
                    }
                };
                assert_eq!(
                    outcome.action,
                    expected,
                    "{arch:#x} {nr} {:?}",
                    entry.map(|entry| entry.name)
                );
                assert!(
                    !outcome.saw_arguments,
                    "{nr} should not depend on its arguments"
                );
                let other_args = interpret(program, arch, nr, [u64::MAX; 6]);
                assert_eq!(other_args.action, expected);
            }
        }
    }
}

#[test]
fn the_table_has_no_hole_and_every_row_a_reason() {
    for (_, policy) in ARCHES {
        for (index, entry) in policy.entries.iter().enumerate() {
            assert_eq!(entry.nr as usize, index);
            assert!(!entry.reason.is_empty(), "{}", entry.name);
            assert!(
                !entry.name.is_empty() || entry.verdict == Verdict::Absent,
                "{index}"
            );
        }
        assert_eq!(
            policy.entries.len(),
            470,
            "file_setattr is the last call of Linux 6.18"
        );
    }
    assert_eq!(policy().len(), CLASSIFIED);
    let reachable = policy()
        .iter()
        .filter(|entry| matches!(entry.verdict, Verdict::Allow | Verdict::Rules));
    assert_eq!(reachable.count(), REACHABLE);
}

/// The numbers libc was built with are a second source for ours.
#[cfg(target_arch = "x86_64")]
#[test]
fn numbers_agree_with_libc() {
    let known = [
        ("read", libc::SYS_read),
        ("clone", libc::SYS_clone),
        ("ptrace", libc::SYS_ptrace),
        ("reboot", libc::SYS_reboot),
        ("keyctl", libc::SYS_keyctl),
        ("unshare", libc::SYS_unshare),
        ("setns", libc::SYS_setns),
        ("bpf", libc::SYS_bpf),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("clone3", libc::SYS_clone3),
        ("landlock_restrict_self", libc::SYS_landlock_restrict_self),
        ("mseal", libc::SYS_mseal),
    ];
    for (name, nr) in known {
        assert_eq!(i64::from(number(&X86_64, name)), nr, "{name}");
    }
}

#[test]
fn other_architectures_are_killed() {
    for (native, policy) in ARCHES {
        for program in [policy.base, policy.network] {
            for arch in [
                AUDIT_X86_64,
                AUDIT_AARCH64,
                AUDIT_I386,
                AUDIT_ARM,
                0,
                u32::MAX,
            ] {
                if arch == native {
                    continue;
                }
                for nr in 0..600 {
                    assert_eq!(
                        interpret(program, arch, nr, [0; 6]).action,
                        Kill,
                        "{arch:#x} {nr}"
                    );
                }
            }
        }
    }
}

#[test]
fn x32_numbers_are_killed_and_negative_ones_absent() {
    for program in [X86_64.base, X86_64.network] {
        for nr in 0..600 {
            assert_eq!(
                interpret(program, AUDIT_X86_64, X32 | nr, [0; 6]).action,
                Kill,
                "{nr}"
            );
            assert_eq!(
                interpret(program, AUDIT_X86_64, !nr, [0; 6]).action,
                Enosys,
                "{nr}"
            );
        }
        assert_eq!(
            interpret(program, AUDIT_X86_64, X32 - 1, [0; 6]).action,
            Enosys
        );
        assert_eq!(
            interpret(program, AUDIT_X86_64, 0x7fff_ffff, [0; 6]).action,
            Kill
        );
        assert_eq!(
            interpret(program, AUDIT_X86_64, 0x8000_0000, [0; 6]).action,
            Enosys
        );
    }
    for nr in [X32, X32 | 1, u32::MAX] {
        assert_eq!(
            interpret(AARCH64.base, AUDIT_AARCH64, nr, [0; 6]).action,
            Enosys
        );
    }
}

#[test]
fn socket_families_without_network() {
    for domain in 0..64 {
        for kind in 0..16 {
            let expected = if domain == 1 { Allow } else { Eperm };
            check(false, &[("socket", &[domain, kind], expected)]);
            for network in [false, true] {
                check(network, &[("socketpair", &[domain, kind], expected)]);
            }
        }
    }
}

#[test]
fn socket_families_with_network() {
    let flags = [0, 0o4000, 0o200_0000, 0o200_4000];
    for domain in 0..64 {
        for kind in 0..16 {
            for protocol in [0, 1, 6, 17, 58, 115, 132, 136, 255, 256, 262] {
                let stream = kind == 1 && [0, 6].contains(&protocol);
                let datagram = kind == 2 && [0, 17].contains(&protocol);
                let inet = [2, 10].contains(&domain) && (stream || datagram);
                let expected = if domain == 1 || inet { Allow } else { Eperm };
                for flag in flags {
                    check(
                        true,
                        &[("socket", &[domain, kind | flag, protocol], expected)],
                    );
                }
            }
        }
    }
}

#[test]
fn the_network_variant_differs_in_socket_alone() {
    let samples = [0, 1, 2, 10, 16, 40, 0x5412, 0x1000_0000, u64::MAX];
    for (arch, policy) in ARCHES {
        for nr in (0..600).filter(|nr| *nr != number(policy, "socket")) {
            for a in samples {
                for b in samples {
                    let args = [a, b, a, b, a, b];
                    let base = interpret(policy.base, arch, nr, args).action;
                    assert_eq!(
                        base,
                        interpret(policy.network, arch, nr, args).action,
                        "{nr} {args:x?}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_way_to_a_new_namespace() {
    let thread = 0x003d_0f00;
    check(
        false,
        &[
            ("clone", &[thread], Allow),
            ("clone", &[17], Allow),
            ("clone", &[0x4111], Allow),
        ],
    );
    for bit in 0..32 {
        let namespace = [17, 25, 26, 27, 28, 29, 30].contains(&bit);
        let expected = if namespace { Eperm } else { Allow };
        check(
            false,
            &[
                ("clone", &[1 << bit], expected),
                ("clone", &[(1 << bit) | thread], expected),
            ],
        );
        let own = [9, 10, 18].contains(&bit);
        check(
            false,
            &[("unshare", &[1 << bit], if own { Allow } else { Eperm })],
        );
    }
    check(
        false,
        &[
            ("clone3", &[0, 88], Enosys),
            ("setns", &[3, 0], Eperm),
            ("unshare", &[0x4_0600], Allow),
        ],
    );
}

/// What the threat model promises, said once more apart from the data.
#[test]
fn promised_refusals() {
    let refused = [
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "keyctl",
        "add_key",
        "request_key",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "kcmp",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "open_tree",
        "open_tree_attr",
        "move_mount",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "mount_setattr",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "open_by_handle_at",
        "name_to_handle_at",
        "fanotify_init",
        "quotactl",
        "quotactl_fd",
        "syslog",
        "acct",
        "swapon",
        "swapoff",
        "reboot",
        "settimeofday",
        "clock_settime",
        "adjtimex",
        "clock_adjtime",
        "iopl",
        "ioperm",
        "move_pages",
        "mbind",
        "migrate_pages",
        "set_mempolicy",
        "modify_ldt",
        "vmsplice",
        "memfd_secret",
        "lookup_dcookie",
        "nfsservctl",
        "clone3",
        "setns",
        "process_madvise",
        "sched_setattr",
        "sethostname",
        "setdomainname",
    ];
    for name in refused {
        for network in [false, true] {
            for args in [[0; 6], [1; 6], [u64::MAX; 6]] {
                assert_ne!(answer(network, name, &args), Allow, "{name}");
            }
        }
    }
}

#[test]
fn an_answer_takes_few_steps() {
    for (arch, policy) in ARCHES {
        assert!(policy.network.len() < 1000, "{}", policy.network.len());
        for nr in 0..600 {
            let outcome = interpret(policy.network, arch, nr, [0; 6]);
            let limit = if outcome.saw_arguments { 64 } else { 16 };
            assert!(outcome.steps <= limit, "{nr} took {}", outcome.steps);
        }
    }
}

#[test]
fn the_variants_are_what_they_say() {
    assert_ne!(filter(false), filter(true));
    assert_eq!(size_of::<Instruction>(), size_of::<libc::sock_filter>());
    assert_eq!(align_of::<Instruction>(), align_of::<libc::sock_filter>());
}
