//! One run from a checked request to a recorded result.

use std::collections::BTreeMap;
use std::mem::take;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar::runtime::Toolchain;
use belljar::{Program, Stdin, Stop, Stream, Task};
use belljar_spec::{
    Backend, Connection, Content, Error, Filesystem, Limits, LimitsPatch, RunId, RunRequest,
    RunResult, SandboxId, Status, shown,
};
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::admission::{Need, Ticket};
use crate::answer::Done;
use crate::app::{App, Shared};
use crate::body;
use crate::clock;
use crate::config::{Config, Template};
use crate::events::Outbox;
use crate::history::{Record, omit_large};
use crate::languages::{Found, Venue};
use crate::remains::End;
use crate::sandboxes::stopping;
use crate::tenants::Tenant;
use crate::transfer::check_files;
use crate::turn::Teller;

/// Files that a result brings along are in our own memory for a moment, once as they are and once as text.
pub const GIVEN_BACK: u64 = 48 << 20;
/// A sandbox is taken apart so much later than its program has ended. The kernel is busy with it for a millisecond, on a core that
/// whoever waits for the answer may be about to run on.
const GRACE: Duration = Duration::from_millis(3);

/// A run that may start as soon as there is room.
pub struct Job {
    pub id: RunId,
    pub tenant: Tenant,
    request: RunRequest,
    found: Found,
    /// Keeps the packages that it wants.
    installed: Option<Toolchain>,
    need: Need,
    received: Instant,
    record: Record,
    asked: Asked,
}

/// What was asked for, as its record tells.
#[derive(Default)]
struct Account {
    digest: String,
    code: Option<String>,
    request: Value,
}

/// So much of a request is copied, and its account written while the code runs: whoever waits for the result does not wait for that.
const WRITTEN_LATER: usize = 64 << 10;

enum Asked {
    Written(Account),
    Unwritten(Box<RunRequest>),
}

impl Default for Asked {
    fn default() -> Self {
        Self::Written(Account::default())
    }
}

impl Asked {
    fn new(request: &mut RunRequest, keeps_code: bool) -> Result<Self, Error> {
        let contents = request.files.values().chain(&request.stdin);
        let size = contents.fold(request.code.len(), |size, content| {
            size.saturating_add(content.as_bytes().len())
        });
        Ok(if size > WRITTEN_LATER {
            Self::Written(Account::of(request, keeps_code)?)
        } else {
            Self::Unwritten(Box::new(request.clone()))
        })
    }

    fn account(self, keeps_code: bool) -> Result<Account, Error> {
        match self {
            Self::Written(account) => Ok(account),
            Self::Unwritten(mut request) => Account::of(&mut request, keeps_code),
        }
    }
}

impl Account {
    fn of(request: &mut RunRequest, keeps_code: bool) -> Result<Self, Error> {
        let mut outline = kept(request, keeps_code)?;
        // Now: it is in memory until the run is over.
        omit_large(&mut outline);
        Ok(Self {
            digest: digest(request)?,
            code: keeps_code.then(|| request.code.clone()),
            request: outline,
        })
    }

    fn enter(self, record: &mut Record) {
        (record.digest, record.code, record.request) = (self.digest, self.code, self.request);
    }
}

/// A request body with its template below it.
pub fn parse(config: &Config, body: &[u8]) -> Result<RunRequest, Error> {
    let mut request = RunRequest::from_json(body)?;
    if let Some(name) = &request.template {
        let template = template(config, name)?.of_run();
        request = body::with_template(template, body)?;
        request.check()?;
    }
    admit_fields(config, &mut request)?;
    Ok(request)
}

pub fn template<'a>(config: &'a Config, name: &str) -> Result<&'a Template, Error> {
    config.templates.get(name).ok_or_else(|| Error::NotFound {
        what: "template",
        given: shown(name),
        nearest: belljar_spec::nearest(name, config.templates.keys().map(String::as_str))
            .map(str::to_owned),
    })
}

/// What this daemon lets a request from outside ask for.
fn admit_fields(config: &Config, request: &mut RunRequest) -> Result<(), Error> {
    admit_backend(config, &mut request.backend, request.image.as_deref())?;
    admit_volumes(config, request)?;
    request.limits = take(&mut request.limits).or(&config.limits.default);
    Ok(())
}

/// What isolates, by the request or by the settings.
pub fn admit_backend(
    config: &Config,
    asked: &mut Option<Backend>,
    image: Option<&str>,
) -> Result<Backend, Error> {
    let backend = *asked.get_or_insert(config.backend);
    match image {
        Some(image) if backend == Backend::Docker && !config.docker.allows(image) => {
            Err(Error::invalid_request(
                "image",
                image,
                "name one that the daemon's settings allow (docker.images)",
            ))
        }
        _ => Ok(backend),
    }
}

