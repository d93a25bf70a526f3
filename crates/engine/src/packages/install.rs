//! The installer in its jar.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Instant;

use belljar_jail::{Command, Entry, Plan, Role, Stage};
use belljar_spec::{
    Allow, Amount, Connection, Error, HostRule, Limits, LimitsPatch, Network, Status, WORKSPACE,
};

use super::{Installer, PACKAGES, PackageSettings, Wanted, room};
use crate::command::{Prepared, Stdin, environment};
use crate::egress::{self, Log, is_private};
use crate::engine::Engine;
use crate::host::capacity;
use crate::layout;
use crate::runtime::Toolchain;
use crate::sandbox::Sandbox;
use crate::stop::Stop;
use crate::verdict::verdict;

/// How much of an installer's own words is passed on.
const WORDS: usize = 4000;
/// How many hosts that it was not let reach are named.
const REFUSED: usize = 5;
/// Of the host's or the image's own; the installers may carry others.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Installs into `place`. What the installer said is the error.
pub async fn run(
    engine: &Engine,
    toolchain: &Toolchain,
    set: &Wanted<'_>,
    settings: &PackageSettings,
    place: &Path,
) -> Result<(), Error> {
    let network = rules(engine, set, settings).await?;
    let limits = limits(settings)?;
    let entries = entries(toolchain, place, &network)?;
    let temporary = place.join(".tmp");
    let failed = |error: std::io::Error| Error::internal("packages", error);
    fs::create_dir(&temporary).map_err(failed)?;
    if toolchain.container.is_some() {
        // Its user has a number of its own on this host. Nobody else can get here: what is above is private.
        for path in [place, &temporary] {
            let everybody = fs::Permissions::from_mode(0o777);
            fs::set_permissions(path, everybody).map_err(failed)?;
        }
    }
    let plan = Plan {
        entries,
        files: vec![("requirements.txt".into(), set.names.join("\n"))],
        workdir: WORKSPACE.into(),
        limits,
        writable: false,
        kept: false,
        network: true,
        ports: egress::ports(&network),
        closed: None,
        weakened: [].into(),
        image: toolchain.root(),
    };
    let command = Command {
        argv: words(toolchain, set)?,
        env: environment(
            toolchain.image.as_deref(),
            &variables(toolchain, set),
            &network,
            &BTreeMap::new(),
        ),
        cwd: PathBuf::from(WORKSPACE),
        limits,
    };
    let prepared = Prepared::new(command, Stage::Run, Role::Alone)?;
    let (sandbox, mut process) = Sandbox::open_with(
        engine,
        toolchain.container.as_ref(),
        plan,
        prepared.launch(&prepared.fds()),
    )
    .await?;
    let log = Log::default();
    sandbox.serve(&network, &log)?;
    let mut silent = |_, _: &[u8]| {};
    let stop = Stop::default();
    let mut excess = None;
    let ended = {
        let began = Instant::now();
        let finishing =
            prepared.finish_or_stop(&mut process, Stdin::Empty, began, &stop, &mut silent);
        let mut finishing = pin!(finishing);
        let mut watching = pin!(room::exceeded(place.to_owned(), settings.bytes));
        loop {
            tokio::select! {
                ended = &mut finishing => break ended?,
                found = &mut watching, if excess.is_none() => {
                    excess = Some(found);
                    stop.kill();
                }
            }
        }
    };
    // What it leaves running writes no more from here on.
    drop((process, sandbox));
    if excess.is_none() {
        excess = left(temporary, place.to_owned(), settings.bytes).await;
    }
    if let Some(reason) = excess {
        return Err(Error::PackagesFailed { reason });
    }
    let name = match set.installer {
        Installer::Pip => "pip",
        Installer::Npm => "npm",
    };
    let status = verdict(&ended.outcome);
    if status == Status::Ok {
        return Ok(());
    }
    let mut said = [ended.stderr.bytes, ended.stdout.bytes].concat();
    let cut = said.len().saturating_sub(WORDS);
    let said = String::from_utf8_lossy(&said.split_off(cut))
        .trim()
        .to_owned();
    Err(Error::PackagesFailed {
        reason: match status {
            Status::TimedOut => format!(
                "{name} did not finish within {} s; {} may not answer\n{said}",
                settings.timeout.as_secs(),
                set.index.shown()
            ),
            Status::OutOfMemory => format!("{name} ran out of memory\n{said}"),
            _ => format!("{name} says:\n{said}{}", refused(&log)),
        },
    })
}

/// Whom the installer was not let reach: an index may send it to other hosts for its files, and it does not always say so.
fn refused(log: &Log) -> String {
    let (tried, _) = log.all();
    let refused = tried.iter().filter(|one| !one.allowed).take(REFUSED);
    let reason = |one: &Connection| one.reason.clone().unwrap_or_default();
    let lines = refused.map(|one| format!("\nrefused: {} (packages.hosts)", reason(one)));
    lines.collect()
}

/// Why what is left without the temporary files is too much, if it is.
async fn left(temporary: PathBuf, place: PathBuf, most: u64) -> Option<String> {
    let measured = tokio::task::spawn_blocking(move || {
        super::layer::remove(&temporary);
        room::fits(&place, most).err()
    });
    let lost = |_| Some("their size was not counted".to_owned());
    measured.await.unwrap_or_else(lost)
}

