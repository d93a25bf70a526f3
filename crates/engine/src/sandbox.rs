//! One sandbox, from the engine's side: opened, used, closed; and the commands in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use belljar_jail::beneath::Found;
use belljar_jail::{
    Command, CommandId, Event, Handle, Meter, Outcome, Owner, Plan, Request, Role, Signal, Stage,
    Start, ZygoteId,
};
use belljar_spec::{Connection, Error, Limits, Network, Report};
use tokio::sync::mpsc;

use crate::advice;
use crate::egress::Egress;
use crate::engine::{Engine, Message, keeper_gone};

/// A command to be started, with its standard descriptors and, for a kernel, its channel.
pub(crate) struct Launch<'a> {
    pub command: Command,
    pub stage: Stage,
    pub role: Role,
    /// A kernel may be copied from this one.
    pub zygote: Option<ZygoteId>,
    /// Nobody waits for it yet.
    pub early: bool,
    pub fds: &'a [BorrowedFd<'a>],
}

/// A sandbox that was asked for. Whoever asked may go away before it is there: it is closed all the same.
struct Asked {
    engine: Engine,
    handle: Handle,
}

pub(crate) struct Sandbox {
    asked: Asked,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Message>>,
    workspace: OwnedFd,
    next: AtomicU32,
    pub owner: Owner,
    /// The plan's files as they were when they had been written.
    pub inputs: Vec<Found>,
    pub report: Report,
    /// Absent where cgroups were given up.
    pub meter: Option<Meter>,
    /// The sockets of its network, until they are served.
    doors: Mutex<Vec<OwnedFd>>,
    egress: OnceLock<Egress>,
}

/// A command of a sandbox.
pub(crate) struct Process {
    engine: Engine,
    sandbox: Handle,
    id: CommandId,
    events: mpsc::UnboundedReceiver<Message>,
    started: bool,
    /// Its end, where that was told before anyone asked.
    early_end: Option<Outcome>,
    /// Why it is no copy of a warm interpreter although one was asked for.
    pub cold: Option<String>,
}

impl Sandbox {
    /// A confined, verified sandbox with the plan's files in it.
    pub async fn open(engine: &Engine, plan: Plan) -> Result<Self, Error> {
        let (asked, events) = Asked::send(engine, plan, None)?;
        engine.give_network()?;
        Self::opened(asked, events).await
    }

    /// The same, and a command that is started as soon as that is so; wait for it with [`Process::started`].
    pub async fn open_with(
        engine: &Engine,
        plan: Plan,
        first: Launch<'_>,
    ) -> Result<(Self, Process), Error> {
        let (asked, events) = Asked::send(engine, plan, first.zygote)?;
        let process = Process::start(engine, asked.handle, 1, first)?;
        engine.give_network()?;
        let sandbox = Self::opened(asked, events).await?;
        sandbox.next.store(2, Ordering::Relaxed);
        Ok((sandbox, process))
    }

    async fn opened(
        asked: Asked,
        mut events: mpsc::UnboundedReceiver<Message>,
    ) -> Result<Self, Error> {
        let error = match events.recv().await {
            Some((Event::Opened { opened, .. }, fds)) if !fds.is_empty() => {
                let mut doors = fds;
                let workspace = doors.remove(0);
                return Ok(Self {
                    asked,
                    events: tokio::sync::Mutex::new(events),
                    workspace,
                    next: AtomicU32::new(1),
                    owner: Owner {
                        uid: opened.uid,
                        gid: opened.gid,
                    },
                    inputs: opened.inputs,
                    report: opened.report,
                    meter: opened.meter,
                    doors: Mutex::new(doors),
                    egress: OnceLock::new(),
                });
            }
            Some((Event::Refused { error, .. }, _)) => advice::explain(&error),
            _ => keeper_gone(),
        };
        asked.close(&mut events).await;
        Err(error)
    }

