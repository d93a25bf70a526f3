//! `/v1/sandboxes/{id}/channel`: a WebSocket for runs with tools and live input.
//!
//! Runs belong to the sandbox, not to the connection. What happens goes into a log with numbers; a connection sends from
//! the log. One that broke can be opened again with the last number seen, and misses nothing; if nobody comes back in time,
//! its runs are interrupted, and nothing waits for it any more. The log is bounded: what was sent is forgotten first, and what
//! does not fit waits.

mod log;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use belljar_spec::{
    CodeRequest, CommandRequest, Content, Error, SandboxId, from_json, object, or_default,
    some_object,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};
use utoipa::IntoParams;

use crate::answer;
use crate::app::Shared;
use crate::asked::{Asked, check_name, name_taken, no_such_run};
use crate::clock;
use crate::events::{Event, Outbox};
use crate::failure::{ErrorBody, Failure, Id};
use crate::guard::{Caller, KEY_PROTOCOL};
use crate::input;
use crate::kept::Kept;
use crate::params::Params;
use crate::sessions::{Answer, ToolError};
use crate::tenants::Tenant;
use crate::turn::{Turn, Work};
pub use log::Channel;
use log::LAST;

const MESSAGE_BYTES: usize = 16 << 20;
pub const PING: Duration = Duration::from_secs(20);
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Resume {
    /// The last `seq` that was seen; what came after it is sent first.
    pub after: Option<u64>,
}

/// What a client says.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    Run {
        run: String,
        #[serde(deserialize_with = "object")]
        request: CodeRequest,
        #[serde(default, deserialize_with = "or_default")]
        live_stdin: bool,
    },
    Command {
        run: String,
        #[serde(deserialize_with = "object")]
        request: CommandRequest,
    },
    Answer {
        run: String,
        call: u64,
        #[serde(default)]
        value: Value,
        #[serde(default, deserialize_with = "some_object")]
        error: Option<ToolError>,
    },
    Stdin {
        run: String,
        #[serde(default)]
        data: Option<Content>,
        #[serde(default, deserialize_with = "or_default")]
        end: bool,
    },
    /// The run of this name, or whatever is going on.
    Interrupt {
        #[serde(default)]
        run: Option<String>,
    },
}

/// The run that a message asks for, if it is not understood but for that: under this name its client waits for news.
fn wanted(text: &str) -> String {
    #[derive(Deserialize)]
    struct Named {
        op: String,
        run: String,
    }
    // Nothing else of it is looked at.
    match object::<_, Named>(&mut serde_json::Deserializer::from_str(text)) {
        Ok(Named { op, run }) if ["run", "command"].contains(&&*op) => run,
        _ => String::new(),
    }
}

/// A WebSocket that takes messages up to this size.
pub fn accept(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    most_bytes: usize,
) -> Result<WebSocketUpgrade, Error> {
    let upgrade = upgrade.map_err(|rejection| Error::MalformedRequest {
        reason: rejection.body_text(),
    })?;
    // A browser that offered its key as a protocol wants to hear one of those it offered.
    let offered: Vec<_> = upgrade
        .requested_protocols()
        .filter_map(|protocol| protocol.to_str().ok())
        .filter(|protocol| !protocol.starts_with(KEY_PROTOCOL))
        .map(str::to_owned)
        .collect();
    Ok(upgrade
        .protocols(offered.into_iter().filter(|protocol| protocol == "belljar"))
        .max_message_size(most_bytes)
        .max_frame_size(most_bytes))
}

/// Closes a WebSocket, and lets the client answer. Some lose what was sent last if their answer finds nobody.
pub async fn farewell(socket: &mut WebSocket, reason: &'static str) {
    let close = CloseFrame {
        code: if reason == "bye" { 1000 } else { 1001 },
        reason: reason.into(),
    };
    if socket.send(Message::Close(Some(close))).await.is_ok() {
        let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = timeout(FAREWELL, answered).await;
    }
}

