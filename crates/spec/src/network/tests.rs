use super::*;
use proptest::prelude::*;

#[test]
fn rules() {
    for (given, shown) in [
        ("example.org", "example.org"),
        ("Example.ORG:443", "example.org:443"),
        ("*.example.org", "*.example.org"),
        ("*.example.org:8080", "*.example.org:8080"),
        ("localhost", "localhost"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
        ("::1", "::1"),
        ("fd00::/8", "fd00::/8"),
        ("[fd00::/8]:80", "[fd00::/8]:80"),
        ("[::1]:80", "[::1]:80"),
        ("all", "all"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ] {
        assert_eq!(given.parse::<HostRule>().unwrap().to_string(), shown);
    }
    for bad in [
        "",
        "*",
        "*.",
        "a b",
        "http://example.org",
        "example.org/",
        "example.org/8",
        "example.org:",
        "example.org:0",
        "example.org:+80",
        "example.org:65536",
        "example.org:80:80",
        "a.*.b",
        "-a.org",
        "a..b",
        "*.10.0.0.1",
        "*.::1",
        "127.1",
        "0x7f.1",
        "a.0X7f",
        "2130706433",
        "10.0.0.0/33",
        "10.0.0.0/0",
        "10.0.0.1/8",
        "10.0.0.0/+8",
        "::/0",
        "bücher.example",
        "a\0b",
        "[::1",
        "[::1]80",
        "[10.0.0.1]:80",
        "all,none,",
        "user@host",
    ] {
        assert!(bad.parse::<HostRule>().is_err(), "{bad}");
    }
}

#[test]
fn a_rule_that_is_nearly_right_is_told_how_to_be() {
    for (bad, word) in [
        ("all:443", "stands alone"),
        ("ALL", "stands alone"),
        ("none:80", "stands alone"),
        ("example.org.", "without the dot"),
        ("example.org.:443", "without the dot"),
        ("bücher.example", "xn--"),
        ("http://example.org", "hosts like"),
    ] {
        let error = bad.parse::<HostRule>().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn wildcards_are_exact() {
    let below: HostRule = "*.a.com".parse().unwrap();
    for (name, fits) in [
        ("x.a.com", true),
        ("x.y.a.com", true),
        ("a.com", false),
        ("aa.com", false),
        (".a.com", false),
        ("a.com.evil.com", false),
        ("xa.com", false),
    ] {
        assert_eq!(below.target.names(name), fits, "{name}");
    }
    let one: HostRule = "a.com".parse().unwrap();
    assert!(one.target.names("a.com") && !one.target.names("x.a.com"));
    assert!(one.covers_port(80) && one.covers_port(443) && !one.covers_port(22));
    let block: HostRule = "10.0.0.0/8:22".parse().unwrap();
    assert!(block.target.holds("10.9.9.9".parse().unwrap()) && block.covers_port(22));
    assert!(!block.target.holds("11.0.0.0".parse().unwrap()) && !block.covers_port(80));
    assert!(!block.target.holds("::ffff:10.0.0.1".parse().unwrap()));
}

#[test]
fn as_flag_and_as_json() {
    assert_eq!("none".parse::<Network>().unwrap(), Network::default());
    assert_eq!("all".parse(), Ok(Network::from(Allow::All)));
    let list: Network = "index.example, *.files.example:443".parse().unwrap();
    let json = serde_json::to_string(&list).unwrap();
    assert_eq!(json, r#"["index.example","*.files.example:443"]"#);
    assert_eq!(serde_json::from_str::<Network>(&json).unwrap(), list);
    assert_eq!("".parse::<Network>().unwrap_err().code(), "invalid_network");
    for bad in [
        "\"some\"",
        "1",
        "null",
        "[1]",
        "[\"a b\"]",
        "{}",
        r#"{"allow": "all", "connections": 0}"#,
        r#"{"allow": "all", "connections": "many"}"#,
        r#"{"allow": "all", "speed": 1}"#,
        r#"[{"host": "a.com", "headers": {"Host": "b.com"}}]"#,
        r#"[{"host": "a.com", "headers": {"X": "a\r\nY: b"}}]"#,
        r#"[{"host": "a.com", "headers": {"X Y": "a"}}]"#,
        r#"[{"host": "10.0.0.1", "headers": {"X": "a"}}]"#,
        r#"[{"host": "a.com", "secret": 1}]"#,
    ] {
        assert!(serde_json::from_str::<Network>(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_empty_list_allows_nothing_and_is_not_none() {
    let network: Network = serde_json::from_str("[]").unwrap();
    assert_eq!(network.allow, Allow::Only(Vec::new()));
    assert!(!network.is_none());
}

#[test]
fn secrets_are_written_nowhere() {
    let text = r#"{"allow": [{"host": "api.example.org", "headers": {"Authorization": "Bearer hush"}, "env": "API_KEY"}], "bytes": "1m"}"#;
    let network: Network = serde_json::from_str(text).unwrap();
    assert_eq!(network.caps.bytes, 1 << 20);
    assert_eq!(
        network.rules()[0].headers["Authorization"].expose(),
        "Bearer hush"
    );
    let json = serde_json::to_string(&network).unwrap();
    assert!(
        json.contains("Authorization") && json.contains("API_KEY"),
        "{json}"
    );
    assert!(!json.contains("hush") && !format!("{network:?}").contains("hush"));
}

proptest! {
    #[test]
    fn rules_come_back(text in "[a-z0-9.:*/\\[\\]-]{0,16}") {
        if let Ok(rule) = text.parse::<HostRule>() {
            prop_assert_eq!(rule.to_string().parse::<HostRule>(), Ok(rule));
        }
    }
}

#[test]
fn what_is_shown_of_a_secret_is_none() {
    let rule = |value: &str| {
        let mut rule: HostRule = "a.com".parse().unwrap();
        rule.headers.insert("X-Key".into(), Secret::new(value));
        rule.check()
    };
    assert!(rule("hush").is_ok());
    let error = rule("…").unwrap_err().to_string();
    assert!(error.contains("not shown"), "{error}");
}
