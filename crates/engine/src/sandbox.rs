//! One sandbox, from the engine's side: opened, used, closed; and the commands in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use belljar_jail::beneath::Found;
use belljar_jail::{
    Command, CommandId, Event, Handle, Meter, Outcome, Owner, Plan, Request, Role, Signal, Stage,
    Start,
};
use belljar_spec::{Error, Limits, Report};
use tokio::sync::mpsc;

use crate::advice;
use crate::engine::{Engine, Message, keeper_gone};

/// A command to be started, with its standard descriptors and, for a kernel, its channel.
pub(crate) struct Launch<'a> {
    pub command: Command,
    pub stage: Stage,
    pub role: Role,
    pub fds: &'a [BorrowedFd<'a>],
}

pub(crate) struct Sandbox {
    engine: Engine,
    handle: Handle,
    _events: mpsc::UnboundedReceiver<Message>,
    workspace: OwnedFd,
    next: AtomicU32,
    pub owner: Owner,
    /// The plan's files as they were when they had been written.
    pub inputs: Vec<Found>,
    pub report: Report,
    /// Absent where cgroups were given up.
    pub meter: Option<Meter>,
}

/// A command of a sandbox.
pub(crate) struct Process {
    engine: Engine,
    sandbox: Handle,
    id: CommandId,
    events: mpsc::UnboundedReceiver<Message>,
    early_end: Option<Outcome>,
}

impl Sandbox {
    /// A confined, verified sandbox with the plan's files in it.
    pub async fn open(engine: &Engine, plan: Plan) -> Result<Self, Error> {
        let (handle, events) = engine.register()?;
        ask_for(engine, handle, plan)?;
        Self::opened(engine, handle, events).await
    }

    /// The same, and a command that is started as soon as that is so; wait for it with [`Process::started`].
    pub async fn open_with(
        engine: &Engine,
        plan: Plan,
        first: Launch<'_>,
    ) -> Result<(Self, Process), Error> {
        let (handle, events) = engine.register()?;
        ask_for(engine, handle, plan)?;
        let process = Process::start(engine, handle, 1, first)?;
        let sandbox = Self::opened(engine, handle, events).await?;
        sandbox.next.store(2, Ordering::Relaxed);
        Ok((sandbox, process))
    }

    async fn opened(
        engine: &Engine,
        handle: Handle,
        mut events: mpsc::UnboundedReceiver<Message>,
    ) -> Result<Self, Error> {
        let error = match events.recv().await {
            Some((Event::Opened { opened, .. }, Some(workspace))) => {
                return Ok(Self {
                    engine: engine.clone(),
                    handle,
                    _events: events,
                    workspace,
                    next: AtomicU32::new(1),
                    owner: Owner {
                        uid: opened.uid,
                        gid: opened.gid,
                    },
                    inputs: opened.inputs,
                    report: opened.report,
                    meter: opened.meter,
                });
            }
            Some((Event::Refused { error, .. }, _)) => advice::explain(&error),
            _ => keeper_gone(),
        };
        close(engine, handle, &mut events).await;
        Err(error)
    }

    pub fn workspace(&self) -> BorrowedFd<'_> {
        self.workspace.as_fd()
    }

    pub fn start(&self, launch: Launch<'_>) -> Result<Process, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Process::start(&self.engine, self.handle, id, launch)
    }

    /// Changes what the sandbox may use. A sandbox that cannot have the new limits is ended.
    pub fn limit(&self, limits: Limits) -> Result<(), Error> {
        let request = Request::Limit {
            sandbox: self.handle,
            limits,
        };
        self.engine.send(&request, &[])
    }
}

impl Drop for Sandbox {
    /// Asks the keeper to leave no trace of it, and does not wait for that.
    fn drop(&mut self) {
        let _ = self.engine.send(
            &Request::Close {
                sandbox: self.handle,
            },
            &[],
        );
        self.engine.forget((self.handle, None));
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
            early_end: None,
        };
        let start = Box::new(Start {
            id,
            command: launch.command,
            role: launch.role,
            stage: launch.stage,
        });
        engine.send(&Request::Start { sandbox, start }, launch.fds)?;
        Ok(process)
    }

    /// Waits until the program has been executed, or could not be.
    pub async fn started(&mut self) -> Result<(), Error> {
        match self.events.recv().await {
            Some((Event::Started { .. }, _)) => Ok(()),
            // Killed between its birth and its first instruction: a deadline can be that short.
            Some((Event::Ended { outcome, .. }, _)) => {
                self.early_end = Some(outcome);
                Ok(())
            }
            Some((Event::Refused { error, .. }, _)) => Err(advice::explain(&error)),
            _ => Err(keeper_gone()),
        }
    }

    /// Waits until the command has ended and, unless it is beside others, all it started too.
    pub async fn ended(&mut self) -> Result<Outcome, Error> {
        if let Some(outcome) = self.early_end.take() {
            return Ok(outcome);
        }
        loop {
            match self.events.recv().await {
                Some((Event::Ended { outcome, .. }, _)) => return Ok(outcome),
                Some((Event::Refused { error, .. }, _)) => return Err(advice::explain(&error)),
                Some((Event::Started { .. }, _)) => {}
                _ => return Err(keeper_gone()),
            }
        }
    }

    /// Whether its end has been told.
    pub fn has_ended(&mut self) -> bool {
        while self.early_end.is_none() {
            match self.events.try_recv() {
                Ok((Event::Ended { outcome, .. }, _)) => self.early_end = Some(outcome),
                Ok((Event::Refused { .. }, _)) => return true,
                Ok(_) => {}
                Err(error) => return error == mpsc::error::TryRecvError::Disconnected,
            }
        }
        true
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

fn ask_for(engine: &Engine, sandbox: Handle, plan: Plan) -> Result<(), Error> {
    let plan = Box::new(plan);
    engine.send(&Request::Open { sandbox, plan }, &[])
}

async fn close(engine: &Engine, handle: Handle, events: &mut mpsc::UnboundedReceiver<Message>) {
    if engine
        .send(&Request::Close { sandbox: handle }, &[])
        .is_ok()
    {
        while let Some((event, _)) = events.recv().await {
            if matches!(event, Event::Closed { .. }) {
                break;
            }
        }
    }
    engine.forget((handle, None));
}
