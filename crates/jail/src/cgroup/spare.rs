//! cgroup version 1: groups of controllers that can be used again.
//!
//! To make a group per controller, and the files in it, and to take all of it apart, is a twelfth of what a fresh sandbox costs. One that is
//! empty again, in which nothing has been changed but limits that the next sandbox sets anyway, and whose counters tell no more
//! than those of a new one would, is as good as new. What counts CPU time and what kills is never used again.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{get, remove_dir, set};

/// So many wait to be used again.
const MOST: usize = 8;
/// In every sandbox there have been, at one time, its init, whoever brought the interpreter, and the interpreter. The kernel's count of the
/// most that there have been cannot be taken back.
const ALWAYS: u64 = 3;
/// What the kernel may go on holding for those who have gone, in its own stores and caches: a fraction of what any interpreter takes.
const LEFT: u64 = 2 << 20;

/// One sandbox's.
#[derive(Clone)]
pub(super) struct Controllers {
    pub memory: PathBuf,
    pub pids: PathBuf,
    pub cpu: PathBuf,
}

/// Those of one keeper, in whichever of its trees.
#[derive(Clone, Default)]
pub(super) struct Spares(Rc<RefCell<Vec<Controllers>>>);

impl Spares {
    pub fn take(&self) -> Option<Controllers> {
        self.0.borrow_mut().pop()
    }

    /// Whether they are kept. Nothing of the sandbox may be left, nobody may look at its counters any more.
    pub fn keep(&self, used: Controllers) -> bool {
        let mut kept = self.0.borrow_mut();
        let keeps = kept.len() < MOST && used.are_as_new();
        if keeps {
            kept.push(used);
        }
        keeps
    }

    /// Whether none is left.
    pub fn remove(&self) -> bool {
        let kept = std::mem::take(&mut *self.0.borrow_mut());
        let dirs = kept.iter().flat_map(Controllers::dirs);
        // Each of them, whatever becomes of the others.
        dirs.filter(|dir| remove_dir(dir).is_err()).count() == 0
    }
}

impl Controllers {
    fn dirs(&self) -> [&Path; 3] {
        [&self.memory, &self.pids, &self.cpu]
    }

    fn are_as_new(&self) -> bool {
        let empty = |dir| get(dir, "tasks").is_some_and(|members| members.is_empty());
        let number = |dir, file| get(dir, file).and_then(|text| text.parse::<u64>().ok());
        let at_most = |dir, file, most| number(dir, file).is_some_and(|found| found <= most);
        let kills = get(&self.memory, "memory.oom_control");
        self.dirs().into_iter().all(empty)
            && at_most(&self.pids, "pids.peak", ALWAYS)
            && kills.is_some_and(|text| text.lines().any(|line| line == "oom_kill 0"))
            && at_most(&self.memory, "memory.usage_in_bytes", LEFT)
            // The next one's most begins here.
            && set(&self.memory, "memory.max_usage_in_bytes", "0").is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// As the kernel would show them, of a sandbox that has ended.
    fn left(place: &Path, name: &str) -> Controllers {
        let dir = place.join(name);
        fs::create_dir(&dir).expect("a directory");
        let files = [
            ("tasks", ""),
            ("pids.peak", "3\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            ),
            ("memory.usage_in_bytes", "1425408\n"),
            ("memory.max_usage_in_bytes", "99999999\n"),
        ];
        for (file, text) in files {
            fs::write(dir.join(file), text).expect(file);
        }
        Controllers {
            memory: dir.clone(),
            pids: dir.clone(),
            cpu: dir,
        }
    }

    #[test]
    fn what_tells_nothing_of_its_sandbox_is_used_again() {
        let place = tempfile::tempdir().expect("a directory");
        let spares = Spares::default();
        let used = left(place.path(), "used");
        let peak = used.memory.join("memory.max_usage_in_bytes");
        assert!(spares.keep(used.clone()));
        let peak = fs::read_to_string(peak).expect("a file");
        assert!(peak.starts_with('0'), "{peak}");
        assert_eq!(spares.take().expect("one").memory, used.memory);
        assert!(spares.take().is_none());
    }

    #[test]
    fn what_another_could_be_charged_with_is_not() {
        let place = tempfile::tempdir().expect("a directory");
        let spares = Spares::default();
        for (number, (file, text)) in [
            ("tasks", "17\n"),
            ("pids.peak", "4\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            ),
            ("memory.usage_in_bytes", "3000000\n"),
            // Not on every kernel.
            ("pids.peak", ""),
        ]
        .into_iter()
        .enumerate()
        {
            let used = left(place.path(), &number.to_string());
            fs::write(used.memory.join(file), text).expect(file);
            assert!(!spares.keep(used), "{file} {text}");
        }
        let used = left(place.path(), "bare");
        fs::remove_file(used.memory.join("memory.max_usage_in_bytes")).expect("removed");
        assert!(!spares.keep(used));
        assert!(spares.take().is_none());
    }

    #[test]
    fn there_is_an_end_to_them() {
        let place = tempfile::tempdir().expect("a directory");
        let spares = Spares::default();
        let kept = (0..MOST + 3).filter(|n| spares.keep(left(place.path(), &n.to_string())));
        assert_eq!(kept.count(), MOST);
    }
}