/// Only below allowed directories, and by the name that has no links in it.
pub fn admit_volumes(config: &Config, request: &mut RunRequest) -> Result<(), Error> {
    for volume in &mut request.volumes {
        let refused = || Error::InvalidVolume {
            given: shown(&volume.source),
            accepted: "give a directory below those that the daemon's settings allow".into(),
        };
        let real = Path::new(&volume.source)
            .canonicalize()
            .map_err(|_| refused())?;
        if !Path::new(&volume.source).is_absolute() || !config.volumes.allows(&real) {
            return Err(refused());
        }
        let name = real.to_str().ok_or_else(refused)?;
        volume.source = name.to_owned();
    }
    Ok(())
}

/// SHA-256 over the request as it stands.
pub fn digest(request: &impl Serialize) -> Result<String, Error> {
    struct Hash(Sha256);

    impl std::io::Write for Hash {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut hash = Hash(Sha256::new());
    serde_json::to_writer(&mut hash, request).map_err(|error| Error::internal("digest", error))?;
    Ok(format!("{:x}", hash.0.finalize()))
}

/// The request as it is kept: what was asked, with sizes where there was content.
fn kept(request: &mut RunRequest, with_code: bool) -> Result<Value, Error> {
    let sizes: BTreeMap<_, _> = request
        .files
        .iter()
        .map(|(path, content)| (path.clone(), content.as_bytes().len()))
        .collect();
    let stdin_bytes = request
        .stdin
        .as_ref()
        .map_or(0, |stdin| stdin.as_bytes().len());
    // Put aside for a moment, because they may be large.
    let (code, stdin) = (take(&mut request.code), take(&mut request.stdin));
    let files = take(&mut request.files);
    let rest = request.clone();
    (request.code, request.stdin, request.files) = (code, stdin, files);
    let outline = RunRequest {
        // Values may be secrets; names help.
        env: request
            .env
            .keys()
            .map(|name| (name.clone(), "…".into()))
            .collect(),
        args: if with_code {
            request.args.clone()
        } else {
            Vec::new()
        },
        globals: if with_code {
            request.globals.clone()
        } else {
            Map::new()
        },
        ..rest
    };
    let mut value =
        serde_json::to_value(outline).map_err(|error| Error::internal("history", error))?;
    value["files"] = serde_json::to_value(sizes).unwrap_or_default();
    value["stdin_bytes"] = stdin_bytes.into();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("code");
        fields.remove("labels");
        fields.remove("stdin");
        fields.retain(|_, value| !value.is_null());
    }
    Ok(value)
}

/// Into the daemon's own log.
pub fn tell_connections(result: &RunResult) {
    for one in &result.connections {
        tell_connection(result.sandbox, &result.id, one);
    }
    if result.connections_omitted > 0 {
        let (run, sandbox, count) = (result.id, result.sandbox, result.connections_omitted);
        tracing::warn!(%run, %sandbox, count, "connections that are not in the list");
    }
}

/// Of one that was tried by a run, or between runs.
pub fn tell_connection(sandbox: SandboxId, run: &dyn std::fmt::Display, one: &Connection) {
    tracing::info!(
        %run,
        %sandbox,
        host = one.host,
        port = one.port,
        allowed = one.allowed,
        reason = one.reason.as_deref().unwrap_or_default(),
        sent = one.bytes_sent,
        received = one.bytes_received,
        count = one.count,
        "connection"
    );
}

impl Job {
    pub async fn new(
        app: &App,
        tenant: Tenant,
        mut request: RunRequest,
        received: Instant,
    ) -> Result<Self, Error> {
        let venue = Venue::from(&request).asked_by(&tenant, &app.config);
        let language = request.language.as_deref();
        let found = app.language(language, &venue).await?;
        let host = belljar::capacity();
        let limits = request.limits.resolve(&found.toolchain.limits, &host)?;
        tenant.may_have(&limits)?;
        check_files(&request.files, &limits, request.backend)?;
        let mut need = Need::of(&limits);
        if let Some(compile) = &found.toolchain.compile {
            let limits: Limits =
                LimitsPatch::default().resolve(&compile.limits, &belljar::machine())?;
            need = need.or(Need::of(&limits));
        }
        if !request.collect.is_empty() {
            need.memory_bytes = need.memory_bytes.saturating_add(GIVEN_BACK);
        }
        need = need.with(&request.globals);
        let id = belljar::new_run_id()?;
        let asked = Asked::new(&mut request, app.config.history.code)?;
        let record = Record {
            id,
            tenant: tenant.name.clone(),
            sandbox: None,
            language: found.toolchain.name.clone(),
            status: Status::Killed,
            started_at: clock::now(),
            queue_ms: 0.0,
            digest: String::new(),
            labels: request.labels.clone(),
            code: None,
            request: Value::Null,
            result: None,
            shortened: false,
        };
        Ok(Self {
            id,
            tenant,
            request,
            found,
            installed: None,
            need,
            received,
            record,
            asked,
        })
    }

    /// Waits for its packages, if it wants any that nobody has installed before, then for room.
    pub async fn admitted(&mut self, app: &App) -> Result<Ticket, Error> {
        app.history.check()?;
        let (toolchain, wanted) = (&self.found.toolchain, &self.request.packages);
        self.installed = app.install(&self.tenant, toolchain, wanted).await?;
        let ticket = app.admission.run(&self.tenant, self.need).await?;
        self.record.queue_ms = ticket.waited.as_secs_f64() * 1000.0;
        app.metrics.waited(ticket.waited);
        Ok(ticket)
    }

