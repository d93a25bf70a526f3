//! Bodies of requests: JSON that is an object, read so that what is wrong is said with its place.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::{Amount, Error, Unit, shown};

/// Longer messages of the parser repeat too much of what a stranger sent.
const MAX_REASON_CHARS: usize = 800;

/// Each takes some eighty bytes where it is kept as a value, and a few times that while it is passed on, however short it is.
const MOST_PARTS: usize = 1 << 19;

/// A request body.
pub fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    if body.trim_ascii().is_empty() {
        return Err(Error::MalformedRequest {
            reason: "the body is empty; give an object, {} at least".into(),
        });
    }
    check_parts(body)?;
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = from_deserializer(&mut json)?;
    json.end().map_err(|error| Error::MalformedRequest {
        reason: error.to_string(),
    })?;
    Ok(read)
}

/// There are not too many, and no integers that do not fit: the parser makes a float of these, which is another number.
fn check_parts(body: &[u8]) -> Result<(), Error> {
    let (mut at, mut parts) = (0, 0);
    while let Some(byte) = body.get(at) {
        let rest = &body[at..];
        at += match byte {
            b'"' => text_length(rest),
            b',' | b'[' | b'{' => {
                parts += 1;
                if parts > MOST_PARTS {
                    let reason = format!(
                        "it has more than {MOST_PARTS} parts (numbers, texts, lists, entries); give large data as a file"
                    );
                    return Err(Error::MalformedRequest { reason });
                }
                1
            }
            b'-' | b'0'..=b'9' => {
                let is_part =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = rest.iter().take_while(|byte| is_part(byte)).count();
                check_integer(&rest[..length])?;
                length
            }
            _ => 1,
        };
    }
    Ok(())
}

fn text_length(rest: &[u8]) -> usize {
    let mut escaped = false;
    let end = rest.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |end| end + 2)
}

fn check_integer(number: &[u8]) -> Result<(), Error> {
    // No more digits than this always fit.
    const SHORT: usize = 18;
    let Ok(text) = std::str::from_utf8(number) else {
        return Ok(());
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits.len() <= SHORT || !is_integer {
        return Ok(());
    }
    if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
        return Ok(());
    }
    Err(Error::MalformedRequest {
        reason: format!(
            "the integer {} has more than 64 bits; give it as {{\"$int\": \"digits\"}}",
            shown(text)
        ),
    })
}

/// The same from where it has been read already.
pub fn from_deserializer<'de, D, T>(deserializer: D) -> Result<T, Error>
where
    D: Deserializer<'de, Error = serde_json::Error>,
    T: Deserialize<'de>,
{
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(deserializer, &mut track);
    object(deserializer).map_err(|error: serde_json::Error| malformed(&track.path(), &error))
}

fn malformed(path: &serde_path_to_error::Path, error: &serde_json::Error) -> Error {
    let printable = |text: String| {
        let mut out = String::new();
        for c in text.chars().take(MAX_REASON_CHARS) {
            if c.is_control() {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        out
    };
    let field = printable(path.to_string());
    let reason = printable(error.to_string());
    // A place that has no name, and text that is no JSON at all.
    if [".", "?"].contains(&field.as_str()) || !error.is_data() {
        return Error::MalformedRequest { reason };
    }
    // What checks itself says where it stands.
    let whole = field.split(['.', '[']).next().unwrap_or_default();
    let said = reason
        .split_once(": ")
        .filter(|(said, _)| [whole, whole.trim_end_matches('s')].contains(said));
    let reason = said.map_or(&*reason, |(_, rest)| rest).to_owned();
    Error::MalformedField { field, reason }
}

/// Only an object: derived types would take a list for their fields in order, too.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Object(PhantomData))
}

/// The same for a list of them, and for one that may be absent.
pub(crate) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    some_objects(deserializer).map(Option::unwrap_or_default)
}

pub(crate) fn some_objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let all = Option::<Vec<Only<T>>>::deserialize(deserializer)?;
    Ok(all.map(|all| all.into_iter().map(|Only(one)| one).collect()))
}

pub fn some_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let only = Option::<Only<T>>::deserialize(deserializer)?;
    Ok(only.map(|Only(one)| one))
}

/// What may be left out may be null as well, which means the same.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

pub(crate) fn object_or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    some_object(deserializer).map(Option::unwrap_or_default)
}

pub(crate) fn or_true<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::deserialize(deserializer).map(|given| given.unwrap_or(true))
}

/// One of a few words. Read as text, since the parser calls anything else in its place no JSON at all, and does not say where.
pub(crate) fn word<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    some_word(deserializer).map(Option::unwrap_or_default)
}

pub(crate) fn some_word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| T::deserialize(text.into_deserializer()))
        .transpose()
}

struct Only<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Only<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        object(deserializer).map(Self)
    }
}

