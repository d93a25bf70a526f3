//! What a request's address asks for, after the question mark.

use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use belljar_spec::Error;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Parameters. What is wrong is said with its name, what was given, and what is accepted.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(Self(read(&parts.uri)?))
    }
}

fn read<T: DeserializeOwned>(uri: &Uri) -> Result<T, Error> {
    let rejection = match Query::try_from_uri(uri) {
        Ok(Query(read)) => return Ok(read),
        Err(rejection) => rejection.body_text(),
    };
    let text = rejection.strip_prefix("Failed to deserialize query string: ");
    let text = text.unwrap_or(&rejection);
    let (name, reason) = text.split_once(": ").unwrap_or(("", text));
    let given = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let mut given = given.map_or_else(|_| Vec::new(), |Query(all)| all);
    let twice = quoted(text, "duplicate field ");
    let unknown = quoted(text, "unknown field ");
    let name = twice.or(unknown).unwrap_or(name);
    given.retain(|(own, _)| own == name);
    match given.pop() {
        Some(_) if unknown.is_some() => {
            Err(Error::invalid_request("query", name, accepted(reason)))
        }
        Some((_, value)) if twice.is_some() => {
            Err(Error::invalid_request(name, &value, "give it once"))
        }
        Some((_, value)) => Err(Error::invalid_request(name, &value, accepted(reason))),
        None => Err(Error::MalformedRequest {
            reason: format!("query: {text}"),
        }),
    }
}

/// ``duplicate field `limit` ``.
fn quoted<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.strip_prefix('`')?.split('`').next()
}

/// In our words what the parser says in its own.
fn accepted(reason: &str) -> String {
    if let Some((_, expected)) = reason.rsplit_once(", expected ") {
        return format!("give {}", expected.replace('`', ""));
    }
    match reason {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "give a whole number, in digits".into()
        }
        "number too large to fit in target type" => "give a smaller number".into(),
        "provided string was not `true` or `false`" => "give true or false".into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::Manner;
    use crate::files::Listing;
    use crate::history;

    fn refusal<T: DeserializeOwned>(query: &str) -> String {
        let uri = format!("/v1/x?{query}").parse().unwrap();
        match read::<T>(&uri) {
            Ok(_) => panic!("{query} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_name() {
        for (query, said) in [
            (
                "limit=abc",
                "limit: \"abc\" is not accepted; give a whole number, in digits",
            ),
            (
                "limit=",
                "limit: \"\" is not accepted; give a whole number, in digits",
            ),
            (
                "limit=-1",
                "limit: \"-1\" is not accepted; give a whole number, in digits",
            ),
            (
                "limit=99999999999",
                "limit: \"99999999999\" is not accepted; give a smaller number",
            ),
            (
                "limit=1&limit=2",
                "limit: \"2\" is not accepted; give it once",
            ),
            (
                "status=fine",
                "status: \"fine\" is not accepted; give one of ok, failed, compile_failed, timed_out, out_of_memory, killed",
            ),
        ] {
            assert_eq!(refusal::<history::Query>(query), said);
        }
        assert_eq!(
            refusal::<Listing>("deep=1"),
            "query: \"deep\" is not accepted; give one of path, depth, limit, skip"
        );
        assert_eq!(
            refusal::<Manner>("attended=yes"),
            "attended: \"yes\" is not accepted; give true or false"
        );
        let odd = refusal::<Listing>("limit=%22%0a%1b");
        assert!(!odd.contains(char::is_control), "{odd}");
    }
}