    /// Runs until it is done, or until `gone` hears that nobody waits for the result any more: then it is killed. When this returns
    /// a result, it is in the history.
    pub async fn carry_out(
        mut self,
        app: Shared,
        ticket: Ticket,
        outbox: Option<Outbox>,
        gone: oneshot::Receiver<()>,
    ) -> Result<Done, Error> {
        let (request, mut asked) = (take(&mut self.request), take(&mut self.asked));
        let stop = Stop::default();
        app.metrics.running.inc();
        let mut running = Box::pin(self.run(&app, request, outbox, &stop));
        let keeps_code = app.config.history.code;
        let mut write_down = async || {
            let written = take(&mut asked).account(keeps_code)?;
            asked = Asked::Written(written);
            Ok(())
        };
        let ended = tokio::select! {
            // First the code gets on its way.
            biased;
            result = &mut running => Some(result),
            Err(error) = write_down() => Some(Err(error)),
            _ = gone => None,
            () = app.ended() => None,
        };
        let ended = End::of(&app, ended, &stop, &mut running).await;
        drop(running);
        let entered = asked.account(keeps_code).and_then(|account| {
            account.enter(&mut self.record);
            self.enter(&app, ended)
        });
        let done = match entered {
            Ok(done) => app.history.add(self.record).await.map(|()| done),
            Err(error) => Err(error),
        };
        app.metrics.running.dec();
        done?.map(|result| (result, ticket)).ok_or_else(|| {
            if *app.ending.borrow() {
                return stopping();
            }
            Error::Conflict {
                reason: "the run was ended because nobody waits for it".into(),
            }
        })
    }

    /// How it ended, into its record. Gives back the result for whoever waits, unless it was ended from outside.
    fn enter(&mut self, app: &App, ended: End) -> Result<Option<RunResult>, Error> {
        let (left, from_outside) = match ended {
            End::Itself(result) => (Some(result?), false),
            End::FromOutside(left) => (left, true),
        };
        let Some(result) = left else {
            app.metrics.ended("killed", &self.record.language);
            return Ok(None);
        };
        app.metrics.ran(&result);
        tell_connections(&result);
        self.record.status = result.status;
        self.record.sandbox = Some(result.sandbox);
        self.record.started_at.clone_from(&result.started_at);
        let done = (!from_outside).then(|| result.clone());
        self.record.result = Some(result);
        Ok(done)
    }

    async fn run(
        &self,
        app: &Shared,
        mut request: RunRequest,
        outbox: Option<Outbox>,
        stop: &Stop,
    ) -> Result<RunResult, Error> {
        let stdin = match request.stdin.take() {
            None => Stdin::Empty,
            Some(Content::Text(text)) => Stdin::Bytes(text.into_bytes()),
            Some(Content::Bytes(bytes)) => Stdin::Bytes(bytes),
        };
        if !self.wants_interpreter(&request) {
            let task = Task {
                id: self.id,
                request,
                toolchain: &self.found.toolchain,
                main: &self.found.main,
                files: Vec::new(),
                stdin,
                output_dir: None,
                received: self.received,
                stop: stop.clone(),
            };
            let mut sink = |stream: Stream, bytes: &[u8]| {
                outbox
                    .as_ref()
                    .inspect(|outbox| outbox.output(stream, bytes));
            };
            return app.engine.run(task, &mut sink).await;
        }
        let (place, code) = request.into_parts();
        let toolchain = Arc::clone(&self.found.toolchain);
        app.pools.keep_warm(app, &toolchain, &place);
        let session = app.pools.session(&app.engine, toolchain, place);
        let session = Arc::new(session.await?);
        let _answering = app.answering.enter(self.id, &self.tenant, &session);
        let mut teller = Teller {
            outbox,
            run: Some(self.id),
            session: &session,
            shown: app.admission.nothing_shown(&self.tenant.name),
        };
        let program = Program {
            id: self.id,
            main: &self.found.main,
            files: Vec::new(),
            output_dir: None,
            received: self.received,
            stop,
        };
        let result = session.run_once(program, (&code, stdin), &mut teller).await;
        tokio::spawn(async move {
            sleep(GRACE).await;
            drop(session);
        });
        result
    }

    /// An interpreter instead of a program that has to be started: where copies of a warm one can wait (also while none does:
    /// what code means must not depend on that), and where only it can do what is asked.
    fn wants_interpreter(&self, request: &RunRequest) -> bool {
        let toolchain = &self.found.toolchain;
        let only_it_can = request.imports.is_some()
            || request.filesystem == Filesystem::None
            || !request.globals.is_empty()
            || !request.tools.is_empty();
        let copied = toolchain
            .kernel
            .as_ref()
            .is_some_and(|kernel| kernel.zygote.is_some());
        only_it_can || copied
    }
}
