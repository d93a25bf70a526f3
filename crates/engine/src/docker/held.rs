//! Whether a container has the limits that were asked for. An engine that cannot keep one leaves it out, with a warning at most.

use bollard::models::HostConfig;

/// Words of warnings that say that a limit does not hold.
const ABOUT_LIMITS: [&str; 4] = ["memory", "swap", "pids", "cpu"];

/// Which limit that was asked for a container does not have.
pub fn missing(asked: &HostConfig, found: &HostConfig) -> Option<String> {
    // Some write it as a share of a period.
    let of_period = match (found.cpu_quota, found.cpu_period) {
        (Some(quota), Some(period)) if quota > 0 && period > 0 => {
            Some(quota.saturating_mul(1_000_000_000) / period)
        }
        _ => None,
    };
    let cpus = found.nano_cpus.filter(|cpus| *cpus > 0).or(of_period);
    let driver = |host: &HostConfig| host.log_config.as_ref().and_then(|log| log.typ.clone());
    let shares = asked.cpu_shares.is_none() || asked.cpu_shares == found.cpu_shares;
    let held = [
        (asked.memory == found.memory, "a limit on memory"),
        (
            asked.memory_swap == found.memory_swap,
            "a limit on memory and swap together",
        ),
        (asked.pids_limit == found.pids_limit, "a limit on processes"),
        (asked.nano_cpus == cpus, "a limit on processors"),
        (shares, "shares of processors"),
        (driver(asked) == driver(found), "the log driver none"),
    ];
    if let Some((_, what)) = held.iter().find(|(held, _)| !held) {
        return Some((*what).into());
    }
    let there = found.ulimits.as_deref().unwrap_or_default();
    let mut wanted = asked.ulimits.iter().flatten();
    let lost = wanted.find(|one| !there.contains(one))?;
    let name = lost.name.as_deref().unwrap_or_default();
    Some(format!("the ulimit {name}"))
}

/// The warning of an engine that a limit will not hold.
pub fn warned(warnings: &[String]) -> Option<&str> {
    let about = |warning: &&String| {
        let text = warning.to_lowercase();
        ABOUT_LIMITS.iter().any(|word| text.contains(word))
    };
    warnings.iter().find(about).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::{HostConfigLogConfig, ResourcesUlimits};

    type Change = fn(&mut HostConfig);

    fn asked() -> HostConfig {
        let ulimit = |name: &str, most| ResourcesUlimits {
            name: Some(name.into()),
            soft: Some(most),
            hard: Some(most),
        };
        HostConfig {
            memory: Some(1 << 28),
            memory_swap: Some(1 << 28),
            pids_limit: Some(65),
            nano_cpus: Some(500_000_000),
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".into()),
                config: None,
            }),
            ulimits: Some(vec![ulimit("nofile", 256), ulimit("fsize", 1 << 20)]),
            ..HostConfig::default()
        }
    }

    #[test]
    fn what_an_engine_leaves_out_is_named() {
        assert_eq!(missing(&asked(), &asked()), None);
        let mut more = asked();
        more.cpu_shares = Some(1024);
        more.ulimits.as_mut().unwrap().reverse();
        assert_eq!(missing(&asked(), &more), None);
        let mut by_period = asked();
        by_period.nano_cpus = Some(0);
        by_period.cpu_quota = Some(50_000);
        by_period.cpu_period = Some(100_000);
        assert_eq!(missing(&asked(), &by_period), None);
        let changes: [(&str, Change); 8] = [
            ("memory", |host| host.memory = Some(0)),
            ("swap", |host| host.memory_swap = Some(-1)),
            ("processes", |host| host.pids_limit = None),
            ("processors", |host| host.nano_cpus = None),
            ("log driver", |host| host.log_config = None),
            ("nofile", |host| host.ulimits = None),
            ("fsize", |host| {
                host.ulimits.as_mut().unwrap().pop();
            }),
            ("nofile", |host| {
                host.ulimits.as_mut().unwrap()[0].hard = Some(1 << 20);
            }),
        ];
        for (word, change) in changes {
            let mut found = asked();
            change(&mut found);
            let named = missing(&asked(), &found).unwrap_or_default();
            assert!(named.contains(word), "{word}: {named}");
        }
        let mut shares = asked();
        shares.cpu_shares = Some(512);
        assert!(missing(&shares, &asked()).is_some());
    }

    #[test]
    fn warnings_about_limits_count() {
        let swap = "Your kernel does not support swap limit capabilities".to_owned();
        let other = "The requested image's platform does not match".to_owned();
        assert_eq!(warned(&[other.clone(), swap.clone()]), Some(swap.as_str()));
        assert_eq!(warned(&[other]), None);
    }
}
