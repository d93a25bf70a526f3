//! `belljar serve`: settings, sockets and signals around the daemon.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar::doctor::Examination;
use belljar::{Engine, Starting, scope};
use belljar_server::{App, Config, Listeners, State};
use belljar_spec::{Amount, Error, Unit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

use crate::args::ServeArgs;
use crate::run::EarlyKeeper;
use crate::terminal::say;

/// Where the daemon keeps its history, token and socket.
pub fn state_directory() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("BELLJAR_STATE_DIR") {
        return Ok(named.into());
    }
    if belljar_jail::host::is_root() {
        return Ok("/var/lib/belljar".into());
    }
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Ok(state
        .context("set BELLJAR_STATE_DIR, or HOME")?
        .join("belljar"))
}

pub fn serve(args: &ServeArgs, keeper: Option<EarlyKeeper>) -> Result<u8> {
    let config = settings(args)?;
    let level = log_level()?;
    if args.check_config {
        belljar_server::acceptor(&config.tls)?;
        say("the settings are fine")?;
        return Ok(0);
    }
    let starting = keeper.unwrap_or_else(|| {
        scope::enter_if_needed();
        Engine::start()
    })?;
    belljar_jail::gather_code();
    let state = State::open(&state_directory()?)?;
    let examination = Examination::begin();
    belljar_jail::host::raise_open_files();
    start_log(level);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build()?;
    let done = runtime.block_on(daemon(config, state, starting, examination));
    runtime.shutdown_background();
    done.map(|()| 0)
}

/// Half of the cores: the others are for what runs in the sandboxes, and a thread that is woken to look for work that another has begun
/// takes longer to wake than a short run does.
fn workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

/// The file, then the environment, then the flags.
fn settings(args: &ServeArgs) -> Result<Config> {
    let named = args
        .config
        .clone()
        .or_else(|| std::env::var_os("BELLJAR_CONFIG").map(PathBuf::from));
    let mut config = match &named {
        Some(path) => Config::parse(&read(path)?, &path.to_string_lossy())?,
        None => Config::default(),
    };
    for (setting, variable, flag) in [
        (&mut config.listen, "BELLJAR_LISTEN", &args.listen),
        (&mut config.unix, "BELLJAR_UNIX", &args.unix),
    ] {
        if let Some(value) = flag.clone().or_else(|| std::env::var(variable).ok()) {
            *setting = value;
        }
    }
    if let Some(text) = &args.idle_exit {
        let time = match text.as_str() {
            // As in the settings.
            "0s" => Some(0),
            text => Amount::from(text).value(Unit::Milliseconds),
        };
        config.idle_exit = time.map(Duration::from_millis).ok_or_else(|| {
            let accepted = "give a time with a unit, like 10m, or 0s for never";
            Error::invalid_request("--idle-exit", text, accepted)
        })?;
    }
    let address = config.address().map_err(anyhow::Error::msg)?;
    let chosen = belljar_server::given_token()?.is_some() || !config.tenants.is_empty();
    if let Some(address) = address
        && !address.ip().is_loopback()
        && !chosen
    {
        bail!(
            "listen: {address} can be reached from other machines; set BELLJAR_TOKEN, or give tenants keys, before listening there"
        );
    }
    if address.is_none() && config.unix.is_empty() {
        bail!("there is nowhere to listen: set listen or unix");
    }
    Ok(config)
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path)
        .map_err(|error| Error::invalid_file("config", &path.to_string_lossy(), error.to_string()))
}

fn log_level() -> Result<LevelFilter, Error> {
    let Some(given) = std::env::var_os("BELLJAR_LOG") else {
        return Ok(LevelFilter::INFO);
    };
    match given.to_str() {
        Some("error") => Ok(LevelFilter::ERROR),
        Some("warn") => Ok(LevelFilter::WARN),
        Some("info" | "") => Ok(LevelFilter::INFO),
        Some("debug") => Ok(LevelFilter::DEBUG),
        Some("off") => Ok(LevelFilter::OFF),
        _ => Err(Error::invalid_request(
            "BELLJAR_LOG",
            &given.to_string_lossy(),
            "give error, warn, info, debug or off",
        )),
    }
}

/// Lines for people on a terminal, JSON elsewhere, both on stderr.
fn start_log(level: LevelFilter) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(false)
        // It would say so on stderr, which has just failed, and end the daemon by that: a full disk is no reason to.
        .log_internal_errors(false);
    if io::stderr().is_terminal() {
        lines.compact().init();
    } else {
        lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .init();
    }
}

async fn daemon(
    config: Config,
    state: State,
    starting: Starting,
    examination: Examination,
) -> Result<()> {
    let engine = starting.finish()?;
    engine.set_packages(
        config
            .packages
            .settings(state_directory()?.join("packages")),
    );
    engine.set_outside(&config.network.outside().map_err(anyhow::Error::msg)?);
    let tls = belljar_server::acceptor(&config.tls)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut listeners = Listeners::default();
    let mut addresses = Vec::new();
    if let Some(address) = config.address().map_err(anyhow::Error::msg)? {
        let listener = belljar_server::bind_tcp(address)
            .with_context(|| format!("cannot listen on {address}"))?;
        addresses.push(format!("{scheme}://{}", listener.local_addr()?));
        listeners.tcp = Some((listener, tls));
    }
    let socket = state.socket(&config);
    if let Some(path) = &socket {
        listeners.unix = Some(belljar_server::bind_unix(path)?);
        addresses.push(format!("unix://{}", path.display()));
    }
    let held = state.hold();
    let first_start =
        belljar_server::given_token()?.is_none() && !state.path.join("token").exists();
    let (app, token) = App::open(config, state, engine, examination).await?;
    // Before anybody is told where it listens: who knows that may also end it.
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // Whether or not anybody reads it.
    let _ = say(format_args!(
        "belljar listens on {}",
        addresses.join(" and ")
    ));
    // A log that keeps standard output must not keep the token, so it is shown once, or to a person.
    if let Some(url) = addresses.first().filter(|url| url.starts_with("http"))
        && (first_start || io::stdout().is_terminal())
    {
        let _ = say(format_args!("open {url}/#token={token}"));
    }
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let served = belljar_server::run(app, listeners, stop).await;
    if let Some(path) = socket {
        let _ = fs::remove_file(path);
    }
    // Only now: the next one's socket must not be taken for ours.
    drop(held);
    Ok(served?)
}

/// `belljar key`: a secret for a tenant, and what the settings keep of it.
pub fn new_key() -> Result<u8> {
    let secret = belljar_server::new_secret()?;
    let digest = belljar_server::Digest::of(&secret);
    say(format_args!("{secret}\nkeys = [\"{digest}\"]"))?;
    Ok(0)
}
