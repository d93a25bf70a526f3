//! The daemon: the engine as a service that many share.
//!
//! Theory of operation. A connection is bounded in what it may send and how long it may stand still (`connection`). Every
//! request passes one guard: host, origin, key (`guard`). A handler, one file per resource, parses into the engine's words
//! and waits for room (`admission`) before anything is made. What a run does reaches its reader through an outbox that never
//! holds the run up (`events`). A result is in the history before it is in the answer (`history`).
//!
//! Here is no sandbox logic: what isolates, and how, is the engine's.
#![forbid(unsafe_code)]

mod admission;
mod answer;
mod answering;
mod app;
mod archive;
mod asked;
mod body;
mod channel;
mod clock;
mod config;
mod connection;
mod cors;
mod debug;
mod ended;
mod events;
mod failure;
mod files;
mod guard;
mod history;
mod input;
mod installs;
mod job;
mod kept;
mod languages;
mod leftover;
mod metrics;
mod openapi;
mod params;
mod pools;
mod remains;
mod runs;
mod sandboxes;
mod secret;
mod sessions;
mod slots;
mod status;
mod tenants;
mod terminal;
mod tls;
mod transfer;
mod turn;

use std::time::Duration;

use belljar_spec::Error;
use tokio::time::MissedTickBehavior;

pub use app::{App, Shared, State};
pub use archive::{LeftOut, Pieces};
pub use clock::parse as parse_time;
pub use config::{Config, REFERENCE};
pub use connection::{Listeners, bind_tcp, bind_unix};
pub use debug::Debug;
pub use failure::ErrorBody;
pub use history::{Page, Record, Summary, status_name};
pub use openapi::document as openapi;
pub use sandboxes::{Sandbox, SandboxList};
pub use secret::{Digest, given_token, new_secret};
pub use tls::acceptor;

/// How often what is old is looked for.
const TIDY: Duration = Duration::from_secs(30);

/// Serves until `shutdown`, or until the keeper has ended, which is an error. The caller owns sockets and signals.
pub async fn run(
    app: Shared,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let router = openapi::router(app.clone());
    listeners.tell();
    let tidying = tokio::spawn(tidy(app.clone()));
    let warming = tokio::spawn(pools::warm_up(app.clone()));
    let left = app.engine.clone();
    let sweeping = tokio::spawn(async move { left.sweep_containers().await });
    let keeper = app.engine.clone();
    let lost = async move {
        while keeper.is_alive() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let stop = async {
        tokio::select! {
            () = shutdown => {}
            () = lost => {}
            () = app.idle() => tracing::info!("nobody needs it any more"),
        }
    };
    connection::serve(app.clone(), router, listeners, stop).await;
    tidying.abort();
    warming.abort();
    sweeping.abort();
    app.pools.drop_all();
    app.sandboxes.end_all();
    if app.engine.is_alive() {
        app.engine.shut_down().await;
        return Ok(());
    }
    Err(Error::internal(
        "keeper",
        "the process that keeps the sandboxes has ended",
    ))
}

async fn tidy(app: Shared) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for second in 0_u64.. {
        ticks.tick().await;
        let sandboxes = app.clone();
        let sample = second.is_multiple_of(kept::SAMPLE_EVERY.as_secs());
        // Reading what many use takes a moment.
        let tidied = tokio::task::spawn_blocking(move || {
            sandboxes.sandboxes.tidy(sample);
            sandboxes.sandboxes.weigh(&sandboxes.admission);
            if sample {
                sandboxes.admission.set_ready(sandboxes.pools.memory());
            }
        });
        let _ = tidied.await;
        if !second.is_multiple_of(TIDY.as_secs()) {
            continue;
        }
        let settings = &app.config.history;
        let age = u64::try_from(settings.age.as_millis()).unwrap_or(u64::MAX);
        app.history
            .trim(clock::now_millis().saturating_sub(age), settings.runs);
    }
}
