//! Bodies of requests, bounded in size, time and number.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE,
};
use axum::http::{HeaderMap, HeaderValue};
use belljar_spec::{Error, shown};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use crate::admission::Held;
use crate::app::App;
use crate::slots::Slot;
use crate::tenants::Tenant;

/// Smaller ones are not worth counting.
const SMALL: usize = 64 << 10;

/// A body that has arrived. It counts in the budget, and a large one as such, until this is dropped.
pub struct Arrived {
    pub bytes: Bytes,
    _room: (Held, Option<Slot>),
}

/// The body of a JSON request. A browser cannot send this type across origins without asking first.
pub async fn json(
    app: &App,
    tenant: &Tenant,
    headers: &HeaderMap,
    body: Body,
) -> Result<Arrived, Error> {
    check_type(headers, "application/json")?;
    check_encoding(headers)?;
    read(app, tenant, headers, body).await
}

/// Fields of a request over those of a template, as the request that they are together.
pub fn with_template<T: DeserializeOwned>(
    template: Map<String, Value>,
    own: &[u8],
) -> Result<T, Error> {
    let own = belljar_spec::from_json(own)?;
    belljar_spec::from_deserializer(Value::Object(merge(template, own)))
}

/// The request's fields over the template's; limits and environment by their own names. What is null leaves the template's.
fn merge(mut template: Map<String, Value>, own: Map<String, Value>) -> Map<String, Value> {
    let given = |(_, value): &(String, Value)| !value.is_null();
    for (name, value) in own.into_iter().filter(given) {
        match (template.get_mut(&name), value) {
            (Some(Value::Object(below)), Value::Object(above))
                if ["limits", "env", "labels"].contains(&name.as_str()) =>
            {
                below.extend(above.into_iter().filter(given));
            }
            (_, value) => {
                template.insert(name, value);
            }
        }
    }
    template
}

fn check_type(headers: &HeaderMap, accepted: &'static str) -> Result<(), Error> {
    let given = headers.get(CONTENT_TYPE).map_or("", text);
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(accepted) {
        return Ok(());
    }
    Err(Error::UnsupportedMedia {
        what: "type",
        given: shown(given),
        accepted,
    })
}

/// Nothing is unpacked here: a file would be kept as it came, and JSON not be understood.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), Error> {
    let given = headers.get(CONTENT_ENCODING).map_or("identity", text);
    if given.trim().eq_ignore_ascii_case("identity") {
        return Ok(());
    }
    Err(Error::UnsupportedMedia {
        what: "encoding",
        given: shown(given),
        accepted: "it as it is",
    })
}

/// A file is written as a whole, and whatever was there before: who asks for less would lose what they wanted to keep.
pub fn check_whole(headers: &HeaderMap) -> Result<(), Error> {
    let conditions = [CONTENT_RANGE, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];
    let given = conditions.iter().find_map(|name| {
        let value = headers.get(name)?;
        Some(Error::invalid_request(
            name.as_str(),
            text(value),
            "leave it out: a file is written as a whole, whatever was there before",
        ))
    });
    given.map_or(Ok(()), Err)
}

fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or("")
}

/// As announced; what comes is counted all the same.
pub fn announced(headers: &HeaderMap) -> Option<u64> {
    text(headers.get(CONTENT_LENGTH)?).parse().ok()
}

async fn read(
    app: &App,
    tenant: &Tenant,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Arrived, Error> {
    let max = app.config.http.body_bytes;
    let too_large = || Error::BodyTooLarge { max };
    if announced(headers).is_some_and(|bytes| bytes > max) {
        return Err(too_large());
    }
    let pace = Pace::new(app.config.http.read_timeout);
    let mut bytes = BytesMut::new();
    let mut held = app.admission.hold(0)?;
    let mut large = None;
    loop {
        let deadline = pace.deadline(bytes.len() as u64);
        let Some(frame) = next(&mut body, deadline).await? else {
            break;
        };
        if (bytes.len() + frame.len()) as u64 > max {
            return Err(too_large());
        }
        if large.is_none() && bytes.len() + frame.len() > SMALL {
            large = Some(among_large(app, tenant).await?);
        }
        held.grow(frame.len() as u64)?;
        bytes.extend_from_slice(&frame);
    }
    Ok(Arrived {
        bytes: bytes.freeze(),
        _room: (held, large),
    })
}

async fn among_large(app: &App, tenant: &Tenant) -> Result<Slot, Error> {
    let patience = app.config.http.read_timeout;
    if let Some(slot) = app.large_bodies.take(tenant, patience).await {
        return Ok(slot);
    }
    app.metrics.rejected("large_bodies");
    Err(Error::Overloaded {
        reason: "too many large requests are on their way".into(),
        retry_after_s: 2,
    })
}

/// How fast something has to come or go. Each piece has so long, and the whole as long for each mebibyte: what is larger has more
/// time, but no drip of bytes goes on for ever.
pub struct Pace {
    begun: Instant,
    patience: Duration,
}

impl Pace {
    pub fn new(patience: Duration) -> Self {
        Self {
            begun: Instant::now(),
            patience,
        }
    }

    /// Of the next piece, after so many bytes.
    pub fn deadline(&self, bytes: u64) -> Instant {
        let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let whole = self.patience.saturating_mul(mib.saturating_add(1));
        (Instant::now() + self.patience).min(self.begun + whole)
    }
}

/// The next piece, or `None` at the end.
pub async fn next(body: &mut Body, deadline: Instant) -> Result<Option<Bytes>, Error> {
    loop {
        match timeout_at(deadline, body.frame()).await {
            Err(_) => {
                return Err(Error::TooSlow {
                    reason: "the body stopped coming".into(),
                });
            }
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => {
                return Err(Error::MalformedRequest {
                    reason: "the body broke off".into(),
                });
            }
            // Trailers are of no interest.
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_spec::RunRequest;
    use serde_json::json;

    use super::*;

    #[test]
    fn null_leaves_what_the_template_says() {
        let Value::Object(template) = json!({
            "language": "bash", "imports": ["json"], "read_only": false, "limits": {"timeout_ms": 5, "cpus": 1}
        }) else {
            panic!()
        };
        let own = json!({
            "code": "1", "language": null, "imports": null, "read_only": null, "limits": {"timeout_ms": null, "cpus": 2}
        });
        let whole: RunRequest =
            with_template(template.clone(), own.to_string().as_bytes()).unwrap();
        let mut expected = template;
        expected["limits"]["cpus"] = 2.into();
        expected.insert("code".into(), "1".into());
        assert_eq!(whole, from_value(expected));
        let own = json!({"code": "1", "limits": null}).to_string();
        let limits = json!({"limits": {"cpus": 1}}).as_object().cloned().unwrap();
        let whole: RunRequest = with_template(limits, own.as_bytes()).unwrap();
        assert!(whole.limits.cpus.is_some());
    }

    fn from_value(fields: Map<String, Value>) -> RunRequest {
        serde_json::from_value(Value::Object(fields)).unwrap()
    }
}