/// A time that may be absent: a number of milliseconds, or text with a unit.
pub fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let Some(given) = Option::<Amount>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let value = given.value(Unit::Milliseconds).ok_or_else(|| {
        D::Error::custom(format!(
            "{given} is not accepted; give at least 1, in milliseconds, or {}",
            Unit::Milliseconds.accepted()
        ))
    })?;
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodeRequest, CommandRequest, RunRequest, SandboxRequest};

    fn refusal<T: DeserializeOwned + fmt::Debug>(body: &str) -> Error {
        from_json::<T>(body.as_bytes()).unwrap_err()
    }

    /// Python and JavaScript would get another number than was written.
    #[test]
    fn integers_that_would_become_floats_are_refused() {
        for number in [
            "18446744073709551616",
            "-9223372036854775809",
            "[1, {\"a\": 123456789012345678901234567890}]",
        ] {
            let body = format!("{{\"code\": \"1\", \"globals\": {{\"x\": {number}}}}}");
            let error = refusal::<RunRequest>(&body);
            assert!(error.to_string().contains("$int"), "{error}");
        }
        for number in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e30",
            "123456789012345678901234567890.0",
            "\"123456789012345678901234567890\"",
            "\"\\\" 123456789012345678901234567890 \\\\\"",
        ] {
            let body = format!("{{\"code\": \"1\", \"globals\": {{\"x\": {number}}}}}");
            from_json::<RunRequest>(body.as_bytes()).unwrap();
        }
    }

    #[test]
    fn lists_are_no_objects() {
        for limits in ["[]", "[5]"] {
            let body = format!("{{\"limits\": {limits}}}");
            for error in [
                refusal::<RunRequest>(&body),
                refusal::<SandboxRequest>(&body),
                refusal::<CodeRequest>(&body),
                refusal::<CommandRequest>(&body),
            ] {
                assert_eq!(error.code(), "invalid_limit", "{error}");
                assert!(error.to_string().contains("expected an object"), "{error}");
            }
        }
        for error in [
            refusal::<RunRequest>("[\"1\"]"),
            refusal::<SandboxRequest>("[]"),
            refusal::<CodeRequest>("[]"),
            refusal::<CommandRequest>("[]"),
            refusal::<RunRequest>(r#"{"tools": [["f"]]}"#),
            refusal::<SandboxRequest>(r#"{"tools": [["f"]]}"#),
            refusal::<CodeRequest>(r#"{"tools": [["f"]]}"#),
            refusal::<CodeRequest>(r#"{"stdin": ["aGk="]}"#),
            refusal::<RunRequest>(r#"{"network": [["example.org", {}, null]]}"#),
        ] {
            assert!(error.info().http_status == 400, "{error}");
        }
    }

    /// As values they take many times what they take as text.
    #[test]
    fn there_are_only_so_many_parts() {
        let body = |item: &str, count: usize| {
            let items = vec![item; count].join(",");
            format!(r#"{{"code": "1", "globals": {{"a": [{items}]}}}}"#)
        };
        for (item, count, fits) in [
            ("1", MOST_PARTS - 10, true),
            ("1", MOST_PARTS + 1, false),
            ("[]", MOST_PARTS / 2 + 1, false),
            (r#"{"a":0}"#, MOST_PARTS / 2 + 1, false),
            (r#""[,{,[\",""#, 1000, true),
        ] {
            let read = from_json::<crate::CodeRequest>(body(item, count).as_bytes());
            assert_eq!(read.is_ok(), fits, "{item} {count}");
        }
        let text = format!(r#"{{"code": "{}"}}"#, ",".repeat(MOST_PARTS + 1));
        assert!(from_json::<crate::CodeRequest>(text.as_bytes()).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (body, code, words) in [
            (
                r#"{"max_runs": "10m"}"#,
                "invalid_request",
                "max_runs: invalid type: string \"10m\", expected u64",
            ),
            (r#"{"env": {"A": 1}}"#, "invalid_env", "env.A: "),
            (
                r#"{"limits": {"cpu_shares": "x"}}"#,
                "invalid_limit",
                "limits.cpu_shares: ",
            ),
            (
                r#"{"idle_timeout_ms": "10"}"#,
                "invalid_request",
                "idle_timeout_ms: \"10\" is not accepted",
            ),
            (
                r#"{"lifetime_ms": -5}"#,
                "invalid_request",
                "lifetime_ms: -5 is not accepted",
            ),
            (
                r#"{"network": ["not a host"]}"#,
                "invalid_network",
                "network[0]: \"not a host\" is not accepted; give none, all",
            ),
            (r#"{"network": "some"}"#, "invalid_network", "network: "),
            (r#"{"volumes": ["x"]}"#, "invalid_volume", "volumes[0]: "),
            (
                r#"{"filesystem": 1}"#,
                "invalid_request",
                "filesystem: invalid type: integer `1`, expected a string",
            ),
            (
                r#"{"filesystem": "ro"}"#,
                "invalid_request",
                "filesystem: unknown variant `ro`, expected `workspace` or `none`",
            ),
            (
                r#"{"backend": {"native": null}}"#,
                "invalid_request",
                "backend: invalid type: map, expected a string",
            ),
            ("{\"a\\u001b[2J\": 1}", "invalid_request", "\\u{1b}[2J"),
            ("{", "invalid_request", "the request is not valid: EOF"),
            (
                " ",
                "invalid_request",
                "the body is empty; give an object, {} at least",
            ),
            ("{} {}", "invalid_request", "trailing"),
        ] {
            let error = refusal::<SandboxRequest>(body);
            assert_eq!(error.code(), code, "{body}: {error}");
            assert!(error.to_string().contains(words), "{body}: {error}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
    }

    #[test]
    fn times_have_units() {
        let request: SandboxRequest =
            from_json(br#"{"idle_timeout_ms": "10m", "lifetime_ms": 5}"#).unwrap();
        assert_eq!(
            (request.idle_timeout_ms, request.lifetime_ms),
            (Some(600_000), Some(5))
        );
        let request: SandboxRequest = from_json(br#"{"idle_timeout_ms": null}"#).unwrap();
        assert_eq!(request.idle_timeout_ms, None);
    }
}
