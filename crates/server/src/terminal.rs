//! `/v1/sandboxes/{id}/terminal`: a WebSocket that is a terminal.
//!
//! Binary messages are what was typed and what was drawn. A program that draws faster than the client reads waits, as at any
//! terminal; so does a client that types faster than the program reads. Neither keeps the other direction from going on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use belljar::{Screen, Terminal, Window};
use belljar_spec::{CommandRequest, Error, RunResult, SandboxId};
use bytes::Bytes;
use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval};
use utoipa::IntoParams;

use crate::app::Shared;
use crate::asked::Asked;
use crate::channel::{PING, accept, farewell};
use crate::failure::{ErrorBody, Failure, Id};
use crate::guard::Caller;
use crate::kept::Kept;
use crate::params::Params;
use crate::remains::{End, remains};
use crate::sandboxes::deleted;
use crate::turn::{Turn, Work};

const MESSAGE_BYTES: usize = 64 << 10;
/// Drawn bytes that travel in one message.
const CHUNK: usize = 16 << 10;
/// Typed messages that the program has not read yet. More are not taken from the client.
const TYPED_MESSAGES: usize = 16;
/// What is still shown after the command has ended, however much those write that it left behind.
const MOST_LEFT: usize = 1 << 20;
/// Whatever shell the sandbox has.
const SHELL: &str = "command -v bash >/dev/null && exec bash; exec sh";

/// What runs at the terminal, and how large that is.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Seat {
    /// A line for the sandbox's shell. By default, that shell itself.
    pub shell: Option<String>,
    /// Words instead, as a JSON list of texts.
    pub argv: Option<String>,
    /// The workspace if absent.
    pub cwd: Option<String>,
    /// What the client's terminal understands; `xterm-256color` if absent.
    pub term: Option<String>,
    /// 24 if absent.
    #[param(minimum = 1)]
    pub rows: Option<u16>,
    /// 80 if absent.
    #[param(minimum = 1)]
    pub cols: Option<u16>,
}

impl Seat {
    fn command(&self) -> Result<CommandRequest, Error> {
        let argv: Option<Vec<String>> = match &self.argv {
            None => None,
            Some(text) => Some(serde_json::from_str(text).map_err(|_| {
                Error::invalid_request("argv", text, "give a JSON list of texts, like [\"ls\"]")
            })?),
        };
        let default = argv.is_none().then(|| SHELL.to_owned());
        let term = self.term.as_deref().unwrap_or("xterm-256color");
        let command = CommandRequest {
            shell: self.shell.clone().or(default),
            argv,
            cwd: self.cwd.clone(),
            env: BTreeMap::from([("TERM".to_owned(), term.to_owned())]),
            ..CommandRequest::default()
        };
        command.check()?;
        Ok(command)
    }

    fn window(&self) -> Result<Window, Error> {
        window(self.rows.unwrap_or(24), self.cols.unwrap_or(80))
    }
}

fn window(rows: u16, cols: u16) -> Result<Window, Error> {
    if rows == 0 || cols == 0 {
        let given = format!("{rows} and {cols}");
        return Err(Error::invalid_request(
            "rows and cols",
            &given,
            "give at least 1",
        ));
    }
    Ok(Window { rows, cols })
}

/// What a client says besides what is typed.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    Resize { rows: u16, cols: u16 },
}

