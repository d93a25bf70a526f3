//! A warm interpreter, as its keeper sees it: takes orders to fork itself into sandboxes, and answers each with a process.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::departed::Departed;
use super::shared::Shared;
use crate::cgroup::{Group, Tree};
use crate::channel;
use crate::confine::Mode;
use crate::error::{Context, Error, Result, Step};
use crate::mould::Moulds;
use crate::plan::{Command, INNER_ID, Owner, Plan};
use crate::protocol::{Handle, Laying, Layout, Start};
use crate::sys::{self, Side};
use crate::warm;
use crate::{confine, seccomp};

/// An answer: a process id or a negative error number, then the step at which it failed. The first one is nought, and how much of a layout follows.
const ANSWER: usize = 8;
/// More than `zygote/layout.rs` tells.
const MAX_LAYOUT: usize = 64 << 10;
/// More than a layout, and than as many answers as can be waited for.
const MAX_UNHEARD: usize = 256 << 10;
const MAX_RLIMITS: usize = 16;
/// A copy takes a few milliseconds. All others wait meanwhile, so an interpreter that does not answer for so long is given up.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// In place of a step: nobody knows how far the copy came.
const UNKNOWN: u32 = u32::MAX;
const STEPS: [&str; 4] = [
    "forking",
    "entering the namespaces",
    "joining a cgroup",
    "confining itself",
];

pub(super) struct Zygote {
    /// Until it has been reaped: its number may be another's after that.
    pid: Option<i32>,
    pidfd: OwnedFd,
    control: OwnedFd,
    group: Option<Group>,
    /// Where it and the sandboxes that it can enter have their groups.
    pub tree: Option<Tree>,
    pub owner: Owner,
    /// Roots for the sandboxes that it enters. They see what it sees, and go with it.
    pub moulds: Moulds,
    /// Those who wait for an answer, in the order in which they asked.
    waiting: VecDeque<Box<Waiting>>,
    /// When it answered last.
    answered: Instant,
    bytes: Vec<u8>,
    stage: Stage,
    ended: bool,
    /// No longer wanted; ends when it has answered what it was asked.
    pub retired: bool,
}

/// It says once that it is warm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A scout has a layout to tell then, and nobody else has.
    Coming {
        scouts: bool,
    },
    Ready,
    /// A scout takes no orders.
    Told,
}

/// It said something that nobody asked.
struct Unasked;

/// A kernel that was ordered.
pub(super) struct Waiting {
    pub sandbox: Handle,
    pub start: Start,
    pub fds: Vec<OwnedFd>,
    pub since: Instant,
}

/// What a zygote has said.
pub(super) enum Answer {
    /// It is warm; with what it has found, if it is a scout.
    Ready(Option<Layout>),
    Forked(Box<Waiting>, i32),
    /// It could not, or has not tried.
    Failed(Box<Waiting>, Error),
    /// It may have.
    Lost(Box<Waiting>, Error),
    Ended,
}

/// What a kernel needs to know besides who it is.
pub(super) struct Order<'a> {
    pub plan: &'a Plan,
    pub init: BorrowedFd<'a>,
    pub rules: BorrowedFd<'a>,
    pub birthplace: Option<BorrowedFd<'a>>,
    pub joins: &'a [OwnedFd],
    /// Those to enter, user namespace first, while `init` is not what it is going to be: until then nobody but us may look into it.
    pub namespaces: &'a [OwnedFd],
}

