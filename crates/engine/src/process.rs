//! A command in a sandbox, from the engine's side.

use std::os::fd::BorrowedFd;

use belljar_jail::{
    Command, CommandId, Event, Handle, Outcome, Request, Role, Signal, Stage, Start, ZygoteId,
};
use belljar_spec::Error;
use tokio::sync::mpsc;

use crate::advice;
use crate::docker::{Far, Link};
use crate::engine::{Engine, Message, encode, keeper_gone};

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

/// Whom to tell what a command shall do.
pub(crate) enum Master {
    Keeper { engine: Engine, sandbox: Handle },
    Agent(Link),
}

/// A command of a sandbox.
pub(crate) struct Process {
    master: Master,
    id: CommandId,
    events: mpsc::UnboundedReceiver<Message>,
    started: bool,
    /// Its end, once that was told.
    end: Option<Outcome>,
    /// Why it is no copy of a warm interpreter although one was asked for.
    pub cold: Option<String>,
}

impl Process {
    /// Whether our own process ends with it, and does nothing else meanwhile.
    pub fn is_the_last(&self) -> bool {
        matches!(&self.master, Master::Keeper { engine, .. } if engine.is_leaving())
    }

    pub fn new(master: Master, id: CommandId, events: mpsc::UnboundedReceiver<Message>) -> Self {
        Self {
            master,
            id,
            events,
            started: false,
            end: None,
            cold: None,
        }
    }

    pub fn start(
        engine: &Engine,
        sandbox: Handle,
        id: CommandId,
        launch: Launch<'_>,
    ) -> Result<Self, Error> {
        let fds = launch.fds;
        let (process, start) = Self::new_in(engine, sandbox, id, launch)?;
        engine.send(&start, fds)?;
        Ok(process)
    }

    /// With the words in which the keeper is to be asked.
    pub fn new_in(
        engine: &Engine,
        sandbox: Handle,
        id: CommandId,
        launch: Launch<'_>,
    ) -> Result<(Self, Vec<u8>), Error> {
        let events = engine.listen((sandbox, Some(id)))?;
        let master = Master::Keeper {
            engine: engine.clone(),
            sandbox,
        };
        let process = Self::new(master, id, events);
        let start = Box::new(Start {
            id,
            command: launch.command,
            role: launch.role,
            stage: launch.stage,
            zygote: launch.zygote,
            early: launch.early,
        });
        Ok((process, encode(&Request::Start { sandbox, start })?))
    }

    /// Its terminal, where that is not of this host.
    pub fn far(&self) -> Option<Far> {
        match &self.master {
            Master::Keeper { .. } => None,
            Master::Agent(link) => Some(Far {
                link: link.clone(),
                id: self.id,
            }),
        }
    }

    /// Waits until the program has been executed, or could not be.
    pub async fn started(&mut self) -> Result<(), Error> {
        // Killed between its birth and its first instruction: a deadline can be that short.
        while !self.started && self.end.is_none() {
            let event = self.events.recv().await;
            self.take(event)?;
        }
        Ok(())
    }

    /// Waits until the command has ended and, unless it is beside others, all it started too. May be asked again: the end is told once.
    pub async fn ended(&mut self) -> Result<Outcome, Error> {
        loop {
            if let Some(outcome) = &self.end {
                return Ok(outcome.clone());
            }
            let event = self.events.recv().await;
            self.take(event)?;
        }
    }

    /// Whether its end has been told.
    pub fn has_ended(&mut self) -> bool {
        while self.end.is_none() {
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
            Some((Event::Ended { outcome, .. }, _)) => self.end = Some(outcome),
            Some((Event::Refused { error, .. }, _)) => return Err(advice::explain(&error)),
            _ => return Err(keeper_gone()),
        }
        Ok(())
    }

    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        match &self.master {
            Master::Keeper { engine, sandbox } => {
                let request = Request::Signal {
                    sandbox: *sandbox,
                    command: self.id,
                    signal,
                };
                engine.ask(&request, &[])
            }
            Master::Agent(link) => {
                let number = match signal {
                    Signal::Interrupt => 2,
                    Signal::Kill => 9,
                };
                link.signal(self.id, number);
                Ok(())
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Master::Keeper { engine, sandbox } = &self.master {
            engine.forget((*sandbox, Some(self.id)));
        }
    }
}