/// A WebSocket for runs with tools and live input
#[utoipa::path(get, path = "/v1/sandboxes/{id}/channel", tag = "sandboxes", params(("id" = SandboxId, Path), Resume),
    responses((status = 101, description = "A WebSocket; docs/http.md has its messages"), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn open(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    resume: Result<Params<Resume>, Failure>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let Params(resume) = resume?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    let upgrade = accept(upgrade, MESSAGE_BYTES)?;
    Ok(upgrade.on_upgrade(move |socket| async move {
        Connection {
            app,
            tenant,
            kept,
            socket,
        }
        .attend(resume.after)
        .await;
    }))
}

struct Connection {
    app: Shared,
    tenant: Tenant,
    kept: Arc<Kept>,
    socket: WebSocket,
}

impl Connection {
    async fn attend(mut self, after: Option<u64>) {
        let kept = Arc::clone(&self.kept);
        let app = Arc::clone(&self.app);
        let channel = &kept.channel;
        let number = channel.attach();
        let reason = self.converse(number, after).await;
        if channel.detach(number) {
            let patience = app.config.sandboxes.reconnect;
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                tokio::select! {
                    () = sleep(patience) => {}
                    () = kept.gone() => return,
                }
                // What others asked for is not touched.
                for run in kept.channel.leave(number) {
                    let _ = kept.names.stop(&run);
                }
            });
        }
        farewell(&mut self.socket, reason).await;
    }

    /// Until one of the two has had enough; says why.
    async fn converse(&mut self, number: u64, after: Option<u64>) -> &'static str {
        let kept = Arc::clone(&self.kept);
        let app = Arc::clone(&self.app);
        let mut news = kept.channel.news.subscribe();
        let mut newest = kept.channel.connection.subscribe();
        let mut pings = interval(PING);
        let mut heard = Instant::now();
        let last = *news.borrow_and_update();
        // A number that is yet to come was seen elsewhere. Whoever waited for it to pass would miss everything before.
        let mut sent = after.unwrap_or(last).min(last);
        let complete = after.is_none_or(|after| after <= last) && kept.channel.after(sent).1;
        let ready = json!({ "event": "ready", "sandbox": kept.session.id(), "seq": sent, "complete": complete,
            "running": kept.channel.lock().runs.keys().collect::<Vec<_>>() });
        if !self.say(ready.to_string().into()).await {
            return "gone";
        }
        loop {
            for (seq, text) in kept.channel.after(sent).0 {
                if !self.say(text).await {
                    return "gone";
                }
                sent = seq;
                kept.channel.sent.send_replace(seq);
            }
            tokio::select! {
                _ = news.changed() => {}
                message = self.socket.recv() => {
                    heard = Instant::now();
                    match message {
                        Some(Ok(Message::Text(text))) => self.hear(&text),
                        Some(Ok(Message::Binary(bytes))) => self.hear(std::str::from_utf8(&bytes).unwrap_or("")),
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                        Some(Ok(Message::Close(_))) => return "bye",
                        Some(Err(_)) | None => return "gone",
                    }
                }
                _ = pings.tick() => {
                    if heard.elapsed() > PING * 3 {
                        return "silent";
                    }
                    kept.touch();
                    if self.socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                        return "gone";
                    }
                }
                () = taken_over(&mut newest, number) => return "another connection took over",
                () = either(kept.gone(), app.ended()) => {
                    let _ = timeout(FAREWELL, self.tell_rest(sent, news)).await;
                    // A daemon that stops deletes its sandboxes.
                    let stops = *app.ending.borrow();
                    return if stops { "the daemon stops" } else { "the sandbox has been deleted" };
                }
            }
        }
    }

    /// How the runs that are going on now ended.
    async fn tell_rest(&mut self, mut sent: u64, mut news: watch::Receiver<u64>) {
        let kept = Arc::clone(&self.kept);
        loop {
            news.borrow_and_update();
            let none_goes_on = kept.channel.lock().runs.is_empty();
            for (seq, text) in kept.channel.after(sent).0 {
                if !self.say(text).await {
                    return;
                }
                sent = seq;
                kept.channel.sent.send_replace(seq);
            }
            if none_goes_on || news.changed().await.is_err() {
                return;
            }
        }
    }

    async fn say(&mut self, text: Utf8Bytes) -> bool {
        self.socket.send(Message::Text(text)).await.is_ok()
    }

    fn hear(&self, text: &str) {
        let said = from_json::<Said>(text.as_bytes());
        let (run, begins) = match &said {
            Ok(Said::Run { run, .. } | Said::Command { run, .. }) => (run.clone(), true),
            Ok(
                Said::Answer { run, .. }
                | Said::Stdin { run, .. }
                | Said::Interrupt { run: Some(run) },
            ) => (run.clone(), false),
            Ok(Said::Interrupt { run: None }) => (String::new(), false),
            Err(_) => (wanted(text), true),
        };
        let named = said.is_err() || run.is_empty() || check_name(&run).is_ok();
        let checked = if named { said } else { Err(nameless(&run)) };
        let Err(error) = checked.and_then(|said| self.obey(said)) else {
            return;
        };
        // What comes back is no longer than a name may be, however long what came was.
        let run = if check_name(&run).is_ok() { &run } else { "" };
        // A run that goes on is not over because something was said to it that is refused.
        let is_over = begins && !self.kept.channel.lock().runs.contains_key(run);
        let mut data = json!(ErrorBody::new(&error, ""));
        data["time"] = clock::now().into();
        let event = Event {
            seq: 0,
            name: if is_over { "error" } else { "refused" },
            data,
            more: None,
            ticket: None,
        };
        self.kept.channel.push(run, event);
    }

    fn obey(&self, said: Said) -> Result<(), Error> {
        self.kept.touch();
        match said {
            Said::Run {
                run,
                request,
                live_stdin,
            } => self.start(run, Work::Code(request), live_stdin),
            Said::Command { run, request } => self.start(run, Work::Command(request), false),
            Said::Answer {
                run,
                call,
                value,
                error,
            } => {
                // A late answer must not become that of a later run's call with the same number.
                self.check_going(&run)?;
                Answer { call, value, error }.give(&self.kept.session);
                Ok(())
            }
            Said::Stdin { run, data, end } => self.feed(&run, data, end),
            Said::Interrupt { run: Some(run) } => {
                let stopped = self.kept.names.stop(&run);
                // One that is over needs no more, and its end is yet to be told.
                let is_known = self.kept.channel.lock().runs.contains_key(&run);
                if is_known { Ok(()) } else { stopped }
            }
            Said::Interrupt { run: None } => {
                self.kept.session.interrupt();
                Ok(())
            }
        }
    }

    fn start(&self, run: String, work: Work, live_stdin: bool) -> Result<(), Error> {
        // Until what it ended with is in the log, the name is its.
        if self.kept.channel.lock().runs.contains_key(&run) {
            return Err(name_taken());
        }
        let asked = Asked::new(Arc::clone(&self.kept), Some(run.clone()))?;
        let (input, stdin) = if live_stdin {
            let (input, stdin) = input::live();
            (Some(input), Some(stdin))
        } else {
            (None, None)
        };
        self.kept.channel.lock().runs.insert(run.clone(), input);
        let (app, tenant) = (Arc::clone(&self.app), self.tenant.clone());
        let kept = Arc::clone(&self.kept);
        let outbox = Outbox::default();
        tokio::spawn(pump(kept, run, outbox.clone()));
        tokio::spawn(async move {
            let done = match Turn::new(&app, &tenant, asked, work).await {
                Ok(turn) => Box::pin(turn.carry_out(app, stdin, Some(outbox.clone()), None)).await,
                Err(error) => Err(error),
            };
            answer::last(&outbox, done, "").await;
        });
        Ok(())
    }

    /// One whose result has not been told may be over.
    fn check_going(&self, run: &str) -> Result<(), Error> {
        if self.kept.channel.lock().runs.contains_key(run) && self.kept.names.has(run) {
            return Ok(());
        }
        Err(no_such_run(run))
    }

    fn feed(&self, run: &str, data: Option<Content>, end: bool) -> Result<(), Error> {
        self.check_going(run)?;
        let mut log = self.kept.channel.lock();
        let input = log.runs.get_mut(run).ok_or_else(|| no_such_run(run))?;
        match (&input, data) {
            (Some(input), Some(data)) => input.give(data, &self.app.admission)?,
            (None, Some(_)) => {
                return Err(Error::invalid_request(
                    "stdin",
                    run,
                    "ask for the run with live_stdin, and send nothing after its end",
                ));
            }
            (_, None) => {}
        }
        if end {
            *input = None;
        }
        Ok(())
    }
}

async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

async fn taken_over(newest: &mut watch::Receiver<u64>, number: u64) {
    let _ = newest.wait_for(|newest| *newest != number).await;
}

/// From one run's outbox into the log. Of a sandbox that is gone, nothing but how its runs ended is of interest.
async fn pump(kept: Arc<Kept>, run: String, outbox: Outbox) {
    while let Some(event) = outbox.next().await {
        let is_last = LAST.contains(&event.name);
        tokio::select! {
            () = kept.channel.room() => {}
            () = kept.gone() => if !is_last { continue },
        }
        kept.channel.push(&run, event);
    }
    // Where there was no last event, it is over all the same.
    kept.channel.lock().runs.remove(&run);
}

fn nameless(run: &str) -> Error {
    check_name(run).err().unwrap_or_else(|| no_such_run(run))
}
