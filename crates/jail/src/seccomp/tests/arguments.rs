//! Calls that are allowed with some arguments.

use super::check;
use super::interpreter::Action::{Allow, Eperm};

#[test]
fn terminals_leases_and_nodes() {
    check(
        false,
        &[
            ("ioctl", &[0, 0x5412], Eperm),
            ("ioctl", &[0, 0x541c], Eperm),
            ("ioctl", &[0, 0x541d], Eperm),
            ("ioctl", &[0, 0x5423], Eperm),
            ("ioctl", &[0, 0x5437], Eperm),
            ("ioctl", &[0, 0x5401], Allow),
            ("ioctl", &[0, 0x5413], Allow),
            ("ioctl", &[0, 0x541b], Allow),
            ("fcntl", &[3, 1024], Eperm),
            ("fcntl", &[3, 1026], Eperm),
            ("fcntl", &[3, 1036], Eperm),
            ("fcntl", &[3, 1038], Eperm),
            ("fcntl", &[3, 1040], Eperm),
            ("fcntl", &[3, 1030], Allow),
            ("fcntl", &[3, 1033], Allow),
            ("fcntl", &[3, 6], Allow),
            ("mknod", &[0, 0o644], Allow),
            ("mknod", &[0, 0o10_0644], Allow),
            ("mknod", &[0, 0o01_0644], Allow),
            ("mknod", &[0, 0o14_0644], Allow),
            ("mknod", &[0, 0o02_0644], Eperm),
            ("mknod", &[0, 0o06_0644], Eperm),
            ("mknodat", &[0, 0, 0o01_0644], Allow),
            ("mknodat", &[0, 0, 0o02_0000], Eperm),
            ("mknodat", &[0, 0, 0o06_0644], Eperm),
        ],
    );
}

#[test]
fn memory_outside_the_cgroup() {
    check(
        false,
        &[
            ("mmap", &[0, 4096, 3, 0x22], Allow),
            ("mmap", &[0, 4096, 3, 0x4_0022], Eperm),
            ("mmap", &[0, 4096, 3, 0x7804_0022], Eperm),
            ("memfd_create", &[0, 3], Allow),
            ("memfd_create", &[0, 5], Eperm),
            ("shmget", &[0, 4096, 0o1600], Allow),
            ("shmget", &[0, 4096, 0o5600], Eperm),
            ("memfd_secret", &[0], Eperm),
            ("madvise", &[0, 4096, 4], Allow),
            ("madvise", &[0, 4096, 13], Allow),
            ("madvise", &[0, 4096, 12], Eperm),
            // The kernel reads the advice as an `int`.
            ("madvise", &[0, 4096, 0x1_0000_000c], Eperm),
        ],
    );
}

#[test]
fn process_attributes() {
    let negative = u64::from((-20i32).cast_unsigned());
    check(
        false,
        &[
            ("personality", &[0xffff_ffff], Allow),
            ("personality", &[0], Allow),
            ("personality", &[8], Allow),
            ("personality", &[0x2_0000], Allow),
            ("personality", &[0x2_0008], Allow),
            ("personality", &[0x4_0000], Eperm),
            ("personality", &[0x40_0000], Eperm),
            ("prctl", &[15], Allow),
            ("prctl", &[1, 9], Allow),
            ("prctl", &[36, 1], Allow),
            ("prctl", &[23, 0], Allow),
            ("prctl", &[0x5356_4d41], Allow),
            ("prctl", &[35], Eperm),
            ("prctl", &[53], Eperm),
            ("prctl", &[62], Eperm),
            ("prctl", &[67], Eperm),
            ("prctl", &[31], Eperm),
            ("prctl", &[59], Eperm),
            ("prctl", &[0x5961_6d61], Eperm),
            ("seccomp", &[1, 0], Allow),
            ("seccomp", &[1, 1], Allow),
            ("seccomp", &[1, 8], Eperm),
            ("seccomp", &[1, 25], Eperm),
            ("prlimit64", &[0, 0, 0x7f00_0000_0000, 0], Allow),
            ("prlimit64", &[77, 0, 0x7f00_0000_0000, 0], Allow),
            ("prlimit64", &[1, 0, 0x7f00_0000_0000, 0], Eperm),
            ("prlimit64", &[1, 0, 0x1_0000_0000, 0], Eperm),
            ("prlimit64", &[0x1_0000_0001, 0, 0x7f00_0000_0000, 0], Eperm),
            ("sched_setscheduler", &[0, 0], Allow),
            ("sched_setscheduler", &[0, 3], Allow),
            ("sched_setscheduler", &[0, 0x4000_0005], Allow),
            ("sched_setscheduler", &[0, 1], Eperm),
            ("sched_setscheduler", &[0, 2], Eperm),
            ("sched_setscheduler", &[0, 6], Eperm),
            ("sched_setscheduler", &[0, 0x4000_0001], Eperm),
            ("setpriority", &[0, 0, 19], Allow),
            ("setpriority", &[0, 0, negative], Eperm),
            ("ioprio_set", &[1, 0, 0x6000], Allow),
            ("ioprio_set", &[1, 0, 0], Allow),
            ("ioprio_set", &[1, 0, 0x2000], Eperm),
            ("ioprio_set", &[1, 0, 0x4000], Eperm),
            ("setsockopt", &[3, 1, 2], Allow),
            ("setsockopt", &[3, 1, 26], Eperm),
            ("setsockopt", &[3, 1, 50], Eperm),
            ("setsockopt", &[3, 1, 51], Eperm),
            ("setsockopt", &[3, 1, 52], Eperm),
            ("setsockopt", &[3, 6, 1], Allow),
            ("setsockopt", &[3, 6, 26], Allow),
            ("setsockopt", &[3, 6, 31], Eperm),
            ("setsockopt", &[3, 41, 26], Allow),
        ],
    );
}
