//! Children that mind their parents, and how they end.

use super::*;

/// A child that does nothing but mind its parent.
fn stuck() -> i32 {
    let (reader, writer) = io::pipe().expect("pipe");
    let parent = nix::unistd::getpid().as_raw();
    match fork(0, None).expect("fork") {
        Side::Child => {
            let minds = end_after_parent(parent, 1).is_ok();
            let _ = nix::unistd::write(&writer, &[u8::from(minds)]);
            loop {
                nix::unistd::pause();
            }
        }
        Side::Parent { pid, .. } => {
            let mut minds = [0];
            nix::unistd::read(&reader, &mut minds).expect("read");
            assert_eq!(minds, [1]);
            pid
        }
    }
}

/// How a process ended, if it does within some seconds.
fn end_of(pid: i32, seconds: u64) -> Option<c_int> {
    let since = std::time::Instant::now();
    while since.elapsed().as_secs() < seconds {
        if let Some(status) = reap(pid).expect("a child of ours") {
            return Some(status);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    None
}

#[test]
fn what_is_stuck_ends_after_its_parent() {
    adopt_orphans().expect("orphans");
    let (reader, writer) = io::pipe().expect("pipe");
    match fork(0, None).expect("fork") {
        Side::Child => {
            let _ = nix::unistd::write(&writer, &stuck().to_ne_bytes());
            std::process::abort();
        }
        Side::Parent { pid, .. } => {
            let mut stuck = [0; 4];
            nix::unistd::read(&reader, &mut stuck).expect("read");
            assert!(end_of(pid, 10).is_some());
            let ended = end_of(i32::from_ne_bytes(stuck), 10).expect("its end");
            assert_eq!(libc::WTERMSIG(ended), libc::SIGALRM);
        }
    }
}

#[test]
fn the_end_of_the_thread_that_forked_is_not_that_of_its_parent() {
    let stuck = std::thread::spawn(stuck).join().expect("its number");
    assert_eq!(end_of(stuck, 3), None);
    let pidfd = open_process(stuck).expect("a process");
    signal_process(pidfd.as_fd(), libc::SIGKILL).expect("signal");
    assert!(end_of(stuck, 10).is_some());
}

#[test]
fn a_signal_without_a_name_is_told() {
    let Side::Parent { pid, pidfd } = fork(0, None).expect("fork") else {
        loop {
            nix::unistd::pause();
        }
    };
    assert_eq!(reap(pid).expect("a child of ours"), None);
    signal_process(pidfd.as_fd(), 40).expect("signal");
    let ended = end_of(pid, 10).expect("its end");
    assert!(libc::WIFSIGNALED(ended));
    assert_eq!(libc::WTERMSIG(ended), 40);
}

#[test]
fn children_are_told_from_others() {
    let Side::Parent { pid, pidfd } = fork(0, None).expect("fork") else {
        loop {
            nix::unistd::pause();
        }
    };
    assert!(is_child(pidfd.as_fd()));
    assert_eq!(ended_child().expect("children"), None);
    signal_process(pidfd.as_fd(), libc::SIGKILL).expect("signal");
    while ended_child().expect("children").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // It is there until somebody reaps it.
    assert_eq!(ended_child().expect("children"), Some(pid));
    assert!(is_child(pidfd.as_fd()));
    assert!(reap(pid).expect("a child of ours").is_some());
    assert!(!is_child(pidfd.as_fd()));
    let ourselves = open_process(nix::unistd::getpid().as_raw()).expect("a process");
    assert!(!is_child(ourselves.as_fd()));
}
