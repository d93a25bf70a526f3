//! What `doctor` says of the container engine.

use bollard::models::SystemInfo;

use super::Settings;
use crate::doctor::Check;

/// A hole in runc that lets containers out.
struct Hole {
    name: &'static str,
    /// The first release of each branch without it. Branches after the last of these never had it; others are left open.
    closed: &'static [Version],
}

const HOLES: [Hole; 4] = [
    Hole {
        name: "CVE-2019-5736",
        closed: &[Version(1, 0, 0, 7)],
    },
    Hole {
        name: "CVE-2024-21626",
        closed: &[Version::release(1, 1, 12)],
    },
    Hole {
        name: "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881",
        closed: &[
            Version::release(1, 2, 8),
            Version::release(1, 3, 3),
            Version(1, 4, 0, 3),
        ],
    },
    Hole {
        name: "CVE-2026-41579",
        closed: &[
            Version::release(1, 3, 6),
            Version::release(1, 4, 3),
            Version(1, 5, 0, 3),
        ],
    },
];
const UPGRADE: &str = "upgrade runc to 1.3.6, 1.4.3, 1.5.0 or later";

/// The last number is that of a candidate, and the largest there is for a release, which comes after its candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32, u32);

impl Version {
    const fn release(major: u32, minor: u32, patch: u32) -> Self {
        Self(major, minor, patch, u32::MAX)
    }

    fn branch(self) -> (u32, u32) {
        (self.0, self.1)
    }

    /// `1.1.5`, `1.1.5+ds1`, `1.1.12-0ubuntu3` and, before their releases, `1.0.0-rc93`, `1.0.0~rc93+ds1`, `1.4.0-rc.1`.
    fn parse(text: &str) -> Option<Self> {
        let whole = text.split('+').next()?.trim_start_matches('v');
        let (release, rest) = whole.split_once(['-', '~']).unwrap_or((whole, ""));
        let mut numbers = release.split('.');
        let mut next = || numbers.next()?.parse::<u32>().ok();
        let (major, minor, patch) = (next()?, next()?, next()?);
        let candidate = match rest.strip_prefix("rc") {
            Some(number) => {
                let number = number.trim_start_matches('.');
                let end = number.find(|c: char| !c.is_ascii_digit());
                number[..end.unwrap_or(number.len())].parse().unwrap_or(0)
            }
            // What a distribution counts, or has packed anew.
            None if rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit()) => u32::MAX,
            None if rest.starts_with("ds") || rest.starts_with("dfsg") => u32::MAX,
            None => 0,
        };
        Some(Self(major, minor, patch, candidate))
    }
}

impl Hole {
    fn is_open_in(&self, version: Version) -> bool {
        let here = self.closed.iter();
        let mut here = here.filter(|closed| closed.branch() == version.branch());
        match here.next() {
            Some(closed) => version < *closed,
            None => self.closed.iter().any(|closed| version < *closed),
        }
    }
}

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
    let Some(number) = Version::parse(version) else {
        return if version.is_empty() {
            Ok("not what runs containers here".into())
        } else {
            Err((
                format!("version {version}, which is not known"),
                "use a release of runc".into(),
            ))
        };
    };
    let open: Vec<_> = HOLES
        .iter()
        .filter(|hole| hole.is_open_in(number))
        .map(|hole| hole.name)
        .collect();
    if open.is_empty() {
        return Ok(format!("version {version}, no known way out"));
    }
    let distribution = version.contains(['+', '~'])
        || version.contains("ubuntu")
        || packaged.contains("deb")
        || packaged.contains(".el");
    let found = format!("version {version}: open to {}", open.join(", "));
    if distribution {
        return Err((
            format!("{found}, unless the distribution has closed them ({packaged})"),
            "compare with its security tracker, and upgrade the package runc".into(),
        ));
    }
    Err((found, UPGRADE.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_holes_are_named() {
        for (version, open) in [
            ("1.0.0-rc6", "CVE-2019-5736"),
            ("1.0.0~rc6+dfsg1", "CVE-2019-5736"),
            ("1.0.3", "CVE-2024-21626"),
            ("1.1.11", "CVE-2024-21626"),
            ("1.1.5+ds1", "CVE-2024-21626"),
            ("1.1.12", "CVE-2025-31133"),
            ("1.1.99", "CVE-2025-31133"),
            ("1.2.7", "CVE-2025-52881"),
            ("1.3.2", "CVE-2025-52565"),
            ("1.4.0-rc.1", "CVE-2025-31133"),
            ("1.2.99", "CVE-2026-41579"),
            ("1.3.5", "CVE-2026-41579"),
            ("1.4.0", "CVE-2026-41579"),
            ("1.4.2", "CVE-2026-41579"),
            ("1.5.0-rc.2", "CVE-2026-41579"),
            ("1.5.0-dev", "CVE-2026-41579"),
        ] {
            let (found, fix) = judge(version, "").unwrap_err();
            assert!(found.contains(open), "{version}: {found}");
            assert!(fix.contains("upgrade"), "{fix}");
        }
        for fine in [
            "1.3.6",
            "1.4.3",
            "1.5.0-rc.3",
            "1.5.0-rc.10",
            "1.5.0",
            "1.5.1",
            "1.6.0-rc.1",
            "",
        ] {
            assert!(judge(fine, "").is_ok(), "{fine}");
        }
        for (version, closed) in [
            ("1.0.0-rc7", "CVE-2019-5736"),
            ("1.1.12-0ubuntu3", "CVE-2024-21626"),
            ("1.2.0-rc.1", "CVE-2024-21626"),
            ("1.2.8", "CVE-2025"),
            ("1.4.0-rc.3", "CVE-2025"),
            ("1.4.0", "CVE-2025"),
            ("1.5.0-rc.1", "CVE-2025"),
        ] {
            let (found, _) = judge(version, "").unwrap_err();
            assert!(!found.contains(closed), "{version}: {found}");
        }
        assert!(judge("nightly", "").is_err());
    }
}
