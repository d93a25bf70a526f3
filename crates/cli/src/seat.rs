//! `belljar exec -t`: this terminal becomes that of a command in a sandbox.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::thread;

use anyhow::{Context, Result, bail};
use belljar_jail::terminal::{Raw, Window, window};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::client::Client;
use crate::remote::query;

/// Ctrl-D: what a terminal takes for the end of input.
const END_OF_INPUT: u8 = 4;

/// Until the command ends; exits as it does. `argv` is JSON.
pub async fn sit(client: &Client, id: &str, argv: Option<&str>) -> Result<u8> {
    let stdin = io::stdin();
    let size = window(stdin.as_fd()).or_else(|| window(io::stdout().as_fd()));
    let text = |number: fn(Window) -> u16| size.map(|size| number(size).to_string());
    let query = query(&[
        ("argv", argv),
        ("term", std::env::var("TERM").ok().as_deref()),
        ("rows", text(|size| size.rows).as_deref()),
        ("cols", text(|size| size.cols).as_deref()),
    ]);
    let path = format!("/v1/sandboxes/{id}/terminal{query}");
    let mut socket = client.socket(&path).await?;
    // Only for a person: a pipe stays what it is.
    let _raw = Raw::enter(stdin.as_fd()).ok();
    let mut typed = keys();
    let mut resized = signal(SignalKind::window_change())?;
    let mut out = io::stdout();
    loop {
        tokio::select! {
            Some(bytes) = typed.recv() => socket.send(Message::binary(bytes)).await?,
            _ = resized.recv() => if let Some(Window { rows, cols }) = window(stdin.as_fd()) {
                let message = json!({ "type": "resize", "rows": rows, "cols": cols });
                socket.send(Message::text(message.to_string())).await?;
            },
            message = socket.next() => match message.context("the connection broke")?? {
                Message::Binary(bytes) => {
                    out.write_all(&bytes)?;
                    out.flush()?;
                }
                Message::Text(text) => return ended(&serde_json::from_str(&text)?),
                Message::Close(_) => bail!("the daemon closed the connection"),
                _ => {}
            },
        }
    }
}

/// What is typed. The thread stays behind in its last read; it ends with the process.
fn keys() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let (bytes, last) = match io::stdin().read(&mut buffer) {
                Ok(0) | Err(_) => (vec![END_OF_INPUT], true),
                Ok(count) => (buffer[..count].to_vec(), false),
            };
            if sender.blocking_send(bytes).is_err() || last {
                return;
            }
        }
    });
    receiver
}

fn ended(last: &Value) -> Result<u8> {
    if last["type"] != "exit" {
        let reason = last["error"]["message"].as_str();
        bail!("{}", reason.unwrap_or("the terminal was closed"));
    }
    let code = match (last["exit_code"].as_u64(), last["signal"].as_u64()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 125,
    };
    Ok(u8::try_from(code).unwrap_or(125))
}
