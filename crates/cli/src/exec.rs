//! `belljar exec`: a command, or code, in a sandbox of the daemon.

use std::fmt;
use std::io::{self, BufRead, IsTerminal, Read};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_spec::{Content, RunResult, exit_code_for};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::args::ExecArgs;
use crate::client::{CARRIED_BYTES, Client, carried, encoded};
use crate::remote::{bytes_of, meant, print_json};
use crate::run::{nothing_on_stdin, remark};
use crate::seat;
use crate::terminal::{Lost, Output, has_left, note};

/// As shells show that a program wrote to a pipe that nobody reads.
const ENDED_BY_SIGPIPE: u8 = 128 + 13;

/// Whoever read the command's output has gone, as after `| head -1`.
#[derive(Debug)]
struct NobodyReads;

impl fmt::Display for NobodyReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

/// How long the first byte of standard input, or its end, may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn exec(args: &ExecArgs) -> Result<u8> {
    let client = Client::from_env()?;
    let id = encoded(&meant(&client, &args.id).await?);
    if args.terminal {
        let words = serde_json::to_string(&args.command)?;
        let words = (!args.command.is_empty()).then_some(words.as_str());
        return seat::sit(&client, &id, words).await;
    }
    let (what, mut body) = match &args.code {
        Some(code) => ("runs", json!({ "code": code })),
        None => ("commands", json!({ "argv": args.command })),
    };
    for (limit, given) in [
        ("timeout_ms", &args.timeout),
        ("output_bytes", &args.max_output),
    ] {
        if let Some(given) = given {
            body["limits"][limit] = json!(given);
        }
    }
    if let Some(content) = stdin().await? {
        body["stdin"] = serde_json::to_value(content)?;
    }
    let (mut stdout, mut stderr) = (Output::new(io::stdout()), Output::new(io::stderr()));
    let (mut ended, mut lost) = (None, Lost::default());
    let each = |name: &str, data: Value| {
        match name {
            "stdout" if !args.json => {
                let written = stdout.write(&bytes_of(&data));
                if has_left(&written) {
                    return Err(anyhow::Error::msg(NobodyReads));
                }
                lost.see(written);
            }
            "stderr" if !args.json => lost.see(stderr.write(&bytes_of(&data))),
            "result" => ended = Some(serde_json::from_value::<RunResult>(data["result"].clone())?),
            "error" => bail!(
                "{}",
                data["error"]["message"].as_str().unwrap_or("it failed")
            ),
            _ => {}
        }
        Ok(())
    };
    // Attended: signals keep their defaults, and whatever ends this process ends what it asked for.
    let path = format!("/v1/sandboxes/{id}/{what}?attended=true");
    match client.events(&path, &body, each).await {
        Err(error) if error.is::<NobodyReads>() => return Ok(ENDED_BY_SIGPIPE),
        other => other?,
    }
    let result = ended.context("the daemon ended before the command did")?;
    if args.json {
        print_json(&result)?;
        return Ok(exit_code_for(&result));
    }
    if let Some(value) = &result.value_text {
        lost.see(stdout.write(format!("{value}\n").as_bytes()));
    }
    drop((stdout, stderr));
    remark(&result);
    lost.tell()?;
    Ok(exit_code_for(&result))
}

/// All that a pipe or a file has for it. A request carries it as a whole, so nothing begins before its end. A pipe that
/// somebody holds open and says nothing on is none: scripts and other programs often leave one behind.
async fn stdin() -> Result<Option<Content>> {
    if io::stdin().is_terminal() || nothing_on_stdin() {
        return Ok(None);
    }
    let (first, mut begun) = oneshot::channel();
    let (sender, all) = oneshot::channel();
    // A thread of its own, which nothing has to wait for: a read cannot be given up.
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let there = stdin.fill_buf().map(drop);
        let _ = first.send(());
        let mut bytes = Vec::new();
        let most = CARRIED_BYTES as u64 + 1;
        let read = there.and_then(|()| stdin.take(most).read_to_end(&mut bytes));
        let _ = sender.send(read.map(|_| bytes));
    });
    if timeout(PATIENCE, &mut begun).await.is_err() {
        note("nothing came on standard input, so the command has none");
        return Ok(None);
    }
    let bytes = all.await?.context("cannot read standard input")?;
    if bytes.len() > CARRIED_BYTES {
        bail!(
            "standard input has more than {} MiB; copy it into the sandbox with belljar cp, and let the command read that file",
            CARRIED_BYTES >> 20
        );
    }
    Ok((!bytes.is_empty()).then(|| carried(bytes)))
}
