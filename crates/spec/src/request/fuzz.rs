//! Bodies from anybody.

use proptest::prelude::*;
use serde::Serialize;

use super::*;
use crate::{CodeRequest, CommandRequest, SandboxRequest, code_from_bytes};

/// What somebody might put into any field.
const ODD: &[&str] = &[
    "null",
    "true",
    "0",
    "-1",
    "0.5",
    "1e308",
    "1e999",
    "18446744073709551616",
    "\"\"",
    "\"1\"",
    "\"64m\"",
    "\"99999999999g\"",
    "\"nan\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"é\"",
    "\"../x\"",
    "\"/etc\"",
    "\"/tmp:/x:rw\"",
    "\"none\"",
    "\"*.a:1\"",
    "[]",
    "[[]]",
    "[\"\"]",
    "[\"a\",\"-rf\"]",
    "[\"/a:/b\"]",
    "[{\"name\":\"t\"}]",
    "{}",
    "{\"\":\"\"}",
    "{\"a\":\"b\"}",
    "{\"../a\":\"b\"}",
    "{\"a\":{\"base64\":\"!\"}}",
    "{\"a\":{\"base64\":\"AAAA\"}}",
    "{\"memory_bytes\":\"1g\",\"timeout_ms\":-0.0}",
    "{\"cpus\":1e-9}",
    "{\"$bytes\":1}",
];

fn names_of(request: &impl Serialize) -> Vec<String> {
    let fields = serde_json::to_value(request).unwrap();
    fields.as_object().unwrap().keys().cloned().collect()
}

/// A body of which each field is one that there is, with a value that it may or may not have.
fn odd_body() -> impl Strategy<Value = String> {
    let mut names = names_of(&RunRequest::default());
    names.extend(names_of(&SandboxRequest::default()));
    names.extend(names_of(&CommandRequest::default()));
    let field = (prop::sample::select(names), prop::sample::select(ODD));
    prop::collection::vec(field, 0..6).prop_map(|fields| {
        let fields = fields
            .iter()
            .map(|(name, value)| format!("\"{name}\":{value}"));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    })
}

proptest! {
    /// Whatever comes, it is refused or it is a request that holds to its own rules.
    #[test]
    fn fuzz_bodies(bytes in prop::collection::vec(any::<u8>(), 0..200), odd in odd_body()) {
        let with_code = odd.replacen('{', "{\"code\":\"1\",", 1).replace(",}", "}");
        for body in [&bytes[..], odd.as_bytes(), with_code.as_bytes()] {
            if let Ok(request) = RunRequest::from_json(body) {
                let again = serde_json::to_vec(&request).unwrap();
                prop_assert_eq!(RunRequest::from_json(&again).unwrap(), request);
            }
            let _ = json::from_json::<SandboxRequest>(body).and_then(|request| request.check());
            let _ = json::from_json::<CodeRequest>(body).and_then(|request| request.check());
            let _ = json::from_json::<CommandRequest>(body).and_then(|request| request.check());
        }
        let _ = code_from_bytes(bytes);
    }
}