impl Zygote {
    /// Starts an interpreter that will say when it is warm.
    pub fn start(
        shared: &mut Shared,
        plan: &Plan,
        command: &Command,
        laying: &Laying,
    ) -> Result<Self> {
        sys::adopt_orphans().during(Step::Zygote, "orphans")?;
        let owner = if let Mode::Rootless(owner) = shared.mode {
            shared.enter_own_user_namespace(owner)?;
            owner
        } else {
            let uid = shared.lease.take_uid().ok_or_else(|| {
                Error::because(Step::Identity, "a free user id", "all are in use")
            })?;
            Owner { uid, gid: uid }
        };
        let name = shared.next_name();
        let above = shared.cgroups.as_ref().ok();
        let tree = above.map(|tree| tree.nested(&name, owner)).transpose()?;
        let group = tree
            .as_ref()
            .map(|tree| tree.create(&format!("{name}-zygote")));
        let group = group.transpose()?;
        match Self::fork(shared, plan, command, laying, owner, group.as_ref()) {
            Ok((pid, pidfd, control)) => Ok(Self {
                pid: Some(pid),
                pidfd,
                control,
                group,
                tree,
                owner,
                moulds: Moulds::default(),
                waiting: VecDeque::new(),
                answered: Instant::now(),
                bytes: Vec::new(),
                stage: Stage::Coming {
                    scouts: *laying == Laying::Scout,
                },
                ended: false,
                retired: false,
            }),
            Err(error) => {
                shared.give_back(group, owner, None);
                if let Some(tree) = tree {
                    shared.leave_nest(tree);
                }
                Err(error)
            }
        }
    }

    fn fork(
        shared: &Shared,
        plan: &Plan,
        command: &Command,
        laying: &Laying,
        owner: Owner,
        group: Option<&Group>,
    ) -> Result<(i32, OwnedFd, OwnedFd)> {
        if let Some(group) = group {
            group.apply(&command.limits, true)?;
        }
        let (ours, theirs) = channel::pair().during(Step::Zygote, "socket")?;
        let joins = group.map(Group::joins).transpose()?.unwrap_or_default();
        let birthplace = group.and_then(Group::birthplace);
        match sys::fork(0, birthplace).during(Step::Zygote, "by fork")? {
            Side::Parent { pid, pidfd } => Ok((pid, pidfd, ours)),
            Side::Child => {
                drop(ours);
                let error = warm::Zygote {
                    plan,
                    command,
                    owner: matches!(shared.mode, Mode::Root).then_some(owner),
                    cgroup_joins: &joins,
                    control: theirs.as_fd(),
                    laying,
                }
                .become_interpreter();
                eprintln!("belljar: {error}");
                std::process::exit(70)
            }
        }
    }

    pub fn is_usable(&self) -> bool {
        self.stage == Stage::Ready && !self.ended && !self.retired && self.has_one_thread()
    }

    /// A process with more threads cannot be forked safely. The kernel counts them in the links of the directory.
    pub fn has_one_thread(&self) -> bool {
        let tasks = |pid: i32| fs::metadata(format!("/proc/{pid}/task"));
        self.pid
            .is_some_and(|pid| tasks(pid).is_ok_and(|tasks| tasks.nlink() == 3))
    }

