//! One sandbox, from the engine's side: opened, used, closed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_jail::beneath::Found;
use belljar_jail::{Command, Event, Handle, Outcome, Owner, Plan, Request, Stage};
use belljar_spec::{Error, Report};
use tokio::sync::mpsc;

use crate::advice;
use crate::engine::{Engine, Message, keeper_gone};

/// A command to be started, with its standard descriptors.
pub(crate) struct Start<'a> {
    pub command: Command,
    pub stage: Stage,
    pub fds: [BorrowedFd<'a>; 3],
}

pub(crate) struct Sandbox {
    engine: Engine,
    handle: Handle,
    events: mpsc::UnboundedReceiver<Message>,
    workspace: OwnedFd,
    early_end: Option<Outcome>,
    pub owner: Owner,
    /// The plan's files as they were when they had been written.
    pub inputs: Vec<Found>,
    pub report: Report,
}

impl Sandbox {
    /// A confined, verified sandbox with the plan's files in it.
    ///
    /// A command that is given along is started as soon as that is so; wait for it with [`Sandbox::started`].
    pub async fn open(
        engine: &Engine,
        plan: Plan,
        first: Option<Start<'_>>,
    ) -> Result<Self, Error> {
        let (handle, mut events) = engine.register()?;
        let opened = async {
            engine.send(
                &Request::Open {
                    sandbox: handle,
                    plan: Box::new(plan),
                },
                &[],
            )?;
            if let Some(Start {
                command,
                stage,
                fds,
            }) = first
            {
                engine.send(
                    &Request::Start {
                        sandbox: handle,
                        command,
                        stage,
                    },
                    &fds,
                )?;
            }
            match events.recv().await {
                Some((Event::Opened { opened, .. }, Some(workspace))) => Ok((opened, workspace)),
                Some((Event::Refused { error, .. }, _)) => Err(advice::explain(&error)),
                _ => Err(keeper_gone()),
            }
        };
        match opened.await {
            Ok((opened, workspace)) => Ok(Self {
                engine: engine.clone(),
                handle,
                events,
                workspace,
                early_end: None,
                owner: Owner {
                    uid: opened.uid,
                    gid: opened.gid,
                },
                inputs: opened.inputs,
                report: opened.report,
            }),
            Err(error) => {
                close(engine, handle, &mut events).await;
                Err(error)
            }
        }
    }

    pub fn workspace(&self) -> BorrowedFd<'_> {
        self.workspace.as_fd()
    }

    pub fn start(&self, start: Start<'_>) -> Result<(), Error> {
        let Start {
            command,
            stage,
            fds,
        } = start;
        self.engine.send(
            &Request::Start {
                sandbox: self.handle,
                command,
                stage,
            },
            &fds,
        )
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

    /// Waits until the command, and all it started, has ended.
    pub async fn ended(&mut self) -> Result<Outcome, Error> {
        if let Some(outcome) = self.early_end.take() {
            return Ok(outcome);
        }
        match self.events.recv().await {
            Some((Event::Ended { outcome, .. }, _)) => Ok(outcome),
            Some((Event::Refused { error, .. }, _)) => Err(advice::explain(&error)),
            _ => Err(keeper_gone()),
        }
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
        self.engine.forget(self.handle);
    }
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
}
