//! `belljar run`: from what was typed to a task of the engine, and from its result to an exit status.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use belljar::docker::{Settings, Wish};
use belljar::runtime::{LanguageHint, Manifest, Registry, Toolchain, discover};
use belljar::{
    Engine, InputFile, LeftBehind, OutputDirectory, Outside, PackageSettings, Source, Starting,
    Stdin, Stop, Task, scope,
};
use belljar_jail::host;
use belljar_spec::{
    Allow, Backend, Error, MAX_CODE_BYTES, Network, RunRequest, RunResult, Secret, Stage, Status,
    Weakening, check_destination, code_from_bytes, exit_code_for, shown,
};

use crate::args::{NetworkArgs, RunArgs};
use crate::printer::Printer;
use crate::serve::state_directory;
use crate::terminal::{self, Output, note};

/// A keeper that was started before anything was read, or why there is none.
pub type EarlyKeeper = Result<Starting, Error>;

/// Starts the keeper before anything else: it gets ready on one core while another reads what was typed.
///
/// An ordinary user may first have to be moved into a cgroup; then it is started when that is known.
pub fn start_early() -> Option<EarlyKeeper> {
    let first = std::env::args_os().nth(1)?;
    let needs_it = first == "run" || first == "serve";
    (needs_it && host::is_root()).then(Engine::start)
}

