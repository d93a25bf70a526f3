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
const MOST: usize = 12;
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

/// Those of one keeper, in whichever of its trees. Removed with the last of these.
#[derive(Clone, Default)]
pub(super) struct Spares(Rc<RefCell<Shelf>>);

#[derive(Default)]
struct Shelf(Vec<Controllers>);

impl Spares {
    pub fn take(&self) -> Option<Controllers> {
        self.0.borrow_mut().0.pop()
    }

    /// Whether they are kept. Nothing of the sandbox may be left, nobody may look at its counters any more.
    pub fn keep(&self, used: Controllers) -> bool {
        let kept = &mut self.0.borrow_mut().0;
        let keeps = kept.len() < MOST && used.are_as_new();
        if keeps {
            kept.push(used);
        }
        keeps
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

impl Drop for Shelf {
    fn drop(&mut self) {
        for dir in self.0.iter().flat_map(Controllers::dirs) {
            // What stays has the keeper's name, and is found by the next.
            let _ = remove_dir(dir);
        }
    }
}