    /// Asks for a copy of the interpreter in a sandbox. The answer comes later.
    pub fn order(
        &mut self,
        waiting: Box<Waiting>,
        order: &Order<'_>,
    ) -> std::result::Result<(), Box<Waiting>> {
        let message = encode(&waiting.start, order);
        let fds: Vec<BorrowedFd<'_>> = [order.init, order.rules]
            .into_iter()
            .chain(waiting.fds.iter().map(AsFd::as_fd))
            .chain([order.birthplace.unwrap_or(order.init)])
            .chain(order.joins.iter().map(AsFd::as_fd))
            .chain(order.namespaces.iter().map(AsFd::as_fd))
            .collect();
        // An order is far smaller than the socket's buffer; one that does not fit now would mean hundreds are waiting.
        match channel::send_some(self.control.as_fd(), &message, &fds) {
            Ok(sent) if sent == message.len() => {
                self.waiting.push_back(waiting);
                Ok(())
            }
            Ok(_) => {
                // Half an order cannot be taken back.
                self.give_up();
                Err(waiting)
            }
            Err(_) => Err(waiting),
        }
    }

    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Takes in what has been said. Whoever says what it was not asked is not ours any more.
    pub fn advance(&mut self) -> Vec<Answer> {
        if self.read().is_err() {
            self.ended = true;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = bytes.as_slice();
        let mut answers = Vec::new();
        loop {
            match self.next_answer(&mut rest) {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => break,
                Err(Unasked) => {
                    self.ended = true;
                    break;
                }
            }
        }
        self.bytes = rest.to_vec();
        if self.ended {
            let gone = |reason| Error::because(Step::Zygote, "the interpreter", reason);
            // One at a time is on its way, and what carries it may live on: a second kernel with the same descriptors must not come.
            if let Some(first) = self.waiting.pop_front() {
                let reason = "it has ended, or did not answer in time, while it was copied";
                answers.push(Answer::Lost(first, gone(reason)));
            }
            let rest = self.waiting.drain(..);
            answers.extend(rest.map(|waiting| Answer::Failed(waiting, gone("it has ended"))));
            answers.push(Answer::Ended);
        }
        answers
    }

    /// All that is there, if it is not too much. `Err`: nothing will come after it.
    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while self.bytes.len() < MAX_UNHEARD {
            match channel::receive_some(self.control.as_fd(), &mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.bytes.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::InvalidData.into())
    }

    /// The first of these answers, if it is there as a whole.
    fn next_answer(&mut self, bytes: &mut &[u8]) -> std::result::Result<Option<Answer>, Unasked> {
        let Some((&[a, b, c, d, step @ ..], rest)) = bytes.split_first_chunk::<ANSWER>() else {
            return Ok(None);
        };
        let (pid, step) = (i32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(step));
        if pid == 0 {
            // That many bytes stand behind it.
            let length = step as usize;
            let Stage::Coming { scouts } = self.stage else {
                return Err(Unasked);
            };
            if scouts != (length > 0) || length > MAX_LAYOUT {
                return Err(Unasked);
            }
            let Some((layout, rest)) = rest.split_at_checked(length) else {
                return Ok(None);
            };
            *bytes = rest;
            self.stage = if scouts { Stage::Told } else { Stage::Ready };
            return Ok(Some(Answer::Ready(scouts.then(|| layout.to_vec()))));
        }
        *bytes = rest;
        self.answered = Instant::now();
        let waiting = self.waiting.pop_front().ok_or(Unasked)?;
        Ok(Some(if pid > 0 {
            Answer::Forked(waiting, pid)
        } else if step == UNKNOWN {
            let reason = "what was to copy it into the sandbox was ended on the way";
            let error = Error::because(Step::Zygote, "the interpreter", reason);
            Answer::Lost(waiting, error)
        } else {
            let what = STEPS.get(step as usize).unwrap_or(&STEPS[3]);
            let error = io::Error::from_raw_os_error(pid.wrapping_neg());
            Answer::Failed(
                waiting,
                Error::new(Step::Zygote, format!("{what} ({step})"), &error),
            )
        }))
    }

    /// When it must have answered.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.waiting.front().filter(|_| !self.ended)?;
        // Of many, the last wait for all those before them.
        Some(oldest.since.max(self.answered) + ANSWER_TIME)
    }

    /// Gives it up: those who wait are told at its next turn. What it has been told to do last counts as lost, and it begins nothing
    /// more: it never comes back from the kernel.
    pub fn give_up(&mut self) {
        self.ended = true;
        self.end();
    }

    pub fn is(&self, pid: i32) -> bool {
        self.pid == Some(pid)
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Ready && !self.ended && !self.retired && self.waiting.is_empty()
    }

    pub fn is_over(&self) -> bool {
        self.retired && self.waiting.is_empty()
    }

    fn end(&self) {
        let _ = sys::signal_process(self.pidfd.as_fd(), libc::SIGKILL);
    }

    /// Ends it. The copies that it has made live on; what it has made to look at becomes a child of ours.
    pub fn discard(self, shared: &mut Shared) {
        self.end();
        shared.networks.forget(self.owner);
        shared.expect_strays();
        shared.see_off(Departed::new(self.pid, self.group, self.tree, self.owner));
    }
}

