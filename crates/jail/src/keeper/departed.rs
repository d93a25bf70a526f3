//! A warm interpreter that has been killed, until nothing of it is left.
//!
//! On a busy host it may take its time to end, and the keeper has others to look after.

use super::shared::Shared;
use crate::cgroup::{Group, Tree};
use crate::plan::Owner;
use crate::sys;

pub(super) struct Departed {
    /// Until it has been reaped: its number may be another's after that.
    pid: Option<i32>,
    group: Option<Group>,
    tree: Option<Tree>,
    owner: Owner,
}

impl Departed {
    /// One that has got its signal. What it has forked to look at itself is killed here; copies are in groups of their own.
    pub fn new(pid: Option<i32>, group: Option<Group>, tree: Option<Tree>, owner: Owner) -> Self {
        if let Some(group) = &group {
            group.unthrottle();
            group.kill();
        }
        Self {
            pid,
            group,
            tree,
            owner,
        }
    }

    pub fn is(&self, pid: i32) -> bool {
        self.pid == Some(pid)
    }

    /// Whether nothing of it runs any more.
    pub fn has_gone(&mut self) -> bool {
        self.pid.take_if(|pid| !matches!(sys::reap(*pid), Ok(None)));
        self.pid.is_none() && self.group.as_ref().is_none_or(Group::is_empty)
    }

    /// Lets others have what it had.
    pub fn clear_away(self, shared: &mut Shared) {
        shared.give_back(self.group, self.owner, None);
        if let Some(tree) = self.tree {
            shared.leave_nest(tree);
        }
    }
}
