//! Runs that are ended from outside, and what they leave: what they had printed and used is recorded all the same.

use std::time::Duration;

use belljar::Stop;
use belljar_spec::{Error, RunResult};
use tokio::time::sleep;

use crate::app::App;
use crate::connection::LAST_WORDS;

/// Longer than it takes to kill a run, and to count what it used.
const REMAINS: Duration = Duration::from_secs(5);

/// How a run has ended.
pub enum End {
    /// Of its own, or because it was asked to.
    Itself(Result<RunResult, Error>),
    /// Nobody waits for it, its sandbox was deleted, or the daemon stops; with what it left.
    FromOutside(Option<RunResult>),
}

impl End {
    /// Of a run whose end somebody waited for. One that has not ended until now is ended.
    pub async fn of(
        app: &App,
        ended: Option<Result<RunResult, Error>>,
        stop: &Stop,
        running: impl Future<Output = Result<RunResult, Error>>,
    ) -> Self {
        if let Some(result) = ended {
            return Self::Itself(result);
        }
        stop.kill();
        Self::FromOutside(remains(app, running).await)
    }
}

/// What it had printed and used, of a run that has just been told to end. `None`: it had not begun, or nothing was heard of its end.
pub async fn remains(
    app: &App,
    running: impl Future<Output = Result<RunResult, Error>>,
) -> Option<RunResult> {
    // A daemon that stops has no more time than that, and a part of it is for writing this down.
    let hurried = async {
        app.ended().await;
        sleep(LAST_WORDS / 2).await;
    };
    tokio::select! {
        biased;
        ended = running => ended.ok(),
        () = sleep(REMAINS) => None,
        () = hurried => None,
    }
}