    pub fn workspace(&self) -> BorrowedFd<'_> {
        self.workspace.as_fd()
    }

    pub fn start(&self, launch: Launch<'_>) -> Result<Process, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Process::start(&self.asked.engine, self.asked.handle, id, launch)
    }

    /// Begins to serve its network, if it has one. What was tried meanwhile has waited.
    pub fn serve(&self, network: &Network) -> Result<(), Error> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if doors.is_empty() {
            return Ok(());
        }
        let world = self.asked.engine.world();
        let egress = Egress::serve(std::mem::take(&mut *doors), network, world)
            .map_err(|error| Error::internal("network", error))?;
        let _ = self.egress.set(egress);
        Ok(())
    }

    /// What serves its network, if it has one.
    pub fn egress(&self) -> Option<&Egress> {
        self.egress.get()
    }

    /// A mark for [`Self::connections`].
    pub fn connections_so_far(&self) -> u64 {
        self.egress().map_or(0, Egress::mark)
    }

    /// The connections that were tried since a mark.
    pub fn connections(&self, since: u64) -> Vec<Connection> {
        self.egress()
            .map(|egress| egress.since(since))
            .unwrap_or_default()
    }

    /// Changes what the sandbox may use; returns when that holds. A sandbox that cannot have the new limits is ended.
    pub async fn limit(&self, limits: Limits) -> Result<(), Error> {
        let mut events = self.events.lock().await;
        let request = Request::Limit {
            sandbox: self.asked.handle,
            limits,
        };
        self.asked.engine.send(&request, &[])?;
        match events.recv().await {
            Some((Event::Limited { .. }, _)) => Ok(()),
            Some((Event::Refused { error, .. }, _)) => Err(advice::explain(&error)),
            _ => Err(keeper_gone()),
        }
    }
}

impl Asked {
    fn send(
        engine: &Engine,
        plan: Plan,
        zygote: Option<ZygoteId>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Message>), Error> {
        let (handle, events) = engine.register()?;
        let asked = Self {
            engine: engine.clone(),
            handle,
        };
        let request = Request::Open {
            sandbox: handle,
            plan: Box::new(plan),
            zygote,
        };
        engine.send(&request, &[])?;
        Ok((asked, events))
    }

    /// Returns when there is no trace of it.
    async fn close(&self, events: &mut mpsc::UnboundedReceiver<Message>) {
        let sandbox = self.handle;
        if self.engine.send(&Request::Close { sandbox }, &[]).is_ok() {
            while let Some((event, _)) = events.recv().await {
                if matches!(event, Event::Closed { .. }) {
                    break;
                }
            }
        }
    }
}

impl Drop for Asked {
    /// Asks the keeper to leave no trace of it, and does not wait for that.
    fn drop(&mut self) {
        let sandbox = self.handle;
        let _ = self.engine.send(&Request::Close { sandbox }, &[]);
        self.engine.forget((sandbox, None));
    }
}

impl Process {
    fn start(
        engine: &Engine,
        sandbox: Handle,
        id: CommandId,
        launch: Launch<'_>,
    ) -> Result<Self, Error> {
        let events = engine.listen((sandbox, Some(id)))?;
        let process = Self {
            engine: engine.clone(),
            sandbox,
            id,
            events,
            started: false,
            early_end: None,
            cold: None,
        };
        let start = Box::new(Start {
            id,
            command: launch.command,
            role: launch.role,
            stage: launch.stage,
            zygote: launch.zygote,
            early: launch.early,
        });
        engine.send(&Request::Start { sandbox, start }, launch.fds)?;
        Ok(process)
    }

    /// Waits until the program has been executed, or could not be.
    pub async fn started(&mut self) -> Result<(), Error> {
        // Killed between its birth and its first instruction: a deadline can be that short.
        while !self.started && self.early_end.is_none() {
            let event = self.events.recv().await;
            self.take(event)?;
        }
        Ok(())
    }

    /// Waits until the command has ended and, unless it is beside others, all it started too.
    pub async fn ended(&mut self) -> Result<Outcome, Error> {
        loop {
            if let Some(outcome) = self.early_end.take() {
                return Ok(outcome);
            }
            let event = self.events.recv().await;
            self.take(event)?;
        }
    }

    /// Whether its end has been told.
    pub fn has_ended(&mut self) -> bool {
        while self.early_end.is_none() {
            let event = match self.events.try_recv() {
                Ok(event) => Some(event),
                Err(mpsc::error::TryRecvError::Empty) => return false,
                Err(mpsc::error::TryRecvError::Disconnected) => None,
            };
            if self.take(event).is_err() {
                return true;
            }
        }
        true
    }

    fn take(&mut self, event: Option<Message>) -> Result<(), Error> {
        match event {
            Some((Event::Started { cold, .. }, _)) => {
                self.started = true;
                self.cold = cold.map(|error| error.to_string());
            }
            Some((Event::Ended { outcome, .. }, _)) => self.early_end = Some(outcome),
            Some((Event::Refused { error, .. }, _)) => return Err(advice::explain(&error)),
            _ => return Err(keeper_gone()),
        }
        Ok(())
    }

    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        let request = Request::Signal {
            sandbox: self.sandbox,
            command: self.id,
            signal,
        };
        self.engine.send(&request, &[])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.engine.forget((self.sandbox, Some(self.id)));
    }
}
