//! Holes in runc that let containers out, and whether a release still has them.
//!
//! Distributions close holes without changing the release's number. What their packages have closed is known of some, and else told
//! by the package's own list of changes; where neither says it, neither do we.

use std::io::Read;

use flate2::read::GzDecoder;

struct Hole {
    name: &'static str,
    /// The first release that had it.
    since: Version,
    /// The first release of each branch without it. Branches after the last of these never had it; others are left open.
    closed: &'static [Version],
    /// Debian's packages that closed it without a new release: the suite, and the first update in it.
    debian: &'static [(&'static str, u32)],
}

const ALWAYS: Version = Version(0, 0, 0, 0);
/// Three that were found and closed together.
const OF_NOVEMBER_2025: &[Version] = &[
    Version::release(1, 2, 8),
    Version::release(1, 3, 3),
    Version(1, 4, 0, 3),
];

const HOLES: [Hole; 7] = [
    Hole {
        name: "CVE-2019-5736",
        since: ALWAYS,
        closed: &[Version(1, 0, 0, 7)],
        debian: &[],
    },
    Hole {
        name: "CVE-2021-30465",
        since: ALWAYS,
        closed: &[Version(1, 0, 0, 95)],
        debian: &[],
    },
    Hole {
        name: "CVE-2024-21626",
        since: Version(1, 0, 0, 93),
        closed: &[Version::release(1, 1, 12)],
        debian: &[("+deb11u", 3), ("+deb12u", 1)],
    },
    Hole {
        name: "CVE-2025-31133",
        since: ALWAYS,
        closed: OF_NOVEMBER_2025,
        debian: &[],
    },
    Hole {
        name: "CVE-2025-52565",
        since: Version(1, 0, 0, 3),
        closed: OF_NOVEMBER_2025,
        debian: &[],
    },
    Hole {
        name: "CVE-2025-52881",
        since: ALWAYS,
        closed: OF_NOVEMBER_2025,
        debian: &[],
    },
    Hole {
        name: "CVE-2026-41579",
        since: ALWAYS,
        closed: &[
            Version::release(1, 3, 6),
            Version::release(1, 4, 3),
            Version(1, 5, 0, 3),
        ],
        debian: &[],
    },
];
const UPGRADE: &str = "upgrade runc to 1.3.6, 1.4.3, 1.5.0 or later";
/// Where Debian and its descendants keep it, and how much of it is read.
const CHANGELOG: &str = "/usr/share/doc/runc/changelog.Debian.gz";
const CHANGELOG_BYTES: u64 = 4 << 20;

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
            Some(number) => leading_number(number.trim_start_matches('.')).unwrap_or(0),
            // What a distribution counts, or has packed anew.
            None if rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit()) => u32::MAX,
            None if rest.starts_with("ds") || rest.starts_with("dfsg") => u32::MAX,
            None => 0,
        };
        Some(Self(major, minor, patch, candidate))
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

impl Hole {
    fn is_open_in(&self, version: Version) -> bool {
        if version < self.since {
            return false;
        }
        let here = self.closed.iter();
        let mut here = here.filter(|closed| closed.branch() == version.branch());
        match here.next() {
            Some(closed) => version < *closed,
            None => self.closed.iter().any(|closed| version < *closed),
        }
    }

    fn is_closed_by(&self, packaged: &str, changelog: Option<&str>) -> bool {
        let updated = |(suite, first): &(&str, u32)| {
            let update = packaged.split_once(suite);
            update.and_then(|(_, update)| leading_number(update)) >= Some(*first)
        };
        // Its first line names the package that it is of.
        let told = |changes: &str| {
            let first = changes.lines().next().unwrap_or_default();
            first.starts_with(&format!("runc ({packaged})")) && changes.contains(self.name)
        };
        self.debian.iter().any(updated) || changelog.is_some_and(told)
    }
}

