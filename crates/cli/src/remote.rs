//! Commands that speak to the daemon: `ps`, `new`, `rm`, `history`, `show`.

use std::collections::BTreeMap;
use std::io::{self, Read};

use anyhow::{Context, Result, bail};
use belljar_server::{Debug, Page, Record, Sandbox, SandboxList};
use belljar_spec::{Amount, Content, Error, Network, SandboxId, Unit, shown};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::EXIT_ERROR;
use crate::args::{HistoryArgs, NewArgs, PsArgs, RemoveArgs, ShowArgs};
use crate::client::{CARRIED_BYTES, Client, carried, encoded};
use crate::run::{backend, environment, given_file};
use crate::terminal::{Output, heard, note, say, table};

/// Runs one of these to its end.
pub fn wait(work: impl Future<Output = Result<u8>>) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Text of strangers goes through the filter of the terminal.
fn print(text: &str) -> Result<()> {
    let written = Output::new(io::stdout()).write(text.as_bytes());
    Ok(heard(written)?)
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
    request.insert("labels".into(), json!(pairs("--label", &args.labels)?));
    if let Some(network) = &args.network {
        let network: Network = network.parse()?;
        request.insert("network".into(), serde_json::to_value(network)?);
    }
    for (field, flag, given) in [
        ("idle_timeout_ms", "--idle-timeout", &args.idle_timeout),
        ("lifetime_ms", "--lifetime", &args.lifetime),
    ] {
        if let Some(text) = given {
            let millis = Amount::Text(text.clone()).value(Unit::Milliseconds);
            let millis = millis.ok_or_else(|| {
                Error::invalid_request(flag, text, "give a time with a unit, like 10m")
            })?;
            request.insert(field.into(), millis.into());
        }
    }
    // What is not asked for stays the template's to say.
    let inside = &args.inside;
    if let Some(imports) = &inside.imports {
        request.insert("imports".into(), json!(imports));
    }
    if !inside.volumes.is_empty() {
        request.insert("volumes".into(), json!(inside.volumes));
    }
    if inside.no_files {
        let none = serde_json::to_value(inside.filesystem())?;
        request.insert("filesystem".into(), none);
    }
    if inside.writable {
        request.insert("read_only".into(), false.into());
    }
    if let Some(given) = &args.backend {
        let backend = serde_json::to_value(backend(given)?)?;
        request.insert("backend".into(), backend);
    }
    if let Some(runs) = args.max_runs {
        request.insert("max_runs".into(), runs.into());
    }
    if !args.files.is_empty() {
        let files = serde_json::to_value(contents(&args.files)?)?;
        request.insert("files".into(), files);
    }
    if !args.packages.is_empty() {
        request.insert("packages".into(), json!(args.packages));
    }
    let body = Value::Object(request);
    let made: Sandbox = Client::from_env()?.post("/v1/sandboxes", &body).await?;
    if args.json {
        print_json(&made)?;
    } else {
        say(made.id)?;
    }
    Ok(0)
}

/// What a flag was given, as `NAME=VALUE`.
fn pairs(flag: &str, given: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Error::invalid_request(flag, text, "give NAME=VALUE")),
    };
    given.iter().map(pair).collect()
}

/// Files of this machine, as a request carries them.
fn contents(given: &[String]) -> Result<BTreeMap<String, Content>> {
    let mut files = BTreeMap::new();
    let mut room = CARRIED_BYTES;
    for text in given {
        let (destination, file) = given_file(text)?;
        let mut bytes = Vec::new();
        let read = file.take(room as u64 + 1).read_to_end(&mut bytes);
        read.with_context(|| format!("cannot read {text}"))?;
        room = room.checked_sub(bytes.len()).with_context(|| {
            let most = CARRIED_BYTES >> 20;
            format!("--file {text}: more than {most} MiB together; make the sandbox without it, then use belljar cp")
        })?;
        files.insert(destination, carried(bytes));
    }
    Ok(files)
}

/// The id of the sandbox that is meant: by its id, or by its name if no other has that.
pub async fn meant(client: &Client, given: &str) -> Result<String> {
    if given.parse::<SandboxId>().is_ok() {
        return Ok(given.to_owned());
    }
    let query = query(&[("name", Some(given))]);
    let list: SandboxList = client.get(&format!("/v1/sandboxes{query}")).await?;
    match list.sandboxes.as_slice() {
        [one] => Ok(one.id.to_string()),
        [] => bail!(
            "no sandbox has the id or the name {}; belljar ps lists those that there are",
            shown(given)
        ),
        several => bail!(
            "{} sandboxes are called {}; give the id of one (belljar ps)",
            several.len(),
            shown(given)
        ),
    }
}

/// All that can be deleted are, whatever is wrong with the others.
pub async fn rm(args: &RemoveArgs) -> Result<u8> {
    let client = Client::from_env()?;
    let mut removed = Vec::new();
    for id in &args.ids {
        let gone = async {
            let path = format!("/v1/sandboxes/{}", encoded(&meant(&client, id).await?));
            client.delete(&path).await
        };
        match gone.await {
            Ok(()) => removed.push(id),
            Err(error) => note(format_args!("cannot delete {id}: {error:#}")),
        }
    }
    if args.json && !removed.is_empty() {
        print_json(&json!({ "removed": removed }))?;
    }
    let all = removed.len() == args.ids.len();
    Ok(if all { 0 } else { EXIT_ERROR })
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
        ("until", args.until.as_deref()),
        ("label", args.label.as_deref()),
        ("text", args.text.as_deref()),
        ("sandbox", args.sandbox.as_deref()),
        ("tenant", args.tenant.as_deref()),
    ]);
    let page: Page = Client::from_env()?.get(&format!("/v1/runs{query}")).await?;
    if page.next.is_some() {
        note("there are more; ask for them with --limit or --until");
    }
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
