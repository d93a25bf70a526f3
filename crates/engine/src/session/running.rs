//! A run that is going on in a kernel: what comes from it is heard until the run is over, one way or another.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use belljar_jail::{Exit as Ended, Outcome, Signal};
use belljar_spec::{Error, RunEvent, ToolAnswer, ToolCall};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::courtesy::Courtesy;
use super::{Observer, Session, failed, outcome, sink};
use crate::awake::stay_awake;
use crate::kernel::{self, Call, Display, Exit, Form, Kernel, Reply, Request};
use crate::sandbox::Sandbox;
use crate::stop::{self, Stop};

/// How long code that is out of time has to yield before it is killed: an interpreter on a busy machine may have to wait for its turn.
const GRACE: Duration = Duration::from_secs(1);
/// How long the keeper may take to tell that an interpreter has ended whose channel has.
const TOLD_TIME: Duration = Duration::from_secs(2);
/// From when on the output of a run is listened to that nobody looks at.
const QUIET: Duration = Duration::from_millis(2);
/// When it is asked once more.
const REPEAT: Duration = Duration::from_millis(100);
const DEFAULT_TOOL_CALLS: u64 = 1_000;
/// Code may try what it is refused, again and again; not as fast as it can write.
const MAX_REFUSED: u64 = 10_000;
/// Nor may it show for ever what is not kept.
const MAX_UNSEEN: u64 = 10_000;
/// So much of what a kernel has said is heard at a time; then others have their turn.
const AT_ONCE: usize = 100;
const MAX_ANSWER_BYTES: usize = 16 << 20;
const MAX_MESSAGE_CHARS: usize = 64 << 10;

/// How a run in a kernel ended.
pub(super) enum End {
    /// As the kernel says.
    Done(Box<kernel::Done>),
    /// The interpreter ended instead of answering.
    Died(Outcome),
    /// It was a shell and became another program (`exec`), which ended well.
    Became(Outcome),
    /// It did not yield in time.
    Killed,
    /// Something spoke on the channel that was not the kernel.
    Forged,
}

/// A run that is going on.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says one thing that may be so at any time"
)]
pub(super) struct Running<'a> {
    id: String,
    session: &'a Session,
    stop: &'a Stop,
    deadline: Instant,
    courtesy: Courtesy<'a>,
    /// The interpreter is to end with the run, and that is its end.
    script: Option<Script>,
    /// It may become another program, which knows nothing of the channel.
    is_shell: bool,
    /// Nothing that comes over the channel means anything any more.
    deaf: bool,
    /// When the code was asked to stop, and whether once more.
    pub interrupted: Option<Instant>,
    repeated: bool,
    pub timed_out: bool,
    /// What the code may call, how often it has, and which calls have no answer yet.
    tools: Vec<String>,
    calls: u64,
    refused: u64,
    open: HashSet<u64>,
    /// Displays that were not kept.
    unseen: u64,
    /// More has arrived than has been heard.
    behind: bool,
    /// Nobody else needs this thread to sleep.
    alert: bool,
    /// The kernel has said that it is ready, which it does once.
    greeted: bool,
    pub shown: outcome::Shown,
    pub observer: &'a mut dyn Observer,
}

/// A run that is a whole program.
#[derive(Default)]
struct Script {
    /// What the kernel said about the code.
    done: Option<Box<kernel::Done>>,
}

