use super::*;
use proptest::prelude::*;

const HOST: HostCapacity = HostCapacity {
    memory_bytes: 8 << 30,
    cpus: 2,
    open_files: 1 << 20,
    maxima: Maxima::NONE,
};

fn resolve(json: &str) -> Result<Limits, Error> {
    serde_json::from_str::<LimitsPatch>(json)
        .unwrap()
        .resolve(&LimitsPatch::default(), &HOST)
}

#[test]
fn the_table_is_sound() {
    for row in &LIMITS {
        assert!(
            row.minimum > 0 && row.minimum <= row.default,
            "{}",
            row.json
        );
        assert!(
            row.maximum.is_none_or(|max| row.default <= max),
            "{}",
            row.json
        );
        assert_eq!(row.kind.row().json, row.json);
        let mut patch = LimitsPatch::default();
        *patch.get_mut(row.kind) = Some(Amount::from(7));
        assert_eq!(
            serde_json::to_string(&patch).unwrap(),
            format!("{{\"{}\":7}}", row.json)
        );
        assert_eq!(patch.get(row.kind), Some(&Amount::from(7)));
    }
}

#[test]
fn a_weight_of_cpu_time_is_what_the_kernel_takes() {
    let resolved = |text: &str| {
        let patch: LimitsPatch = serde_json::from_str(text).unwrap();
        patch.resolve(&LimitsPatch::default(), &HOST)
    };
    assert_eq!(resolved("{}").unwrap().cpu_shares, None);
    assert_eq!(
        resolved(r#"{"cpu_shares": 512}"#).unwrap().cpu_shares,
        Some(512)
    );
    for wrong in [0, 1, 262_145] {
        let error = resolved(&format!(r#"{{"cpu_shares": {wrong}}}"#)).unwrap_err();
        assert!(error.to_string().contains("from 2 to 262144"), "{error}");
    }
    let weaker = LimitsPatch {
        cpu_shares: Some(7),
        ..LimitsPatch::default()
    };
    assert_eq!(LimitsPatch::default().or(&weaker).cpu_shares, Some(7));
}

#[test]
fn defaults_are_the_contracts() {
    insta::assert_json_snapshot!(resolve("{}").unwrap(), @r#"
    {
      "timeout_ms": 30000,
      "memory_bytes": 536870912,
      "cpus": 1.0,
      "processes": 128,
      "output_bytes": 100000,
      "disk_bytes": 134217728,
      "open_files": 1024
    }
    "#);
}

#[test]
fn messages_name_field_given_and_accepted() {
    let message = |json| resolve(json).unwrap_err().to_string();
    assert_eq!(
        message(r#"{"memory_bytes": 0}"#),
        "limit memory_bytes (--memory): 0 is not accepted; give a size with a unit (b, k, m, g, kb, mb, gb, kib, \
         mib, gib) from 4mib to 8gib, which is what this host has"
    );
    assert_eq!(
        message(r#"{"timeout_ms": "30"}"#),
        "limit timeout_ms (--timeout): \"30\" is not accepted; give a time with a unit (ms, s, m, h, d, w) from 1ms to 1h"
    );
    assert_eq!(
        message(r#"{"cpus": 2.5}"#),
        "limit cpus (--cpus): 2.5 is not accepted; give a number of cores from 0.01 to 2, which is what this host has"
    );
    assert_eq!(
        message(r#"{"processes": -1}"#),
        "limit processes (--processes): -1 is not accepted; give a whole number without a unit from 1 to 4096"
    );
}

#[test]
fn messages_say_whose_maximum_it_is() {
    let patch = |json: &str| serde_json::from_str::<LimitsPatch>(json).unwrap();
    let lowered = patch(r#"{"memory_bytes": "1g", "timeout_ms": "1m"}"#);
    let host = HostCapacity {
        maxima: Maxima::new(&lowered, &HOST).unwrap(),
        ..HOST
    };
    for (given, words) in [
        (
            r#"{"memory_bytes": "2g"}"#,
            "1gib, which is what this daemon allows",
        ),
        (
            r#"{"timeout_ms": "2m"}"#,
            "1m, which is what this daemon allows",
        ),
        (r#"{"cpus": 99}"#, "2, which is what this host has"),
        (r#"{"open_files": 65537}"#, "from 16 to 65536"),
    ] {
        let error = patch(given).resolve(&LimitsPatch::default(), &host);
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with(words), "{error}");
    }
}

#[test]
fn no_more_files_than_were_inherited() {
    let host = HostCapacity {
        open_files: 512,
        ..HOST
    };
    let resolve = |json: &str| {
        let patch = serde_json::from_str::<LimitsPatch>(json).unwrap();
        patch.resolve(&LimitsPatch::default(), &host)
    };
    assert_eq!(resolve("{}").unwrap().open_files, 512);
    let error = resolve(r#"{"open_files": 513}"#).unwrap_err().to_string();
    assert!(
        error.ends_with("from 16 to 512, which is what this host has"),
        "{error}"
    );
}

#[test]
fn nothing_means_unlimited() {
    for row in &LIMITS {
        for value in [
            "0",
            "-1",
            "-0.0",
            "1e300",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "\"\"",
            "\"0\"",
            "\"nan\"",
            "\"inf\"",
            "\"-1s\"",
            "\"max\"",
            "\"unlimited\"",
            "true",
            "false",
        ] {
            let error = resolve(&format!("{{\"{}\": {value}}}", row.json)).unwrap_err();
            assert_eq!(error.code(), "invalid_limit", "{} {value}", row.json);
        }
        let toml = toml::from_str::<LimitsPatch>(&format!("{} = nan", row.json)).unwrap();
        assert!(toml.resolve(&LimitsPatch::default(), &HOST).is_err());
    }
    assert!(serde_json::from_str::<LimitsPatch>(r#"{"memory": 1}"#).is_err());
    assert!(serde_json::from_str::<LimitsPatch>(r#"{"memory_bytes": [1]}"#).is_err());
    assert_eq!(
        resolve(r#"{"memory_bytes": null}"#).unwrap().memory_bytes,
        512 << 20
    );
}

#[test]
fn the_stronger_word_wins() {
    let patch = |text: &str| toml::from_str::<LimitsPatch>(text).unwrap();
    let asked = patch("timeout_ms = '2s'").or(&patch("timeout_ms = '9s'\nprocesses = 9"));
    let runtime = patch("processes = 64\nmemory_bytes = '1g'\nopen_files = 4096");
    let limits = asked.resolve(&runtime, &HOST).unwrap();
    assert_eq!((limits.timeout_ms, limits.processes), (2000, 9));
    assert_eq!((limits.memory_bytes, limits.open_files), (1 << 30, 4096));
}

#[test]
fn an_operator_lowers_and_raises_maxima() {
    let patch = |text: &str| toml::from_str::<LimitsPatch>(text).unwrap();
    let set = patch("timeout_ms = '5h'\nprocesses = 10000\nmemory_bytes = '256m'");
    let host = HostCapacity {
        maxima: Maxima::new(&set, &HOST).unwrap(),
        ..HOST
    };
    let resolve = |text: &str| patch(text).resolve(&LimitsPatch::default(), &host);
    let raised = resolve("timeout_ms = '4h'\nprocesses = 9000").unwrap();
    assert_eq!((raised.timeout_ms, raised.processes), (4 * 3_600_000, 9000));
    // Below a lower one are those too that ask for nothing.
    assert_eq!(raised.memory_bytes, 256 << 20);
    for (text, most) in [
        ("memory_bytes = '257m'", "256m"),
        ("timeout_ms = '6h'", "5h"),
        ("disk_bytes = '17g'", "16g"),
    ] {
        let error = resolve(text).unwrap_err().to_string();
        assert!(error.contains(most), "{error}");
    }
    // What a host cannot do no setting makes it do.
    for bad in [
        "memory_bytes = '9g'",
        "cpus = 3",
        "timeout_ms = '9999h'",
        "processes = 0",
        "open_files = 'x'",
    ] {
        assert!(Maxima::new(&patch(bad), &HOST).is_err(), "{bad}");
    }
}

#[test]
fn a_small_host_lowers_defaults_but_not_what_was_asked() {
    let host = HostCapacity {
        memory_bytes: 256 << 20,
        cpus: 1,
        open_files: 1 << 20,
        maxima: Maxima::NONE,
    };
    let runtime = LimitsPatch {
        cpus: Some(Amount::from(4)),
        ..LimitsPatch::default()
    };
    let limits = LimitsPatch::default().resolve(&runtime, &host).unwrap();
    assert_eq!((limits.memory_bytes, limits.cpus), (256 << 20, 1.0));
    assert!(runtime.resolve(&LimitsPatch::default(), &host).is_err());
}

proptest! {
    #[test]
    fn any_text_stays_within_the_table(text in "[0-9.]{0,12}[a-zA-Z]{0,3}") {
        for row in &LIMITS {
            if let Ok(value) = row.check(&Amount::from(text.as_str()), &HOST) {
                prop_assert!((row.minimum..=row.maximum_on(&HOST)).contains(&value));
            }
        }
    }
}
