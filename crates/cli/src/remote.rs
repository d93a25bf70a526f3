//! Commands that speak to the daemon: `ps`, `new`, `rm`, `exec`, `history`, `show`.

use std::collections::BTreeMap;
use std::io;

use anyhow::{Context, Result, bail};
use belljar_server::{Debug, Page, Record, Sandbox, SandboxList};
use belljar_spec::{Amount, Network, RunResult, Unit, exit_code_for};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{ExecArgs, HistoryArgs, NewArgs, PsArgs, RemoveArgs, ShowArgs};
use crate::client::{Client, encoded};
use crate::run::environment;
use crate::seat;
use crate::terminal::{Output, table};

/// Runs one of these to its end.
pub fn wait(work: impl Future<Output = Result<u8>>) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Text of strangers goes through the filter of the terminal.
fn print(text: &str) -> Result<()> {
    Ok(Output::new(io::stdout()).write(text.as_bytes())?)
}

pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// How long ago a moment was, for people.
fn ago(moment: &str) -> String {
    let Some(then) = belljar_server::parse_time(moment) else {
        return moment.to_owned();
    };
    let seconds = belljar::clock::now_millis().saturating_sub(then) / 1000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// A time of milliseconds, for people.
fn length(millis: f64) -> String {
    if millis < 10_000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.0} s", millis / 1000.0)
    }
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join(" ")
}

pub fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let given: Vec<_> = pairs
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))))
        .collect();
    if given.is_empty() {
        String::new()
    } else {
        format!("?{}", given.join("&"))
    }
}

pub async fn ps(args: &PsArgs) -> Result<u8> {
    let query = query(&[
        ("label", args.label.as_deref()),
        ("name", args.name.as_deref()),
        ("language", args.language.as_deref()),
    ]);
    let list: SandboxList = Client::from_env()?
        .get(&format!("/v1/sandboxes{query}"))
        .await?;
    if args.json {
        print_json(&list.sandboxes)?;
        return Ok(0);
    }
    let row = |sandbox: &Sandbox| {
        vec![
            sandbox.id.to_string(),
            sandbox.name.clone().unwrap_or_default(),
            sandbox.runtime.clone(),
            if sandbox.busy { "busy" } else { "idle" }.to_owned(),
            sandbox.runs.to_string(),
            ago(&sandbox.last_used_at),
            labels(&sandbox.labels),
        ]
    };
    let rows: Vec<_> = list.sandboxes.iter().map(row).collect();
    print(&table(
        &[
            "ID",
            "NAME",
            "RUNTIME",
            "STATE",
            "RUNS",
            "LAST USED",
            "LABELS",
        ],
        &rows,
    ))?;
    Ok(0)
}

pub async fn new(args: &NewArgs) -> Result<u8> {
    let mut request = Map::new();
    for (field, value) in [
        ("language", &args.language),
        ("template", &args.template),
        ("image", &args.image),
        ("name", &args.name),
    ] {
        if let Some(value) = value {
            request.insert(field.into(), value.clone().into());
        }
    }
    request.insert("limits".into(), serde_json::to_value(&args.limits.0)?);
    request.insert("env".into(), json!(environment(&args.env)?));
    request.insert("labels".into(), json!(environment(&args.labels)?));
    if let Some(network) = &args.network {
        let network: Network = network.parse()?;
        request.insert("network".into(), serde_json::to_value(network)?);
    }
    for (field, given) in [
        ("idle_timeout_ms", &args.idle_timeout),
        ("lifetime_ms", &args.lifetime),
    ] {
        if let Some(text) = given {
            let millis = Amount::Text(text.clone()).value(Unit::Milliseconds);
            let millis = millis.with_context(|| format!("{text}: give a time like 10m"))?;
            request.insert(field.into(), millis.into());
        }
    }
    if let Some(imports) = &args.imports {
        request.insert("imports".into(), json!(imports));
    }
    if !args.volumes.is_empty() {
        request.insert("volumes".into(), json!(args.volumes));
    }
    if !args.packages.is_empty() {
        request.insert("packages".into(), json!(args.packages));
    }
    let body = Value::Object(request);
    let made: Sandbox = Client::from_env()?.post("/v1/sandboxes", &body).await?;
    if args.json {
        print_json(&made)?;
    } else {
        println!("{}", made.id);
    }
    Ok(0)
}