/// A WebSocket that is a terminal
#[utoipa::path(get, path = "/v1/sandboxes/{id}/terminal", tag = "sandboxes", params(("id" = SandboxId, Path), Seat),
    responses((status = 101, description = "A WebSocket; docs/http.md has its messages"), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn open(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    seat: Result<Params<Seat>, Failure>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let Params(seat) = seat?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    let (command, window) = (seat.command()?, seat.window()?);
    let upgrade = accept(upgrade, MESSAGE_BYTES)?;
    let asked = Asked::new(Arc::clone(&kept), None)?;
    // Before the answer: overload is told as such, and nothing was started.
    let turn = Turn::new(&app, &tenant, asked, Work::Terminal(command)).await?;
    Ok(upgrade.on_upgrade(move |socket| async move {
        let sitting = Sitting { app, kept, turn };
        Box::pin(sitting.attend(socket, window)).await;
    }))
}

struct Sitting {
    app: Shared,
    kept: Arc<Kept>,
    turn: Turn,
}

impl Sitting {
    async fn attend(self, mut socket: WebSocket, window: Window) {
        let Self { app, kept, turn } = self;
        let Work::Terminal(command) = turn.work() else {
            return;
        };
        let opened = tokio::select! {
            opened = kept.session.terminal(command, window) => opened,
            () = kept.gone() => Err(deleted()),
        };
        app.metrics.terminals.inc();
        let ended = match opened {
            Ok(mut terminal) => {
                let sitting = async {
                    match converse(&kept, &mut terminal, &mut socket).await {
                        Left::Program(result) => *result,
                        Left::Client => terminal.hang_up().await,
                    }
                };
                let ended = tokio::select! {
                    ended = sitting => Some(ended),
                    () = kept.gone() => None,
                    () = app.ended() => None,
                };
                match ended {
                    Some(ended) => End::Itself(ended),
                    None => End::FromOutside(remains(&app, terminal.end()).await),
                }
            }
            Err(error) => End::Itself(Err(error)),
        };
        let finished = turn.finish(&app, ended).await;
        app.metrics.terminals.dec();
        // A program that could not be started is told here: the upgrade has been answered already.
        let last = match finished {
            Ok((result, _)) => {
                json!({ "type": "exit", "exit_code": result.exit_code, "signal": result.signal,
                "status": result.status, "run": result.id })
            }
            Err(error) => {
                let body = ErrorBody::new(&error, "");
                json!({ "type": "error", "error": body.error })
            }
        };
        let _ = socket.send(Message::Text(last.to_string().into())).await;
        farewell(&mut socket, "bye").await;
    }
}

enum Left {
    Program(Box<Result<RunResult, Error>>),
    /// Nobody sits there any more.
    Client,
}

/// Until the program ends, or the client leaves.
async fn converse(kept: &Kept, terminal: &mut Terminal<'_>, socket: &mut WebSocket) -> Left {
    let (Some(screen), ended) = terminal.parts() else {
        return Left::Client;
    };
    let (mut out, input) = socket.split();
    let heard = Mutex::new(Instant::now());
    let (typed, typing) = mpsc::channel(TYPED_MESSAGES);
    let show = async {
        let mut ended = std::pin::pin!(ended);
        let mut pings = interval(PING);
        let mut buffer = vec![0; CHUNK];
        let mut open = true;
        loop {
            tokio::select! {
                drawn = screen.read(&mut buffer), if open => {
                    let count = drawn.unwrap_or(0);
                    open = count > 0;
                    if open && out.send(drawing(&buffer[..count])).await.is_err() {
                        return Left::Client;
                    }
                }
                result = &mut ended => {
                    for _ in 0..MOST_LEFT / CHUNK {
                        match screen.read_now(&mut buffer) {
                            Ok(count) if count > 0 => {
                                if out.send(drawing(&buffer[..count])).await.is_err() {
                                    break;
                                }
                            }
                            _ => break,
                        }
                    }
                    return Left::Program(Box::new(result));
                }
                _ = pings.tick() => {
                    kept.touch();
                    let silent = lock(&heard).elapsed() > PING * 3;
                    if silent || out.send(Message::Ping(Bytes::new())).await.is_err() {
                        return Left::Client;
                    }
                }
            }
        }
    };
    tokio::select! {
        end = show => end,
        () = hear(input, screen, typed, &heard) => Left::Client,
        () = enter(typing, screen) => Left::Client,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn drawing(bytes: &[u8]) -> Message {
    Message::Binary(Bytes::copy_from_slice(bytes))
}

/// Takes in what the client says, until it leaves.
async fn hear(
    mut input: SplitStream<&mut WebSocket>,
    screen: &Screen,
    typed: mpsc::Sender<Bytes>,
    heard: &Mutex<Instant>,
) {
    while let Some(Ok(message)) = input.next().await {
        *lock(heard) = Instant::now();
        match message {
            Message::Binary(bytes) => {
                if typed.send(bytes).await.is_err() {
                    return;
                }
            }
            Message::Text(text) => {
                // Anything else has no meaning to a terminal, and none that could be answered.
                if let Ok(Said::Resize { rows, cols }) = serde_json::from_str(&text)
                    && let Ok(window) = window(rows, cols)
                {
                    let _ = screen.resize(window);
                }
            }
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) => return,
        }
    }
}

/// Types it, as fast as the program takes it.
async fn enter(mut typing: mpsc::Receiver<Bytes>, screen: &Screen) {
    while let Some(bytes) = typing.recv().await {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match screen.write(rest).await {
                Ok(written) if written > 0 => rest = &rest[written..],
                // Nobody is left who could read it; the program's end is told apart from this.
                _ => return std::future::pending::<()>().await,
            }
        }
    }
    std::future::pending::<()>().await;
}
