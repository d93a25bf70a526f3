//! `belljar doctor` says what `belljar run` then does.

use serde_json::Value;

use super::harness::{Ended, belljar, is_root, run};

fn doctor(args: &[&str]) -> Ended {
    belljar().arg("doctor").args(args).output().unwrap().into()
}

#[test]
fn it_agrees_with_run() {
    let ended = doctor(&[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    assert!(ended.stdout.contains("works here"), "{ended:?}");
    assert_eq!(run(&["-c", "pass"]).code, 0);
}

#[test]
fn every_check_has_a_reason() {
    let examined: Value = serde_json::from_str(&doctor(&["--json"]).stdout).unwrap();
    assert_eq!(examined["ok"], true, "{examined:#}");
    assert_eq!(
        examined["mode"],
        if is_root() { "root" } else { "rootless" }
    );
    let checks = examined["checks"].as_array().unwrap();
    for name in [
        "user namespace",
        "cgroups",
        "landlock",
        "seccomp",
        "overlayfs",
        "sandbox",
    ] {
        assert!(
            checks.iter().any(|check| check["name"] == name),
            "{name}: {examined:#}"
        );
    }
    for check in checks {
        assert!(
            check["why"].as_str().is_some_and(|why| !why.is_empty()),
            "{check:#}"
        );
        assert!(
            check["found"]
                .as_str()
                .is_some_and(|found| !found.is_empty()),
            "{check:#}"
        );
        if check["ok"] == false {
            assert!(
                check["fix"].as_str().is_some_and(|fix| !fix.is_empty()),
                "{check:#}"
            );
        }
    }
}