pub async fn rm(args: &RemoveArgs) -> Result<u8> {
    let client = Client::from_env()?;
    for id in &args.ids {
        client
            .delete(&format!("/v1/sandboxes/{}", encoded(id)))
            .await?;
    }
    if args.json {
        print_json(&json!({ "removed": args.ids }))?;
    }
    Ok(0)
}

pub async fn exec(args: &ExecArgs) -> Result<u8> {
    let id = encoded(&args.id);
    if args.terminal {
        let words = serde_json::to_string(&args.command)?;
        let words = (!args.command.is_empty()).then_some(words.as_str());
        return seat::sit(&Client::from_env()?, &id, words).await;
    }
    let (path, mut body) = match &args.code {
        Some(code) => (format!("/v1/sandboxes/{id}/runs"), json!({ "code": code })),
        None => (
            format!("/v1/sandboxes/{id}/commands"),
            json!({ "argv": args.command }),
        ),
    };
    if let Some(timeout) = &args.timeout {
        body["limits"] = json!({ "timeout_ms": timeout });
    }
    let (mut stdout, mut stderr) = (Output::new(io::stdout()), Output::new(io::stderr()));
    let mut ended = None;
    let each = |name: &str, data: Value| {
        match name {
            "stdout" if !args.json => drop(stdout.write(&bytes_of(&data))),
            "stderr" if !args.json => drop(stderr.write(&bytes_of(&data))),
            "result" => ended = Some(serde_json::from_value::<RunResult>(data["result"].clone())?),
            "error" => bail!(
                "{}",
                data["error"]["message"].as_str().unwrap_or("it failed")
            ),
            _ => {}
        }
        Ok(())
    };
    Client::from_env()?.events(&path, &body, each).await?;
    let result = ended.context("the daemon ended before the command did")?;
    if args.json {
        print_json(&result)?;
    } else if let Some(value) = &result.value_text {
        stdout.write(format!("{value}\n").as_bytes())?;
    }
    Ok(exit_code_for(&result))
}

pub fn bytes_of(data: &Value) -> Vec<u8> {
    use base64::Engine as _;
    let raw = data["base64"]
        .as_str()
        .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    raw.unwrap_or_else(|| data["text"].as_str().unwrap_or("").as_bytes().to_vec())
}

pub async fn history(args: &HistoryArgs) -> Result<u8> {
    let query = query(&[
        (
            "limit",
            args.limit.map(|limit| limit.to_string()).as_deref(),
        ),
        ("status", args.status.as_deref()),
        ("language", args.language.as_deref()),
        ("since", args.since.as_deref()),
        ("label", args.label.as_deref()),
        ("text", args.text.as_deref()),
        ("sandbox", args.sandbox.as_deref()),
    ]);
    let page: Page = Client::from_env()?.get(&format!("/v1/runs{query}")).await?;
    if args.json {
        print_json(&page.runs)?;
        return Ok(0);
    }
    let rows: Vec<_> = page
        .runs
        .iter()
        .map(|run| {
            let first_line =
                |text: &String| text.lines().next().unwrap_or("").chars().take(60).collect();
            vec![
                run.id.to_string(),
                ago(&run.started_at),
                run.language.clone(),
                belljar_server::status_name(run.status),
                run.wall_ms.map(length).unwrap_or_default(),
                run.error.as_ref().map(first_line).unwrap_or_default(),
            ]
        })
        .collect();
    print(&table(
        &["RUN", "STARTED", "LANGUAGE", "STATUS", "TIME", "ERROR"],
        &rows,
    ))?;
    Ok(0)
}

pub async fn show(args: &ShowArgs) -> Result<u8> {
    let client = Client::from_env()?;
    let path = format!("/v1/runs/{}", encoded(&args.run));
    if args.json {
        let record: Record = client.get(&path).await?;
        print_json(&record)?;
    } else {
        let debug: Debug = client.get(&format!("{path}/debug")).await?;
        print(&debug.text)?;
    }
    Ok(0)
}
