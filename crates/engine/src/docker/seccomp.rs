//! The system call policy in the container engine's own form.
//!
//! The engine's form cannot say "none of these values" about the low half of an argument, so a rule that needs it is allowed as
//! a whole here. What closes that gap is the filter itself: the agent puts the very program of a native sandbox on before
//! any code runs. This profile holds from the container's first instruction, and for whatever joins it later.

use belljar_jail::seccomp::{Condition, Entry, Verdict, policy};
use serde_json::{Value, json};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// The text of a profile, as the engine takes it.
pub fn profile(network: bool) -> String {
    let named = |verdict: Verdict| -> Vec<&str> {
        policy()
            .iter()
            .filter(|entry| entry.verdict == verdict && !entry.name.is_empty())
            .map(|entry| entry.name)
            .collect()
    };
    let mut calls = vec![
        json!({"names": named(Verdict::Allow), "action": "SCMP_ACT_ALLOW"}),
        json!({"names": named(Verdict::Deny), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}),
        json!({"names": named(Verdict::Absent), "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
        json!({"names": named(Verdict::Kill), "action": "SCMP_ACT_KILL_PROCESS"}),
    ];
    calls.retain(|call| {
        call["names"]
            .as_array()
            .is_some_and(|names| !names.is_empty())
    });
    for entry in policy().iter().filter(|e| e.verdict == Verdict::Rules) {
        calls.extend(rules(entry, network));
    }
    let architecture = if cfg!(target_arch = "aarch64") {
        "SCMP_ARCH_AARCH64"
    } else {
        "SCMP_ARCH_X86_64"
    };
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": [architecture],
        "syscalls": calls,
    })
    .to_string()
}

fn rules(entry: &Entry, network: bool) -> Vec<Value> {
    let further: &[&[Condition]] = if network { entry.network_rules } else { &[] };
    let mut calls = Vec::new();
    for rule in entry.rules.iter().chain(further) {
        // Every combination of one value for each argument.
        let mut combinations: Vec<Vec<Value>> = vec![Vec::new()];
        for condition in rule.iter().filter(|condition| condition.holds_if_found) {
            combinations = combinations
                .iter()
                .flat_map(|so_far| {
                    condition.values.iter().map(move |value| {
                        let mut more = so_far.clone();
                        more.push(json!({
                            "index": condition.arg,
                            "value": condition.mask,
                            "valueTwo": value,
                            "op": "SCMP_CMP_MASKED_EQ",
                        }));
                        more
                    })
                })
                .collect();
        }
        for args in combinations {
            calls.push(json!({"names": [entry.name], "action": "SCMP_ACT_ALLOW", "args": args}));
        }
    }
    // One that allows the call as a whole stands alone.
    if let Some(whole) = calls
        .iter()
        .find(|call| call["args"].as_array().is_some_and(Vec::is_empty))
    {
        return vec![whole.clone()];
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(network: bool) -> Vec<Value> {
        let profile: Value = serde_json::from_str(&profile(network)).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        profile["syscalls"].as_array().unwrap().clone()
    }

    fn action<'a>(calls: &'a [Value], name: &str) -> Vec<&'a Value> {
        let names = |call: &Value| call["names"].as_array().unwrap().iter().any(|n| n == name);
        calls.iter().filter(|call| names(call)).collect()
    }

    #[test]
    fn every_call_has_one_verdict() {
        let calls = calls(false);
        for entry in policy().iter().filter(|entry| !entry.name.is_empty()) {
            let found = action(&calls, entry.name);
            match entry.verdict {
                Verdict::Rules => assert!(
                    found.iter().all(|call| call["action"] == "SCMP_ACT_ALLOW"),
                    "{}",
                    entry.name
                ),
                _ => assert_eq!(found.len(), 1, "{}", entry.name),
            }
        }
        for dangerous in [
            "mount",
            "ptrace",
            "bpf",
            "keyctl",
            "clone3",
            "io_uring_setup",
        ] {
            let found = action(&calls, dangerous);
            assert_eq!(found[0]["action"], "SCMP_ACT_ERRNO", "{dangerous}");
        }
    }

    #[test]
    fn arguments_are_compared_by_their_low_half() {
        let calls = calls(false);
        let clone = action(&calls, "clone");
        assert_eq!(clone.len(), 1);
        assert_eq!(clone[0]["args"][0]["op"], "SCMP_CMP_MASKED_EQ");
        assert_eq!(clone[0]["args"][0]["valueTwo"], 0);
        assert_eq!(action(&calls, "socket").len(), 1);
        assert!(action(&super::tests::calls(true), "socket").len() > 1);
    }
}