impl<'a> Running<'a> {
    pub fn new(
        (session, sandbox): (&'a Session, &'a Sandbox),
        (id, stop): (String, &'a Stop),
        deadline: Instant,
        greeted: bool,
        observer: &'a mut dyn Observer,
    ) -> Self {
        let kernel = session.toolchain.kernel.as_ref();
        Self {
            id,
            session,
            stop,
            deadline,
            courtesy: Courtesy::new(sandbox),
            script: None,
            is_shell: kernel.is_some_and(|kernel| kernel.form == Form::Plain),
            deaf: false,
            interrupted: None,
            repeated: false,
            timed_out: false,
            tools: Vec::new(),
            calls: 0,
            refused: 0,
            open: HashSet::new(),
            unseen: 0,
            behind: false,
            alert: false,
            greeted,
            shown: outcome::Shown::default(),
            observer,
        }
    }

    /// The interpreter will end after it, like a program, and it gets no time after its deadline.
    pub fn script(mut self, is_script: bool) -> Self {
        self.script = is_script.then(Script::default);
        self
    }

    /// What the kernel said about a program whose process has ended since.
    pub fn take_done(&mut self) -> Option<Box<kernel::Done>> {
        self.script.as_mut()?.done.take()
    }

    /// No other run is under way: there are cores that would sleep until it has ended.
    pub fn alone(mut self, is_alone: bool) -> Self {
        self.alert = is_alone;
        self
    }

    pub fn with_tools(mut self, tools: Vec<String>) -> Self {
        self.tools = tools;
        self
    }

    pub async fn attend(
        &mut self,
        kernel: &mut Kernel,
        answers: &mut mpsc::UnboundedReceiver<(u64, ToolAnswer)>,
    ) -> Result<End, Error> {
        let stop = self.stop;
        let mut interrupt = std::pin::pin!(stop.stopped());
        let mut woken = None;
        if self.observer.is_live() {
            kernel.output.listen().map_err(failed)?;
        }
        let quiet_until = Instant::now() + QUIET;
        let mut alert = std::pin::pin!(stay_awake());
        loop {
            match self.hear(kernel).await {
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                // A program may do that: how it ends is seen from outside, and it needs nothing of us before.
                Err(_) if self.script.is_some() => self.deaf = true,
                Err(_) => return kill(kernel, End::Forged).await,
            }
            if let Some(wake) = woken.take() {
                let now = Instant::now();
                self.courtesy.look(now);
                if now >= wake && self.is_to_be_killed(kernel)? {
                    return kill(kernel, End::Killed).await;
                }
            }
            let deaf = self.deaf;
            let behind = self.behind;
            if behind {
                tokio::task::yield_now().await;
            }
            let wake = match self.interrupted {
                None => self.deadline,
                Some(at) if !self.repeated => at + REPEAT,
                Some(at) if self.timed_out => at + GRACE,
                Some(at) => at + stop::GRACE,
            };
            let look = self.courtesy.next();
            let (process, frames, output) = kernel.parts();
            let mut next = wake.min(look);
            if !output.is_heard() {
                next = next.min(quiet_until);
            }
            let mut sink = sink(self.observer);
            tokio::select! {
                () = std::future::ready(()), if behind => {}
                () = &mut alert, if self.alert => self.alert = false,
                turned = frames.turn(), if !deaf && !behind => {
                    // Its end is told by the keeper, with how it came about.
                    if turned.is_err() {
                        if self.script.is_none() && !self.is_shell {
                            return lost(kernel).await;
                        }
                        self.deaf = true;
                    }
                }
                read = output.read(&mut sink) => read.map_err(failed)?,
                outcome = process.ended() => {
                    // What it said last may be in the channel still.
                    frames.drain();
                    drop(sink);
                    let heard = self.hear_rest(kernel).await;
                    let outcome = outcome?;
                    return Ok(match heard {
                        Ok(Some(end)) => end,
                        _ if self.is_shell && outcome.exit == Ended::Code(0) => End::Became(outcome),
                        _ => End::Died(outcome),
                    });
                }
                Some((call, answer)) = answers.recv() => {
                    // Each call is answered once.
                    if self.open.remove(&call) && !deaf {
                        let (id, answer) = (&self.id, &bounded(answer));
                        let answer = Request::Answer { id, call, answer };
                        // It has closed the channel, or does not read it.
                        if frames.push(&answer, None).is_err() {
                            if self.script.is_none() {
                                return lost(kernel).await;
                            }
                            self.deaf = true;
                        }
                    }
                }
                () = &mut interrupt, if self.interrupted.is_none() => {
                    if stop.is_killed() {
                        drop(sink);
                        return kill(kernel, End::Killed).await;
                    }
                    self.interrupted = Some(Instant::now());
                    process.signal(Signal::Interrupt)?;
                }
                () = sleep_until(next.into()) => {
                    output.listen().map_err(failed)?;
                    woken = Some(wake);
                    // This thread may be late, and what was said in time is heard before it is judged.
                    if Instant::now() >= wake && !deaf {
                        frames.drain();
                    }
                }
            }
        }
    }

    /// A moment has come that was waited for: the code is asked to stop, or once more, or `true`: it has been asked enough.
    fn is_to_be_killed(&mut self, kernel: &Kernel) -> Result<bool, Error> {
        match self.interrupted {
            None => {
                self.timed_out = true;
                if self.script.is_some() {
                    return Ok(true);
                }
                self.interrupted = Some(Instant::now());
            }
            // The first may have come before the code began, which then did not notice it.
            Some(_) if !self.repeated => self.repeated = true,
            Some(_) => return Ok(true),
        }
        kernel.signal(Signal::Interrupt)?;
        Ok(false)
    }

    /// Takes in all that it has said.
    async fn hear_rest(&mut self, kernel: &mut Kernel) -> io::Result<Option<End>> {
        loop {
            let heard = self.hear(kernel).await?;
            if heard.is_some() || self.deaf {
                return Ok(heard);
            }
            if kernel.frames.is_huge_next() {
                kernel.frames.turn().await?;
            } else if self.behind {
                tokio::task::yield_now().await;
            } else {
                return Ok(None);
            }
        }
    }

    /// Takes in some of what the kernel has said. `Err`: it was not the kernel.
    async fn hear(&mut self, kernel: &mut Kernel) -> io::Result<Option<End>> {
        let forged = || io::Error::from(io::ErrorKind::InvalidData);
        self.behind = false;
        if self.deaf {
            return Ok(None);
        }
        for _ in 0..AT_ONCE {
            let Some(reply) = kernel.frames.next().await? else {
                return Ok(None);
            };
            match reply {
                Reply::Done(done) if done.id == self.id => match &mut self.script {
                    None => return Ok(Some(End::Done(done))),
                    Some(script) => script.done = Some(done),
                },
                Reply::Exit(Exit { id, code }) if id == self.id => {
                    let script = self.script.as_mut().ok_or_else(forged)?;
                    let mut done = script.done.take().ok_or_else(forged)?;
                    done.exit_code = Some(code.into());
                    return Ok(Some(End::Done(done)));
                }
                Reply::Display(Display { id, data }) if id == self.id => {
                    let kept = |data: &_| self.shown.add(data, self.observer);
                    if let Some(display) = data.filter(kept) {
                        self.observer.event(RunEvent::Display(display));
                    } else {
                        self.unseen += 1;
                        if self.unseen > MAX_UNSEEN {
                            return Err(forged());
                        }
                    }
                }
                Reply::Call(call) if call.id == self.id => self.call(kernel, call)?,
                Reply::Ready {} if !std::mem::replace(&mut self.greeted, true) => {}
                _ => return Err(forged()),
            }
        }
        self.behind = true;
        Ok(None)
    }

    /// Passes on a call of the code, or answers it itself. `Err`: no kernel does that.
    fn call(&mut self, kernel: &mut Kernel, given: Call) -> io::Result<()> {
        let forged = || io::Error::from(io::ErrorKind::InvalidData);
        let (call, tool) = (given.number, given.tool);
        self.calls += 1;
        let most = self.session.request.max_tool_calls;
        let most = most.unwrap_or(DEFAULT_TOOL_CALLS);
        let (kind, message) = match given.args.zip(given.kwargs) {
            _ if self.calls > most => (
                "RuntimeError",
                format!("the limit of {most} tool calls is reached"),
            ),
            _ if !self.tools.contains(&tool) => ("NameError", "there is no such tool".into()),
            None => ("ValueError", "the arguments are too large".into()),
            Some((args, kwargs)) => {
                // One number for two calls.
                if !self.open.insert(call) {
                    return Err(forged());
                }
                self.observer.event(RunEvent::ToolCall(ToolCall {
                    call,
                    tool,
                    args,
                    kwargs,
                }));
                return Ok(());
            }
        };
        self.refused += 1;
        if self.refused > MAX_REFUSED {
            return Err(forged());
        }
        let kind = kind.to_owned();
        let answer = &ToolAnswer::Error { kind, message };
        let id = &self.id;
        kernel
            .frames
            .push(&Request::Answer { id, call, answer }, None)
    }
}

/// What a caller answers is held to what a kernel takes.
fn bounded(answer: ToolAnswer) -> ToolAnswer {
    let error = |kind: &str, message: String| ToolAnswer::Error {
        kind: kind.into(),
        message,
    };
    match answer {
        ToolAnswer::Value(value) => {
            let size = serde_json::to_vec(&value).map_or(usize::MAX, |bytes| bytes.len());
            if size > MAX_ANSWER_BYTES {
                let message =
                    format!("the answer is too large: {MAX_ANSWER_BYTES} bytes are the most");
                return error("ValueError", message);
            }
            ToolAnswer::Value(value)
        }
        ToolAnswer::Error { kind, message } => {
            let cut = message.char_indices().nth(MAX_MESSAGE_CHARS);
            let end = cut.map_or(message.len(), |(at, _)| at);
            error(&kind, message[..end].to_owned())
        }
    }
}

/// The channel has ended: either so has the interpreter, or the code has closed it.
async fn lost(kernel: &mut Kernel) -> Result<End, Error> {
    let ended = tokio::time::timeout(TOLD_TIME, kernel.ended()).await;
    match ended {
        Ok(outcome) => Ok(End::Died(outcome?)),
        Err(_) => kill(kernel, End::Forged).await,
    }
}

async fn kill(kernel: &mut Kernel, end: End) -> Result<End, Error> {
    kernel.signal(Signal::Kill)?;
    kernel.ended().await?;
    Ok(end)
}
