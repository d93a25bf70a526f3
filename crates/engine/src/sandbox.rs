//! One sandbox, from the engine's side: opened, used, closed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use belljar_jail::beneath::Owner;
use belljar_jail::{Command, Event, Handle, Outcome, Plan, Request, Stage};
use belljar_spec::{Error, Report};
use tokio::sync::mpsc;

use crate::advice;
use crate::engine::{Engine, Message, keeper_gone};

pub(crate) struct Sandbox {
    engine: Engine,
    handle: Handle,
    events: mpsc::UnboundedReceiver<Message>,
    workspace: OwnedFd,
    pub owner: Owner,
    pub report: Report,
}

impl Sandbox {
    /// A confined, verified, empty sandbox.
    pub async fn open(engine: &Engine, plan: Plan) -> Result<Self, Error> {
        let (handle, mut events) = engine.register()?;
        let opened = async {
            engine.send(&Request::Open { sandbox: handle, plan: Box::new(plan) }, &[])?;
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
                owner: Owner { uid: opened.uid, gid: opened.gid },
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

    /// Starts a command. Returns when its program has been executed, or could not be.
    pub async fn start(&mut self, command: Command, stage: Stage, fds: [BorrowedFd<'_>; 3]) -> Result<(), Error> {
        self.engine.send(&Request::Start { sandbox: self.handle, command, stage }, &fds)?;
        match self.events.recv().await {
            Some((Event::Started { .. }, _)) => Ok(()),
            Some((Event::Refused { error, .. }, _)) => Err(advice::explain(&error)),
            _ => Err(keeper_gone()),
        }
    }

    /// Waits until the command, and all it started, has ended.
    pub async fn ended(&mut self) -> Result<Outcome, Error> {
        match self.events.recv().await {
            Some((Event::Ended { outcome, .. }, _)) => Ok(outcome),
            Some((Event::Refused { error, .. }, _)) => Err(advice::explain(&error)),
            _ => Err(keeper_gone()),
        }
    }

    /// Ends what runs; [`Sandbox::ended`] then returns.
    pub fn kill(&self) -> Result<(), Error> {
        self.engine.send(&Request::Kill { sandbox: self.handle }, &[])
    }

    /// Returns when nothing of the sandbox is left on the host.
    pub async fn close(mut self) {
        close(&self.engine, self.handle, &mut self.events).await;
    }
}

impl Drop for Sandbox {
    /// A run that is given up ends; asking twice does no harm.
    fn drop(&mut self) {
        let _ = self.engine.send(&Request::Close { sandbox: self.handle }, &[]);
        self.engine.forget(self.handle);
    }
}

async fn close(engine: &Engine, handle: Handle, events: &mut mpsc::UnboundedReceiver<Message>) {
    if engine.send(&Request::Close { sandbox: handle }, &[]).is_ok() {
        while let Some((event, _)) = events.recv().await {
            if matches!(event, Event::Closed { .. }) {
                break;
            }
        }
    }
}
