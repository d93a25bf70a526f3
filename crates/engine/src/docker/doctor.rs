//! What `doctor` says of the container engine.

use bollard::models::SystemInfo;

use super::Settings;
use crate::doctor::Check;

/// A release of runc that is known to let containers out, until which version, and by which hole.
const BROKEN: [(&str, (u32, u32, u32)); 3] = [
    ("CVE-2019-5736", (1, 0, 0)),
    ("CVE-2024-21626", (1, 1, 12)),
    (
        "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881",
        (1, 2, 8),
    ),
];
/// Later branches in which the last of them is closed from these releases on.
const CLOSED: [(u32, u32, u32); 2] = [(1, 3, 3), (1, 4, 0)];

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
    lines.push(line(
        "runc",
        "what runs containers stands between them and the host",
        judge(&number, &packaged),
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

/// What is known of this release. Distributions close holes without changing the number, which then says so after a `+`.
fn judge(version: &str, packaged: &str) -> Result<String, (String, String)> {
    let Some(number) = parse(version) else {
        return if version.is_empty() {
            Ok("not what runs containers here".into())
        } else {
            Err((
                format!("version {version}, which is not known"),
                "use a release of runc".into(),
            ))
        };
    };
    let closed = |until: (u32, u32, u32)| {
        let later_branch = CLOSED
            .iter()
            .any(|fixed| (number.0, number.1) == (fixed.0, fixed.1) && number >= *fixed);
        let branch_of_its_own = CLOSED
            .iter()
            .any(|fixed| (number.0, number.1) == (fixed.0, fixed.1));
        if until == (1, 2, 8) && branch_of_its_own {
            later_branch
        } else {
            number >= until
        }
    };
    let open: Vec<_> = BROKEN
        .iter()
        .filter(|(_, until)| !closed(*until))
        .map(|(name, _)| *name)
        .collect();
    if open.is_empty() {
        return Ok(format!("version {version}, no known way out"));
    }
    let distribution =
        version.contains('+') || packaged.contains("deb") || packaged.contains(".el");
    let found = format!("version {version}: open to {}", open.join(", "));
    if distribution {
        return Err((
            format!("{found}, unless the distribution has closed them ({packaged})"),
            "compare with its security tracker, and upgrade the package runc".into(),
        ));
    }
    Err((found, "upgrade runc to 1.2.8, 1.3.3, 1.4.0 or later".into()))
}

/// `1.1.5`, `1.1.5+ds1`, `1.0.0-rc93` (which comes before 1.0.0).
fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let release = version.split(['+', '~']).next()?;
    let (release, candidate) = match release.split_once('-') {
        Some((release, _)) => (release, true),
        None => (release, false),
    };
    let mut numbers = release.trim_start_matches('v').split('.');
    let mut next = || numbers.next()?.parse::<u32>().ok();
    let (major, minor, patch) = (next()?, next()?, next()?);
    match (candidate, (major, minor, patch)) {
        (true, (1, 0, 0)) => Some((0, 99, 0)),
        (true, (major, minor, 0)) => Some((major, minor.saturating_sub(1), u32::MAX)),
        (_, number) => Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_holes_are_named() {
        for (version, open) in [
            ("1.0.0-rc6", "CVE-2019-5736"),
            ("1.1.11", "CVE-2024-21626"),
            ("1.1.12", "CVE-2025-31133"),
            ("1.2.7", "CVE-2025-52881"),
            ("1.3.2", "CVE-2025-52565"),
            ("1.1.5+ds1", "CVE-2024-21626"),
        ] {
            let (found, fix) = judge(version, "").unwrap_err();
            assert!(found.contains(open), "{version}: {found}");
            assert!(fix.contains("upgrade"), "{fix}");
        }
        for fine in ["1.2.8", "1.2.9", "1.3.3", "1.4.0", "1.5.1", ""] {
            assert!(judge(fine, "").is_ok(), "{fine}");
        }
        assert!(judge("nightly", "").is_err());
        assert!(
            !judge("1.1.12", "")
                .unwrap_err()
                .0
                .contains("CVE-2024-21626")
        );
    }
}