pub fn run(args: &RunArgs, keeper: Option<EarlyKeeper>) -> Result<u8> {
    let received = Instant::now();
    let weaken = args.weak.weakenings()?;
    // Before anything is read from standard input, which a second start could not read again, and before there are threads.
    let starting = keeper.unwrap_or_else(|| {
        if !weaken.contains(&Weakening::Cgroups) {
            scope::enter_if_needed();
        }
        Engine::start()
    })?;
    // Connections of the code are files of this process.
    host::raise_open_files();
    let request = request(args, weaken)?;
    let registry = Registry::load()?;
    let given_name = args.file.as_deref().and_then(Path::file_name);
    let given_name = given_name.filter(|name| *name != "-");
    // Whatever the rest of it is made of, it has an ending.
    let shown_name = given_name.map(OsStr::to_string_lossy);
    let file_name = given_name.and_then(OsStr::to_str);
    let manifest = registry.find(&LanguageHint {
        language: args.language.as_deref(),
        file_name: shown_name.as_deref(),
    })?;
    let on_host = match (request.backend, &args.image) {
        (Some(Backend::Docker), _) | (_, Some(_)) => None,
        _ => Some(discover(manifest)?),
    };
    let (files, stdin) = (input_files(args)?, stdin(args)?);
    let output_dir = match &args.output_dir {
        Some(directory) => Some(OutputDirectory::open(directory, &request.volumes)?),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut printer = Printer::default();
    let result: Result<RunResult> = runtime.block_on(async {
        let engine = starting.finish()?;
        engine.set_outside(&outside()?);
        if let Ok(state) = state_directory() {
            engine.set_packages(PackageSettings::at(state.join("packages")));
        }
        let toolchain = match (on_host, request.backend, &args.image) {
            (Some(toolchain), ..) => toolchain,
            (None, Some(Backend::Docker), _) | (None, _, None) => {
                in_container(&engine, manifest, args).await?
            }
            (None, _, Some(image)) => {
                let image = Arc::new(crate::image::find(image).await?);
                engine
                    .toolchain_in(&image, manifest, &request.weaken)
                    .await?
            }
        };
        let task = Task {
            id: belljar::new_run_id()?,
            main: manifest.main_for(file_name),
            toolchain: &toolchain,
            files,
            stdin,
            output_dir: output_dir.as_ref(),
            received,
            stop: Stop::default(),
            request,
        };
        // To install packages takes sandboxes of its own, which are not kept until the end.
        if task.request.packages.is_empty() {
            engine.leave();
        }
        let result = print_while_running(&engine, task, args.json, &mut printer).await;
        if result.is_err() || printer.is_busy() {
            // Whoever reads our output may take hours.
            engine.hang_up();
        }
        if container_network(args) != "loopback" {
            // A container goes by itself; a bridge does not.
            engine.containers_gone().await;
        }
        Ok(result?)
    });
    // A thread may still wait for our own standard input, and to take the rest apart would only keep the caller waiting.
    std::mem::forget(runtime);
    let all_out = printer.finish();
    let result = result?;
    tell(&result, args.json)?;
    let mut all_written = true;
    if let (Some(directory), Some(name)) = (&output_dir, &args.output_dir) {
        let left = directory.left_behind();
        left_behind(&left, name);
        all_written = !left.unwritten;
    }
    all_out?;
    // A failure of the program says more than that.
    if result.success && !all_written {
        return Ok(crate::EXIT_ERROR);
    }
    Ok(exit_code_for(&result))
}

/// The language as the image has it. What is fetched for that is shown to a person.
async fn in_container(
    engine: &Engine,
    manifest: &Manifest,
    args: &RunArgs,
) -> Result<Toolchain, Error> {
    let runtimes = args.container_runtime.iter().cloned().collect();
    engine.set_docker(Settings {
        runtimes,
        ..container_settings(args)?
    });
    let wish = Wish {
        image: args.image.clone(),
        runtime: args.container_runtime.clone(),
        local: false,
    };
    let shows = io::stderr().is_terminal() && !args.json;
    let mut last = String::new();
    let mut progress = |step: &str, done: u64, all: u64| {
        if shows && (all > 0 || step != last) {
            let part = done.saturating_mul(100).checked_div(all);
            let part = part.map_or_else(String::new, |part| format!(" {part} %"));
            let step = terminal::escape_controls(step);
            let _ = write!(io::stderr(), "\r\x1b[K{step}{part}");
            step.clone_into(&mut last);
        }
    };
    let found = engine
        .toolchain_in_container(manifest, &wish, &mut progress)
        .await;
    if !last.is_empty() {
        let _ = writeln!(io::stderr());
    }
    found
}

/// Looked at whatever isolates, so that a word that means nothing is not taken for one that does.
fn container_settings(args: &RunArgs) -> Result<Settings, Error> {
    Ok(Settings {
        pull: args.pull.parse()?,
        network: container_network(args).parse()?,
        ..Settings::default()
    })
}

fn container_network(args: &RunArgs) -> &str {
    args.container_network.as_deref().unwrap_or("loopback")
}

/// What is about containers means nothing without them.
fn without_containers(args: &RunArgs) -> Result<(), Error> {
    let given = [
        ("container-runtime", &args.container_runtime),
        ("container-network", &args.container_network),
    ];
    for (field, given) in given {
        if let Some(given) = given {
            let accepted = "it is about containers; give --backend docker as well, or leave it out";
            return Err(Error::invalid_request(field, given, accepted));
        }
    }
    Ok(())
}

/// Whoever types `belljar run` may name any address: it is their own machine.
pub fn outside() -> Result<Outside, Error> {
    let resolver = match std::env::var("BELLJAR_RESOLVER") {
        Ok(text) if !text.is_empty() => {
            let error = |_| Error::InvalidEnv {
                given: format!("BELLJAR_RESOLVER={}", shown(&text)),
                accepted: "give ADDRESS:PORT of a name server".into(),
            };
            Some(text.parse().map_err(error)?)
        }
        _ => None,
    };
    Ok(Outside {
        resolver,
        private: None,
    })
}

/// Signals keep their defaults: whatever ends this process, however stuck, the keeper sees it and ends the sandbox.
async fn print_while_running(
    engine: &Engine,
    task: Task<'_>,
    quiet: bool,
    printer: &mut Printer,
) -> Result<RunResult, Error> {
    if quiet {
        return engine.run(task, &mut |_, _: &[u8]| ()).await;
    }
    engine.run(task, printer).await
}

fn request(args: &RunArgs, weaken: Vec<Weakening>) -> Result<RunRequest, Error> {
    let code = match (&args.code, &args.file) {
        (Some(code), _) => code.clone(),
        (None, Some(path)) => code_from_bytes(read_code(path)?)?,
        (None, None) if io::stdin().is_terminal() || nothing_on_stdin() => {
            return Err(Error::MalformedField {
                field: "FILE".into(),
                reason: "nothing was given; give a file, - for standard input, or -c CODE".into(),
            });
        }
        (None, None) => code_from_bytes(read_code(Path::new("-"))?)?,
    };
    let mut request = RunRequest::new(code);
    request.args.clone_from(&args.args);
    request.env = environment(&args.env)?;
    request.limits = args.limits.0.clone();
    request.read_only = !args.inside.writable;
    request.imports.clone_from(&args.inside.imports);
    request.filesystem = args.inside.filesystem();
    request.network = network(&args.network)?;
    request.packages.clone_from(&args.network.packages);
    request.backend = Some(backend(&args.backend)?);
    container_settings(args)?;
    if request.backend != Some(Backend::Docker) {
        without_containers(args)?;
    }
    request.image.clone_from(&args.image);
    request.volumes = args.inside.volumes()?;
    request.weaken = weaken;
    request.check()?;
    Ok(request)
}

pub fn backend(text: &str) -> Result<Backend, Error> {
    match text {
        "native" => Ok(Backend::Native),
        "docker" => Ok(Backend::Docker),
        other => Err(Error::invalid_request(
            "backend",
            other,
            "give native or docker",
        )),
    }
}

/// Rules, and headers whose values come from the environment: a command line can be read by everyone on the machine.
pub fn network(args: &NetworkArgs) -> Result<Network, Error> {
    let mut network: Network = args.network.parse()?;
    network.intercept = args.intercept;
    for text in &args.headers {
        let error = |accepted: &str| Error::InvalidNetwork {
            given: shown(text),
            accepted: accepted.into(),
        };
        let parts = text.split_once('=').and_then(|(host, rest)| {
            let (header, variable) = rest.split_once('=')?;
            Some((host, header, variable))
        });
        let (host, header, variable) = parts
            .ok_or_else(|| error("give HOST=HEADER=VARIABLE, where the variable has the value"))?;
        let value = std::env::var(variable)
            .map_err(|_| error("the environment has no variable of this name"))?;
        let Allow::Only(rules) = &mut network.allow else {
            return Err(error("name the host with --network as well"));
        };
        let rule = rules.iter_mut().find(|rule| rule.to_string() == host);
        let rule = rule.ok_or_else(|| error("name the host with --network as well"))?;
        rule.headers.insert(header.to_owned(), Secret::new(value));
        rule.check()?;
    }
    Ok(network)
}

/// At most one byte more than is accepted, so that an endless file is no trouble.
fn read_code(path: &Path) -> Result<Vec<u8>, Error> {
    let failed =
        |error: io::Error| Error::invalid_file("file", &path.to_string_lossy(), error.to_string());
    let mut code = Vec::new();
    let limit = MAX_CODE_BYTES as u64 + 1;
    if path == Path::new("-") {
        io::stdin()
            .lock()
            .take(limit)
            .read_to_end(&mut code)
            .map_err(failed)?;
        return Ok(code);
    }
    let file = open("file", path)?;
    let size = file.metadata().map_err(failed)?.len();
    if size > MAX_CODE_BYTES as u64 {
        return Err(Error::CodeTooLarge {
            bytes: usize::try_from(size).unwrap_or(usize::MAX),
            max: MAX_CODE_BYTES,
        });
    }
    file.take(limit).read_to_end(&mut code).map_err(failed)?;
    Ok(code)
}

/// Opens a file of the caller. A directory is no file.
fn open(field: &str, path: &Path) -> Result<File, Error> {
    let failed = |reason: String| Error::invalid_file(field, &path.to_string_lossy(), reason);
    let file = File::open(path).map_err(|error| failed(reason(&error)))?;
    if file
        .metadata()
        .map_err(|error| failed(reason(&error)))?
        .is_dir()
    {
        return Err(failed("it is a directory; give a file".into()));
    }
    Ok(file)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "you may not read it".into(),
        _ => error.to_string(),
    }
}

