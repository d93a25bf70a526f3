//! What code shows, as a part of its result. Made while the frame is read: that is where what takes long may.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_spec::{Display, Medium};
use serde::de::Deserializer;
use serde_json::{Map, Value};

use super::bounded;

/// Richest first: the one that a viewer who shows one form should show.
const PREFERENCE: [&str; 8] = [
    "image/png",
    "image/jpeg",
    "image/svg+xml",
    "text/html",
    "text/markdown",
    "text/latex",
    "application/json",
    "text/plain",
];
const MAX_FORMS: usize = 16;

/// `None`: it is too large, or nothing that can be shown.
pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Display>, D::Error> {
    let forms = bounded::object(deserializer)?;
    Ok(forms.and_then(|forms| display(&forms)))
}

fn display(forms: &Map<String, Value>) -> Option<Display> {
    let mut media: Vec<_> = forms
        .iter()
        .take(MAX_FORMS)
        .filter_map(|(mime, data)| Some((mime, medium(mime, data)?)))
        .collect();
    let rank = |mime: &str| PREFERENCE.iter().position(|known| *known == mime);
    media.sort_by_key(|(mime, _)| (rank(mime).unwrap_or(PREFERENCE.len()), *mime));
    let mut media = media.into_iter().map(|(_, medium)| medium);
    let Medium { mime, data } = media.next()?;
    Some(Display {
        mime,
        data,
        alternatives: media.collect(),
    })
}

/// Text as base64; what claims to be base64 already must be.
fn medium(mime: &str, data: &Value) -> Option<Medium> {
    let plausible =
        mime.len() <= 128 && mime.contains('/') && mime.bytes().all(|byte| byte.is_ascii_graphic());
    if !plausible {
        return None;
    }
    let is_text = mime.starts_with("text/")
        || mime == "image/svg+xml"
        || mime.ends_with("json")
        || mime.ends_with("javascript");
    let data = match data {
        Value::String(text) if is_text => STANDARD.encode(text),
        Value::String(encoded) => {
            STANDARD.encode(STANDARD.decode(encoded.replace(['\n', '\r'], "")).ok()?)
        }
        other if is_text => STANDARD.encode(other.to_string()),
        _ => return None,
    };
    Some(Medium {
        mime: mime.to_owned(),
        data,
    })
}