/// The layout of `zygote/lib.rs`.
fn encode(start: &Start, order: &Order<'_>) -> Vec<u8> {
    let filter = seccomp::late(order.plan.network);
    let limits = confine::resource_limits(order.plan);
    let cwd = start.command.cwd.as_os_str().as_encoded_bytes();
    let fds = 2 + 4 + 1 + order.joins.len() + order.namespaces.len();
    let mut message = Vec::with_capacity(512 + filter.len() * 8);
    let count = limits.len().min(MAX_RLIMITS);
    let head = 10 * 4 + MAX_RLIMITS * 16;
    let length = head + filter.len() * 8 + cwd.len() + 1;
    let words = [
        length,
        fds,
        INNER_ID as usize,
        INNER_ID as usize,
        filter.len() * 8,
        count,
        usize::from(order.birthplace.is_some()),
        usize::from(start.early),
        usize::from(order.plan.closed.is_some()),
        order.namespaces.len(),
    ];
    for word in words {
        message.extend_from_slice(&u32::try_from(word).unwrap_or(0).to_le_bytes());
    }
    for index in 0..MAX_RLIMITS {
        let (resource, value) = limits.get(index).copied().unwrap_or_default();
        message.extend_from_slice(&u64::from(resource).to_le_bytes());
        message.extend_from_slice(&value.to_le_bytes());
    }
    for instruction in filter {
        message.extend_from_slice(&instruction.code.to_le_bytes());
        message.extend_from_slice(&[instruction.jt, instruction.jf]);
        message.extend_from_slice(&instruction.k.to_le_bytes());
    }
    message.extend_from_slice(cwd);
    message.push(0);
    message
}

#[cfg(test)]
mod tests {
    use std::process;
    use std::thread;

    use super::*;

    /// One that says what the other end of its socket is told to say. The process is not asked anything.
    fn speaking(scouts: bool) -> (Zygote, OwnedFd) {
        let (control, theirs) = channel::pair().expect("socketpair");
        let zygote = Zygote {
            pid: None,
            pidfd: sys::open_process(process::id().cast_signed()).expect("this process"),
            control,
            group: None,
            tree: None,
            owner: Owner { uid: 0, gid: 0 },
            moulds: Moulds::default(),
            waiting: VecDeque::new(),
            answered: Instant::now(),
            bytes: Vec::new(),
            stage: Stage::Coming { scouts },
            ended: false,
            retired: false,
        };
        (zygote, theirs)
    }

    fn say(to: &OwnedFd, words: [u32; 2]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        channel::send_all(to.as_fd(), &bytes, &[]).expect("send");
    }

    #[test]
    fn it_is_warm_once() {
        let (mut zygote, theirs) = speaking(false);
        say(&theirs, [0, 0]);
        assert!(matches!(zygote.advance()[..], [Answer::Ready(None)]));
        assert!(zygote.is_idle());
        say(&theirs, [0, 0]);
        assert!(matches!(zygote.advance()[..], [Answer::Ended]));
        assert!(!zygote.is_idle());
    }

    #[test]
    fn a_layout_may_come_in_pieces() {
        let (mut zygote, theirs) = speaking(true);
        say(&theirs, [0, 3]);
        assert!(zygote.advance().is_empty());
        channel::send_all(theirs.as_fd(), b"abc", &[]).expect("send");
        let answers = zygote.advance();
        assert!(matches!(&answers[..], [Answer::Ready(Some(layout))] if layout == b"abc"));
        say(&theirs, [0, u32::MAX]);
        assert!(matches!(zygote.advance()[..], [Answer::Ended]));
    }

    #[test]
    fn what_nobody_asked_ends_it() {
        for (scouts, words) in [
            (false, [17, 0]),
            (false, [u32::MAX, 3]),
            (false, [1 << 31, u32::MAX]),
            // A layout of one that is no scout, and none of one that is.
            (false, [0, 8]),
            (true, [0, 0]),
        ] {
            let (mut zygote, theirs) = speaking(scouts);
            say(&theirs, words);
            assert!(
                matches!(zygote.advance()[..], [Answer::Ended]),
                "{scouts} {words:?}"
            );
        }
    }

    /// What loads ahead may write to the socket too.
    #[test]
    fn an_endless_talker_keeps_nobody() {
        let (mut zygote, theirs) = speaking(false);
        let much = vec![0; 1 << 16];
        let talker = thread::spawn(move || {
            // Ends when nobody can hear it any more.
            while channel::send_all(theirs.as_fd(), &much, &[]).is_ok() {}
        });
        let until = Instant::now() + Duration::from_secs(20);
        while !zygote.ended {
            zygote.advance();
            assert!(Instant::now() < until, "it is listened to for ever");
        }
        assert!(zygote.bytes.len() <= MAX_UNHEARD + 4096);
        drop(zygote);
        talker.join().expect("the talker");
    }
}
