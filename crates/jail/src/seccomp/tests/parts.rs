//! The filter in two parts.

use super::interpreter::{
    Action::{self, Allow, Kill},
    Outcome, interpret,
};
use super::{ARCHES, AUDIT_I386, X32};

/// What the kernel does with two filters: the stricter answer counts. Only one of ours may say anything but yes.
fn both(early: &Outcome, late: &Outcome) -> Action {
    match (early.action, late.action) {
        (Allow, other) | (other, Allow) => other,
        two => panic!("both refuse: {two:?}"),
    }
}

#[test]
fn the_parts_are_the_whole() {
    let values = [
        0,
        1,
        2,
        6,
        10,
        16,
        17,
        28,
        0x5412,
        0x4_0600,
        0x1000_0000,
        u64::MAX,
    ];
    for (native, policy) in ARCHES {
        let numbers =
            (0..600).chain([X32 - 1, X32, X32 | 0x29, 0x7fff_ffff, 0x8000_0000, u32::MAX]);
        for nr in numbers {
            for a in values {
                for b in values {
                    let args = [a, b, b, a, b, a];
                    for (whole, late) in [
                        (policy.base, policy.late),
                        (policy.network, policy.late_network),
                    ] {
                        let on = |program, arch| interpret(program, arch, nr, args);
                        let parts = both(&on(policy.early, native), &on(late, native));
                        assert_eq!(parts, on(whole, native).action, "{nr} {args:x?}");
                        assert_eq!(on(policy.early, AUDIT_I386).action, Kill);
                    }
                }
            }
        }
    }
}

/// What is left to the last moment is what setting up needs, and little enough to be worth it.
#[test]
fn the_late_part_is_small() {
    for (arch, policy) in ARCHES {
        let is_late = |nr| {
            let early = interpret(policy.early, arch, nr, [u64::MAX; 6]).action;
            early == Allow && interpret(policy.base, arch, nr, [u64::MAX; 6]).action != Allow
        };
        let late = policy.entries.iter().filter(|entry| is_late(entry.nr));
        let mut late: Vec<_> = late.map(|entry| entry.name).collect();
        late.sort_unstable();
        let known = "clone3 fsconfig fsmount fsopen keyctl mount mount_setattr move_mount open_tree open_tree_attr openat2 \
                     pivot_root sethostname setns socket umount2 unshare";
        assert_eq!(late.join(" "), known);
        assert!(policy.late.len() * 5 < policy.base.len());
        assert!(policy.late_network.len() * 4 < policy.network.len());
    }
}
