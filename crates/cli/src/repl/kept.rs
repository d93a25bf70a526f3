//! A sandbox that the daemon keeps, and that others may be using too.

use std::cell::Cell;
use std::io;

use anyhow::{Context, Result, bail};
use belljar_server::Sandbox;
use belljar_spec::{Display, RunResult};
use futures_util::{SinkExt, StreamExt};
use hyper::Method;
use serde_json::{Value, json};
use tokio::net::unix::pipe::Receiver;
use tokio_tungstenite::tungstenite::Message;

use super::screen::{Terminal, keyboard};
use crate::client::{Client, encoded, whole};
use crate::remote::bytes_of;
use crate::terminal::{Lost, Output, note};

pub struct InDaemon {
    client: Client,
    sandbox: Sandbox,
    runs: Cell<u64>,
}

/// What became of an input, as the events tell.
struct Heard<'a> {
    terminal: &'a mut Terminal,
    stdout: Output<io::Stdout>,
    stderr: Output<io::Stderr>,
    lost: Lost,
    result: Option<Box<RunResult>>,
}

impl Heard<'_> {
    fn event(&mut self, name: &str, data: &Value) -> Result<()> {
        match name {
            "stdout" => self.lost.see(self.stdout.write(&bytes_of(data))),
            "stderr" => self.lost.see(self.stderr.write(&bytes_of(data))),
            "display" => {
                let display: Display = serde_json::from_value(data["display"].clone())?;
                self.terminal.show(&display);
            }
            "result" => self.result = Some(serde_json::from_value(data["result"].clone())?),
            "error" => bail!(
                "{}",
                data["error"]["message"].as_str().unwrap_or("it failed")
            ),
            _ => {}
        }
        Ok(())
    }
}

impl InDaemon {
    pub async fn find(id: &str) -> Result<Self> {
        let client = Client::from_env()?;
        let sandbox = client
            .get(&format!("/v1/sandboxes/{}", encoded(id)))
            .await?;
        Ok(Self {
            client,
            sandbox,
            runs: Cell::new(0),
        })
    }

    pub fn language(&self) -> (&str, &str) {
        (&self.sandbox.language, &self.sandbox.runtime)
    }

    pub fn keeps_state(&self) -> bool {
        self.sandbox.keeps_state
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.sandbox.id)
    }

    pub async fn run(&self, code: &str, terminal: &mut Terminal) -> Result<()> {
        self.runs.set(self.runs.get() + 1);
        let name = format!("repl-{}-{}", std::process::id(), self.runs.get());
        // Only Python's interpreter reads while it runs.
        let reads = terminal.is_read_by(code) && self.sandbox.language == "python";
        let typed = reads.then(keyboard).and_then(Result::ok);
        let mut heard = Heard {
            terminal,
            stdout: Output::new(io::stdout()),
            stderr: Output::new(io::stderr()),
            lost: Lost::default(),
            result: None,
        };
        let ended = {
            let running = async {
                if let Some(typed) = typed {
                    return self.converse(&name, code, typed, &mut heard).await;
                }
                let path = self.path(&format!("/runs?run={name}"));
                let each = |name: &str, data: Value| heard.event(name, &data);
                let body = json!({ "code": code });
                self.client.events(&path, &body, each).await
            };
            let mut running = std::pin::pin!(running);
            loop {
                tokio::select! {
                    ended = &mut running => break ended,
                    pressed = tokio::signal::ctrl_c() => {
                        pressed?;
                        let path = self.path(&format!("/interrupt?run={name}"));
                        // It may have ended meanwhile.
                        let _ = self.client.ask(Method::POST, &path, &[], whole("")).await;
                    }
                }
            }
        };
        let Heard {
            terminal,
            stdout,
            stderr,
            lost,
            result,
        } = heard;
        drop((stdout, stderr));
        match (ended, result) {
            (Ok(()), Some(result)) => terminal.tell(&result)?,
            (Ok(()), None) => bail!("the daemon ended before the code did"),
            // Of this input; the next may do better, if there is still a sandbox.
            (Err(error), _) => {
                note(format_args!("{error:#}"));
                let _: Sandbox = self.client.get(&self.path("")).await?;
            }
        }
        lost.tell()
    }

    /// Over the channel, where code can read what is typed. Whoever had the channel before loses it, so it is not used otherwise.
    async fn converse(
        &self,
        name: &str,
        code: &str,
        typed: Receiver,
        heard: &mut Heard<'_>,
    ) -> Result<()> {
        let mut socket = self.client.socket(&self.path("/channel")).await?;
        let run =
            json!({ "op": "run", "run": name, "request": { "code": code }, "live_stdin": true });
        socket.send(Message::text(run.to_string())).await?;
        let mut buffer = vec![0; 4096];
        let mut open = true;
        while heard.result.is_none() {
            tokio::select! {
                ready = typed.readable(), if open => {
                    ready?;
                    let line = match typed.try_read(&mut buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                        // Ctrl-D.
                        Ok(0) | Err(_) => {
                            open = false;
                            json!({ "op": "stdin", "run": name, "end": true })
                        }
                        Ok(count) => {
                            let text = String::from_utf8_lossy(&buffer[..count]);
                            json!({ "op": "stdin", "run": name, "data": text })
                        }
                    };
                    socket.send(Message::text(line.to_string())).await?;
                }
                message = socket.next() => match message.context("the connection broke")?? {
                    Message::Text(text) => {
                        let said: Value = serde_json::from_str(&text)?;
                        if said["run"] == name {
                            heard.event(said["event"].as_str().unwrap_or_default(), &said)?;
                        }
                    }
                    Message::Close(_) => bail!("the daemon closed the connection"),
                    _ => {}
                },
            }
        }
        let _ = socket.close(None).await;
        Ok(())
    }

    pub async fn reset(&self) -> Result<()> {
        let _: Sandbox = self.client.post(&self.path("/reset"), &json!({})).await?;
        Ok(())
    }

    pub async fn list_files(&self) -> Result<()> {
        let request = json!({ "shell": "ls -la" });
        let result: RunResult = self.client.post(&self.path("/commands"), &request).await?;
        Ok(Output::new(io::stdout()).write(result.stdout.as_bytes())?)
    }
}