/// Where its interpreter is, and a place to install into.
fn entries(toolchain: &Toolchain, place: &Path, network: &Network) -> Result<Vec<Entry>, Error> {
    let into = Entry::Volume {
        source: place.to_owned(),
        target: PACKAGES.into(),
        writable: true,
    };
    if toolchain.container.is_some() {
        return Ok(vec![into]);
    }
    if let Some(image) = &toolchain.image {
        let more = layout::name_server(network).into_iter().chain([into]);
        return layout::of_image(image, Path::new(WORKSPACE), more.collect(), &[]);
    }
    let mut entries = layout::entries(&toolchain.mounts, &[], &[], network)?;
    entries.push(into);
    Ok(entries)
}

/// The index and nothing else. An index in a private network is one that whoever runs this has chosen: its address is named.
async fn rules(
    engine: &Engine,
    set: &Wanted<'_>,
    settings: &PackageSettings,
) -> Result<Network, Error> {
    let invalid = |what: &str| Error::PackagesFailed {
        reason: format!("the index {} {what}", set.index.shown()),
    };
    let (host, port) = set
        .index
        .host()
        .ok_or_else(|| invalid("is not http:// or https:// and a host"))?;
    let mut rules: Vec<HostRule> = settings.hosts.clone();
    let rule = |text: String| text.parse::<HostRule>();
    rules.push(rule(format!("{host}:{port}"))?);
    if let Some(files) = &set.index.files {
        rules.push(rule(format!("{files}:{port}"))?);
    }
    if host.parse::<std::net::IpAddr>().is_err() {
        let found = engine.world().resolver.look_up(&host).await;
        let found = found.map_err(|failure| invalid(&format!("cannot be found: {failure}")))?;
        for address in found.into_iter().filter(|address| is_private(*address)) {
            let text = if address.is_ipv6() {
                format!("[{address}]:{port}")
            } else {
                format!("{address}:{port}")
            };
            rules.push(rule(text)?);
        }
    }
    Ok(Allow::Only(rules).into())
}

fn limits(settings: &PackageSettings) -> Result<Limits, Error> {
    let host = capacity();
    let millis = u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX);
    let number = |value: u64| Some(Amount::from(value));
    let patch = LimitsPatch {
        timeout_ms: number(millis.clamp(1, 3_600_000)),
        memory_bytes: number((2 << 30).min(host.memory_bytes)),
        cpus: number(u64::from(host.cpus)),
        processes: number(256),
        // Of one file; what all of them take is watched.
        disk_bytes: number(settings.bytes.min(16 << 30)),
        output_bytes: number(1 << 20),
        ..LimitsPatch::default()
    };
    patch.resolve(&LimitsPatch::default(), &host)
}

fn words(toolchain: &Toolchain, set: &Wanted<'_>) -> Result<Vec<String>, Error> {
    let program = toolchain.program.to_string_lossy().into_owned();
    let own = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    match set.installer {
        Installer::Pip => {
            let mut words = vec![program];
            words.extend(own(&[
                "-I",
                "-m",
                "pip",
                "install",
                "--target",
                PACKAGES,
                "--no-input",
                "--no-cache-dir",
                "--disable-pip-version-check",
                "--progress-bar",
                "off",
                "--timeout",
                "15",
                "--retries",
                "1",
                "--requirement",
                "requirements.txt",
                "--index-url",
                &set.index.url,
            ]));
            if let Some((host, _)) = set
                .index
                .host()
                .filter(|_| set.index.url.starts_with("http://"))
            {
                words.extend(own(&["--trusted-host", &host]));
            }
            Ok(words)
        }
        Installer::Npm => {
            let beside = toolchain.program.with_file_name("npm");
            let known = [beside, "/usr/bin/npm".into()];
            let npm = match (&toolchain.container, &toolchain.image) {
                // Its own PATH knows, and if not, the one who asked is told that it does not start.
                (Some(_), _) => Some(PathBuf::from("npm")),
                (None, Some(image)) => known.into_iter().find_map(|path| image.program(&path)),
                (None, None) => known.into_iter().find(|path| path.exists()),
            };
            let npm = npm.ok_or_else(|| Error::NotSupported {
                what: "packages".into(),
                reason: match &toolchain.image {
                    None => "there is no npm on this host: apt-get install npm".into(),
                    Some(image) => format!("there is no npm in the image {}", image.name),
                },
            })?;
            let mut words = vec![npm.to_string_lossy().into_owned()];
            words.extend(own(&[
                "install",
                "--prefix",
                PACKAGES,
                "--no-audit",
                "--no-fund",
                "--no-progress",
                "--no-update-notifier",
                "--fetch-timeout",
                "15000",
                "--fetch-retries",
                "1",
                "--registry",
                &set.index.url,
                "--",
            ]));
            words.extend(set.names.iter().cloned());
            Ok(words)
        }
    }
}

fn variables(toolchain: &Toolchain, set: &Wanted<'_>) -> BTreeMap<String, String> {
    let temporary = format!("{PACKAGES}/.tmp");
    let mut env = BTreeMap::from([
        ("TMPDIR".to_owned(), temporary.clone()),
        ("npm_config_cache".to_owned(), format!("{temporary}/npm")),
        ("PYTHONPATH".to_owned(), String::new()),
    ]);
    let certificates = match (&toolchain.container, &toolchain.image) {
        (Some(_), _) => false,
        (None, Some(image)) => image.root().join(&CERTIFICATES[1..]).exists(),
        (None, None) => Path::new(CERTIFICATES).exists(),
    };
    if certificates {
        env.insert("PIP_CERT".into(), CERTIFICATES.into());
        env.insert("NODE_EXTRA_CA_CERTS".into(), CERTIFICATES.into());
    }
    if set.installer == Installer::Pip {
        // Where sessions put what they install; here it is said on the command line.
        env.insert("PIP_TARGET".into(), PACKAGES.into());
    }
    env
}