pub fn environment(given: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Error::InvalidEnv {
            given: shown(text),
            accepted: "give NAME=VALUE".into(),
        }),
    };
    given.iter().map(pair).collect()
}

fn input_files(args: &RunArgs) -> Result<Vec<InputFile>, Error> {
    let input = |text: &String| {
        let (destination, file) = given_file(text)?;
        Ok(InputFile {
            destination,
            content: Source::File(file),
        })
    };
    args.files.iter().map(input).collect()
}

/// `SRC`, which keeps its name, or `DEST=SRC`.
pub fn given_file(text: &str) -> Result<(String, File), Error> {
    let (destination, source) = if let Some((destination, source)) = text.split_once('=') {
        if !Path::new(source).exists() && Path::new(text).exists() {
            let reason = "what is before the first \"=\" in it is taken for its name inside; give one as well: DEST=SRC";
            return Err(Error::invalid_file("file", text, reason));
        }
        (destination, Path::new(source))
    } else {
        let name = Path::new(text)
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or(text);
        (name, Path::new(text))
    };
    check_destination("file", destination)?;
    Ok((destination.to_owned(), open("file", source)?))
}

fn stdin(args: &RunArgs) -> Result<Stdin, Error> {
    let is_ours = |path: &Path| path == Path::new("-");
    if let Some(path) = args.stdin.as_deref().filter(|path| !is_ours(path)) {
        return Ok(Stdin::Stream(Box::new(tokio::fs::File::from_std(open(
            "stdin", path,
        )?))));
    }
    let code_came_from_there = args.code.is_none() && args.file.as_deref().is_none_or(is_ours);
    // Nothing to read: no need to ask a thread to.
    if code_came_from_there || nothing_on_stdin() {
        return Ok(Stdin::Empty);
    }
    Ok(Stdin::Stream(Box::new(tokio::io::stdin())))
}

