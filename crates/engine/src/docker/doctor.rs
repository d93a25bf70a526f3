//! What `doctor` says of the container engine.

use bollard::models::SystemInfo;

use super::{Settings, runc};
use crate::doctor::Check;

/// The engine's lines. None is required: without an engine the native backend works all the same.
pub async fn examine(settings: &Settings) -> Vec<Check> {
    let line = |name: &str, why: &str, found: Result<String, (String, String)>| {
        let (ok, found, fix) = match found {
            Ok(found) => (true, found, None),
            Err((found, fix)) => (false, found, Some(fix)),
        };
        Check {
            name: name.into(),
            ok,
            required: false,
            found,
            why: why.into(),
            fix,
            weaken: None,
        }
    };
    let why = "the backend docker (`run --backend docker --image …`) has it make containers";
    let connected = async {
        let client = settings.client().map_err(|error| error.to_string())?;
        let client = client
            .negotiate_version()
            .await
            .map_err(|e| e.to_string())?;
        let info = client.info().await.map_err(|e| e.to_string())?;
        let version = client.version().await.map_err(|e| e.to_string())?;
        Ok::<_, String>((info, version))
    };
    let answered = tokio::time::timeout(std::time::Duration::from_secs(5), connected).await;
    let Ok(Ok((info, version))) = answered else {
        let fix = "not needed for the native backend; else `apt-get install docker.io`, start it, or set DOCKER_HOST";
        let found = format!("no engine answers at {}", settings.address());
        return vec![line("docker engine", why, Err((found, fix.into())))];
    };
    let mut lines = vec![line("docker engine", why, Ok(described(&info)))];
    let runc = version
        .components
        .unwrap_or_default()
        .into_iter()
        .find(|component| component.name == "runc");
    let (number, packaged) = runc.map_or_else(
        || (String::new(), String::new()),
        |runc| {
            let commit = runc.details.unwrap_or_default().remove("GitCommit");
            (runc.version, commit.unwrap_or_default())
        },
    );
    // An engine of this host has its runc from this host's packages.
    let local = settings.address().starts_with("unix:");
    let changelog = local.then(runc::changelog).flatten();
    lines.push(line(
        "runc",
        "what runs containers stands between them and the host",
        runc::judge(&number, &packaged, changelog.as_deref()),
    ));
    lines
}

fn described(info: &SystemInfo) -> String {
    let mut runtimes: Vec<_> = info
        .runtimes
        .iter()
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    runtimes.sort_unstable();
    format!(
        "version {}, {}, cgroup v{}, runtimes {} (usually {})",
        info.server_version.as_deref().unwrap_or("unknown"),
        info.driver.as_deref().unwrap_or("unknown"),
        info.cgroup_version
            .map_or_else(|| "?".into(), |v| v.to_string()),
        runtimes.join(", "),
        info.default_runtime.as_deref().unwrap_or("unknown"),
    )
}