/// The list of changes of this host's package.
pub fn changelog() -> Option<String> {
    let file = std::fs::File::open(CHANGELOG).ok()?;
    let mut text = Vec::new();
    let mut reader = GzDecoder::new(file).take(CHANGELOG_BYTES);
    reader.read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// What is known of a release. `packaged` is what a distribution calls it, where it is one's.
pub fn judge(
    version: &str,
    packaged: &str,
    changelog: Option<&str>,
) -> Result<String, (String, String)> {
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
    let distribution = version.contains(['+', '~'])
        || version.contains("ubuntu")
        || packaged.contains("+deb")
        || packaged.contains(".el");
    let had = HOLES.iter().filter(|hole| hole.is_open_in(number));
    let (closed, open): (Vec<_>, Vec<_>) =
        had.partition(|hole| distribution && hole.is_closed_by(packaged, changelog));
    let named = |holes: &[&Hole]| {
        let names: Vec<_> = holes.iter().map(|hole| hole.name).collect();
        names.join(", ")
    };
    let mut found = format!("version {version}");
    if !closed.is_empty() {
        found = format!("{found} ({packaged}, which has closed {})", named(&closed));
    }
    if open.is_empty() {
        return Ok(format!("{found}, no known way out"));
    }
    found = format!("{found}: open to {}", named(&open));
    if distribution {
        return Err((
            format!(
                "{found}, unless the distribution has closed them, which cannot be told from here"
            ),
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
            ("1.0.0-rc94", "CVE-2021-30465"),
            ("1.0.0-rc93", "CVE-2024-21626"),
            ("1.0.3", "CVE-2024-21626"),
            ("1.1.11", "CVE-2024-21626"),
            ("1.1.5+ds1", "CVE-2024-21626"),
            ("1.1.12", "CVE-2025-31133"),
            ("1.1.12", "CVE-2025-52565"),
            ("1.1.12", "CVE-2025-52881"),
            ("1.1.99", "CVE-2025-31133"),
            ("1.2.7", "CVE-2025-52881"),
            ("1.3.2", "CVE-2025-52565"),
            ("1.4.0-rc.1", "CVE-2025-31133"),
            ("1.4.0-rc.2", "CVE-2025-52881"),
            ("1.2.99", "CVE-2026-41579"),
            ("1.3.5", "CVE-2026-41579"),
            ("1.4.0", "CVE-2026-41579"),
            ("1.4.2", "CVE-2026-41579"),
            ("1.5.0-rc.2", "CVE-2026-41579"),
            ("1.5.0-dev", "CVE-2026-41579"),
        ] {
            let (found, fix) = judge(version, "", None).unwrap_err();
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
            assert!(judge(fine, "", None).is_ok(), "{fine}");
        }
        for (version, closed) in [
            ("1.0.0-rc7", "CVE-2019-5736"),
            ("1.0.0-rc95", "CVE-2021-30465"),
            ("1.0.0-rc92", "CVE-2024-21626"),
            ("1.1.12-0ubuntu3", "CVE-2024-21626"),
            ("1.2.0-rc.1", "CVE-2024-21626"),
            ("1.2.8", "CVE-2025"),
            ("1.3.3", "CVE-2025"),
            ("1.4.0-rc.3", "CVE-2025"),
            ("1.4.0", "CVE-2025"),
            ("1.5.0-rc.1", "CVE-2025"),
        ] {
            let (found, _) = judge(version, "", None).unwrap_err();
            assert!(!found.contains(closed), "{version}: {found}");
        }
        assert!(judge("nightly", "", None).is_err());
    }

    fn open(version: &str, packaged: &str, changelog: Option<&str>) -> String {
        let (found, _) = judge(version, packaged, changelog).unwrap_err();
        let (_, open) = found.split_once(": open to ").unwrap();
        open.to_owned()
    }

    #[test]
    fn what_debian_has_closed_is_closed() {
        let package = "1.1.5+ds1-1+deb12u1";
        let (found, fix) = judge("1.1.5+ds1", package, None).unwrap_err();
        assert!(
            found.contains(
                "(1.1.5+ds1-1+deb12u1, which has closed CVE-2024-21626): open to CVE-2025-31133, "
            ),
            "{found}"
        );
        assert!(found.contains("cannot be told"), "{found}");
        assert!(fix.contains("security tracker"), "{fix}");
        // The package before it, the same of the suite before, and a later update.
        for (version, package, is_open) in [
            ("1.1.5+ds1", "1.1.5+ds1-1+b1", true),
            ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u2", true),
            ("1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u5", false),
            ("1.1.5+ds1", "1.1.5+ds1-1+deb12u10", false),
        ] {
            let open = open(version, package, None);
            assert_eq!(
                open.contains("CVE-2024-21626"),
                is_open,
                "{package}: {open}"
            );
        }
    }

    #[test]
    fn a_package_tells_what_it_has_closed() {
        let package = "1.1.5+ds1-1+deb12u2";
        let changes =
            format!("runc ({package}) bookworm-security\n\n  * CVE-2025-31133 CVE-2025-52881\n");
        let left = open("1.1.5+ds1", package, Some(&changes));
        assert!(!left.contains("31133") && !left.contains("52881"), "{left}");
        assert!(left.contains("CVE-2025-52565"), "{left}");
        // Another package's list says nothing about this one.
        let left = open("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", Some(&changes));
        assert!(left.contains("CVE-2025-31133"), "{left}");
        // Nor does one about a release that no distribution has touched.
        let left = open("1.1.5", "v1.1.5-0-gf19387a6", Some(&changes));
        assert!(left.contains("CVE-2025-31133"), "{left}");
    }
}