/// It is closed, or `/dev/null`.
pub fn nothing_on_stdin() -> bool {
    let at = fs::metadata("/proc/self/fd/0");
    let null = fs::metadata("/dev/null").map(|null| null.rdev());
    at.is_err()
        || at.is_ok_and(|at| {
            at.file_type().is_char_device() && null.is_ok_and(|null| at.rdev() == null)
        })
}

/// What a person needs to know beyond the program's own output.
fn tell(result: &RunResult, json: bool) -> Result<()> {
    if json {
        let text = if io::stdout().is_terminal() {
            terminal::escape_controls(&serde_json::to_string_pretty(result)?)
        } else {
            serde_json::to_string(result)?
        };
        return Ok(terminal::say(text)?);
    }
    remark(result);
    Ok(())
}

/// What was to come out and did not.
fn left_behind(left: &LeftBehind, directory: &Path) {
    if left.is_empty() {
        return;
    }
    let named = left.first.iter();
    let mut parts: Vec<_> = named
        .map(|(name, reason)| format!("{} ({reason})", name.display()))
        .collect();
    if left.more > 0 {
        parts.push(format!("{} more", left.more));
    }
    parts.extend(left.unlisted.clone());
    let directory = belljar::harmless(directory);
    note(format_args!(
        "not all files were copied to {}: {}",
        directory.display(),
        parts.join(", ")
    ));
}

/// What of it the program could not say itself: on stderr, like the compiler's output.
pub fn remark(result: &RunResult) {
    compiler_said(result);
    cut_off(result);
    let limits = &result.limits;
    match (result.status, &result.compile) {
        (Status::CompileFailed, Some(compile)) => compiler_stopped(compile),
        (Status::TimedOut, _) => note(format_args!(
            "the time was up after {} ms (see --timeout)",
            limits.timeout_ms
        )),
        (Status::OutOfMemory, _) => note(format_args!(
            "out of memory: more than {} MiB were needed (see --memory)",
            limits.memory_bytes >> 20
        )),
        _ => {}
    }
}

/// Why there is no program to run.
pub fn compiler_said(result: &RunResult) {
    if let (Status::CompileFailed, Some(compile)) = (result.status, &result.compile) {
        for text in [&compile.stdout, &compile.stderr] {
            // Where stderr cannot be written to, nothing can be said of it either.
            let _ = Output::new(io::stderr()).write(text.as_bytes());
        }
    }
}

/// Its limits are the manifest's: no flag changes them.
pub fn compiler_stopped(compile: &Stage) {
    match compile.status {
        Status::TimedOut => note(format_args!(
            "the compiler's time was up after {} ms",
            compile.limits.timeout_ms
        )),
        Status::OutOfMemory => note(format_args!(
            "the compiler ran out of memory: more than {} MiB were needed",
            compile.limits.memory_bytes >> 20
        )),
        _ => {}
    }
}

pub fn cut_off(result: &RunResult) {
    for (name, truncated) in [
        ("stdout", result.stdout_truncated),
        ("stderr", result.stderr_truncated),
    ] {
        if truncated {
            note(format_args!(
                "{name} was cut off after {} bytes (see --max-output)",
                result.limits.output_bytes
            ));
        }
    }
}
