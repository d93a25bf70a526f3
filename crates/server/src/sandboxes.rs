//! `/v1/sandboxes`: made, listed, looked at, deleted.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use belljar_spec::{
    Amount, Backend, Connection, Error, Limits, Network, Publish, RunRequest, SandboxId,
    SandboxRequest, from_json, milliseconds,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::admission::Need;
use crate::app::{App, Shared};
use crate::asked::Name;
use crate::body;
use crate::clock;
use crate::failure::{ErrorBody, Failure, Id};
use crate::guard::Caller;
use crate::job;
use crate::kept::Kept;
use crate::languages::Venue;
use crate::params::Params;
use crate::tenants::Tenant;
use crate::transfer::{check_files, pages};

/// A sandbox that is kept.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    pub id: SandboxId,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub tenant: String,
    pub template: Option<String>,
    pub backend: Backend,
    pub language: String,
    /// Like `Python 3.11.2`.
    pub runtime: String,
    /// Whether its interpreter keeps variables between runs; files are always kept.
    pub keeps_state: bool,
    /// Whether something runs in it now.
    pub busy: bool,
    /// How many runs and commands have ended in it.
    pub runs: u64,
    pub limits: Limits,
    /// Whom it may reach now.
    pub network: Network,
    /// Ports inside that the host listens for: `127.0.0.1:8080:8000`.
    pub published: Vec<Publish>,
    /// RFC 3339.
    pub created_at: String,
    pub last_used_at: String,
    /// It is deleted when it was not used for so long.
    pub idle_timeout_ms: u64,
    /// It is deleted then in any case.
    pub expires_at: Option<String>,
}

impl Sandbox {
    pub fn of(kept: &Kept) -> Self {
        let session = &kept.session;
        let request = session.request();
        let (used, idle_timeout_ms, expires) = kept.schedule();
        Self {
            id: session.id(),
            name: request.name.clone(),
            labels: request.labels.clone(),
            tenant: kept.tenant.clone(),
            template: request.template.clone(),
            backend: request.backend.unwrap_or_default(),
            language: session.toolchain().name.clone(),
            runtime: session.toolchain().version.clone(),
            keeps_state: session.toolchain().kernel.is_some(),
            busy: kept.is_busy(),
            runs: kept.runs.load(Ordering::Relaxed),
            limits: *session.limits(),
            network: session.network(),
            published: session.published(),
            created_at: clock::format(kept.created_ms),
            last_used_at: clock::format(used),
            idle_timeout_ms,
            expires_at: expires.map(|at| clock::format(at.min(clock::LAST_SECOND * 1000))),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// Oldest first.
    pub sandboxes: Vec<Sandbox>,
}

/// What a sandbox used, as counted from outside.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    pub time: String,
    /// CPU time since it was made.
    pub cpu_ms: f64,
    /// With what was put into its workspace from outside.
    pub memory_bytes: u64,
    /// Of that, as far as it was looked at.
    pub memory_peak_bytes: u64,
    pub processes: u64,
    pub processes_peak: u64,
    /// Written to the workspace and `/tmp`.
    pub disk_bytes: u64,
}

impl Sample {
    pub fn take(kept: &Kept) -> Self {
        let counters = kept.session.usage().unwrap_or_default();
        #[expect(
            clippy::cast_precision_loss,
            reason = "microseconds of a sandbox are far below 2^52"
        )]
        let cpu_ms = counters.cpu_micros as f64 / 1000.0;
        let memory_bytes = counters.memory.saturating_add(kept.put_bytes());
        Self {
            time: clock::now(),
            cpu_ms,
            memory_bytes,
            memory_peak_bytes: kept.memory_peak(counters.memory_peak.max(memory_bytes)),
            processes: counters.processes,
            processes_peak: counters.processes_peak,
            disk_bytes: kept.session.files().used(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxUsage {
    pub now: Sample,
    /// The last ten minutes, every five seconds.
    pub samples: Vec<Sample>,
    pub limits: Limits,
}

/// A request body with its template below it.
fn parse(app: &App, body: &[u8]) -> Result<SandboxRequest, Error> {
    let request: SandboxRequest = from_json(body)?;
    match &request.template {
        None => Ok(request),
        Some(name) => {
            let template = job::template(&app.config, name)?.of_sandbox();
            body::with_template(template, body)
        }
    }
}

/// What this daemon lets a sandbox be.
fn admit(app: &App, tenant: &Tenant, request: &mut SandboxRequest) -> Result<(), Error> {
    request.check()?;
    let settings = &app.config.sandboxes;
    settings.allow_idle(tenant, request.idle_timeout_ms)?;
    settings.allow_life(tenant, request.lifetime_ms)?;
    let image = request.image.as_deref();
    job::admit_backend(&app.config, &mut request.backend, image)?;
    let open = &app.config.network.publish;
    if let Some(one) = request
        .publish
        .iter()
        .find(|one| !open.contains(&one.host.ip()))
    {
        return Err(Error::invalid_request(
            "publish",
            &one.to_string(),
            "give an address that the daemon's settings allow (network.publish)",
        ));
    }
    let mut as_run = RunRequest {
        volumes: take(&mut request.volumes),
        ..RunRequest::default()
    };
    job::admit_volumes(&app.config, &mut as_run)?;
    request.volumes = as_run.volumes;
    request.limits = take(&mut request.limits).or(&app.config.limits.default);
    Ok(())
}

/// Make a sandbox that is kept
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = SandboxRequest,
    responses((status = 201, body = Sandbox), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn create(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Sandbox>), Failure> {
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let mut request = parse(&app, &arrived.bytes)?;
    admit(&app, &tenant, &mut request)?;
    let venue = Venue::from(&request).asked_by(&tenant, &app.config);
    let language = request.language.as_deref();
    let toolchain = app.language(language, &venue).await?.toolchain;
    let limits = request
        .limits
        .resolve(&toolchain.limits, &belljar::capacity())?;
    tenant.may_have(&limits)?;
    // They are in its workspace, and here, for when it is made anew.
    let beside = if request.files.is_empty() {
        0
    } else {
        check_files(&request.files, &limits, request.backend)?;
        pages(&request.files).saturating_mul(2)
    };
    // With what its runs print: a sandbox in which none could ever start is of no use.
    tenant.may_ever_have(Need::of(&limits).memory_bytes.saturating_add(beside))?;
    // Kept until the sandbox has them itself.
    let _installed = match app.pools.furnished(&toolchain, &request) {
        Some(with) => Some(with),
        None => app
            .install(&tenant, &toolchain, &request.packages)
            .await?
            .map(Arc::new),
    };
    let reserved = app.sandboxes.reserve(&tenant)?;
    let place = app.admission.sandbox(&tenant, &limits, beside).await?;
    drop(arrived);
    app.pools.keep_warm(&app, &toolchain, &request);
    let session = app.pools.session(&app.engine, toolchain, request).await?;
    let kept = Kept::new(session, &tenant, (place, reserved), &app.config);
    let sandbox = Sandbox::of(&kept);
    app.sandboxes.insert(kept);
    Ok((StatusCode::CREATED, Json(sandbox)))
}

/// Which sandboxes. Everything given must hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct Filter {
    /// The runtime's name, or an alias of it.
    pub language: Option<String>,
    pub name: Option<String>,
    /// A label, as `name=value` or `name`.
    pub label: Option<String>,
    /// Whether something runs in it.
    pub busy: Option<bool>,
}

impl Filter {
    fn fits(&self, sandbox: &Sandbox) -> bool {
        let same = |wanted: &Option<String>, value: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| value == Some(wanted))
        };
        let labelled = self
            .label
            .as_ref()
            .is_none_or(|label| match label.split_once('=') {
                Some((name, value)) => sandbox.labels.get(name).is_some_and(|own| own == value),
                None => sandbox.labels.contains_key(label),
            });
        labelled
            && same(&self.language, Some(&sandbox.language))
            && same(&self.name, sandbox.name.as_ref())
            && self.busy.is_none_or(|busy| busy == sandbox.busy)
    }
}

/// Sandboxes that are kept
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(Filter),
    responses((status = 200, body = SandboxList), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn list(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    filter: Result<Params<Filter>, Failure>,
) -> Result<Json<SandboxList>, Failure> {
    let Params(mut filter) = filter?;
    filter.language = filter.language.map(|given| app.languages.name(given));
    let all = app.sandboxes.list(&tenant);
    let sandboxes = all
        .iter()
        .map(|kept| Sandbox::of(kept))
        .filter(|sandbox| filter.fits(sandbox))
        .collect();
    Ok(Json(SandboxList { sandboxes }))
}

/// One sandbox
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn show(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
) -> Result<Json<Sandbox>, Failure> {
    Ok(Json(Sandbox::of(&*app.sandboxes.find(&tenant, &id)?)))
}

/// Delete a sandbox and end everything in it
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn delete(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
) -> Result<StatusCode, Failure> {
    app.sandboxes.delete(&tenant, &id)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ask the run and the commands that are going on to stop
///
/// They end with the status `killed`. The interpreter keeps its state if the code yields in time. With the name of a run or a command,
/// just that one is stopped: if it waits for its turn, it does not begin, and is answered with a conflict.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/interrupt", tag = "sandboxes", params(("id" = SandboxId, Path), Name),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn interrupt(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    name: Result<Params<Name>, Failure>,
) -> Result<StatusCode, Failure> {
    let Params(name) = name?;
    let kept = app.sandboxes.find(&tenant, &id)?;
    kept.touch();
    match &name.run {
        Some(name) => kept.names.stop(name)?,
        None => kept.session.interrupt(),
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Make a sandbox as it was when it was new
#[utoipa::path(post, path = "/v1/sandboxes/{id}/reset", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn reset(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
) -> Result<Json<Sandbox>, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    kept.touch();
    tokio::select! {
        done = kept.session.reset() => done?,
        () = kept.gone() => return Err(Failure(deleted())),
    }
    Ok(Json(Sandbox::of(&kept)))
}

/// More time for a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Renewal {
    /// From now on it may be idle for so long: no longer than the daemon's settings say, but for the administrator.
    #[serde(deserialize_with = "milliseconds")]
    #[schema(value_type = Option<Amount>)]
    pub idle_timeout_ms: Option<u64>,
    /// It ends so long from now, instead of when it would have, but not later than the daemon's settings say.
    #[serde(deserialize_with = "milliseconds")]
    #[schema(value_type = Option<Amount>)]
    pub lifetime_ms: Option<u64>,
}

/// Give a sandbox more time
#[utoipa::path(post, path = "/v1/sandboxes/{id}/renew", tag = "sandboxes", params(("id" = SandboxId, Path)), request_body = Renewal,
    responses((status = 200, body = Sandbox), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn renew(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Sandbox>, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let renewal: Renewal = from_json(&arrived.bytes)?;
    let settings = &app.config.sandboxes;
    settings.allow_idle(&tenant, renewal.idle_timeout_ms)?;
    settings.allow_life(&tenant, renewal.lifetime_ms)?;
    let time = |millis: Option<u64>| millis.map(Duration::from_millis);
    kept.renew(
        time(renewal.idle_timeout_ms),
        time(renewal.lifetime_ms),
        settings.longest(&tenant),
    );
    Ok(Json(Sandbox::of(&kept)))
}

/// What changes about a sandbox that lives.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxPatch {
    /// Holds at once; connections that are no longer allowed are cut.
    pub network: Option<Network>,
}

/// Change whom a sandbox may reach
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)), request_body = SandboxPatch,
    responses((status = 200, body = Sandbox), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn change(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Sandbox>, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let arrived = body::json(&app, &tenant, &headers, body).await?;
    let patch: SandboxPatch = from_json(&arrived.bytes)?;
    if let Some(network) = &patch.network {
        kept.session.set_network(network).await?;
    }
    kept.touch();
    Ok(Json(Sandbox::of(&kept)))
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ConnectionList {
    /// Oldest first.
    pub connections: Vec<Connection>,
    /// How many there were beyond those in the list.
    pub connections_omitted: u64,
}

/// The connections that were tried in a sandbox
#[utoipa::path(get, path = "/v1/sandboxes/{id}/connections", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = ConnectionList), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn connections(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
) -> Result<Json<ConnectionList>, Failure> {
    let kept = app.sandboxes.find(&tenant, &id)?;
    let (connections, connections_omitted) = kept.session.connections();
    Ok(Json(ConnectionList {
        connections,
        connections_omitted,
    }))
}

/// What a sandbox uses, now and over the last minutes
#[utoipa::path(get, path = "/v1/sandboxes/{id}/usage", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxUsage), (status = "4XX", body = ErrorBody), (status = "5XX", body = ErrorBody)))]
pub async fn usage(
    State(app): State<Shared>,
    Caller(tenant): Caller,
    Id(id): Id,
) -> Result<Json<SandboxUsage>, Failure> {
    let kept: Arc<Kept> = app.sandboxes.find(&tenant, &id)?;
    Ok(Json(SandboxUsage {
        now: Sample::take(&kept),
        samples: kept.samples(),
        limits: *kept.session.limits(),
    }))
}

pub fn stopping() -> Error {
    Error::Conflict {
        reason: "the daemon stops".into(),
    }
}

pub fn deleted() -> Error {
    Error::Conflict {
        reason: "the sandbox has been deleted".into(),
    }
}
