//! Images of the engine: there already, or fetched when the policy says so.

use belljar_spec::{Error, shown};
use bollard::Docker;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use serde::Deserialize;

use super::failed;

/// When an image is fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// Only what the engine has is used.
    Never,
    #[default]
    Missing,
    /// Asked for anew each time the process first uses it.
    Always,
}

impl std::str::FromStr for Pull {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            "always" => Ok(Self::Always),
            _ => Err(Error::invalid_request(
                "pull",
                text,
                "give never, missing or always",
            )),
        }
    }
}

/// What of an image matters to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The digest of its configuration: it never means another one.
    pub id: String,
    /// `NAME=value`.
    pub env: Vec<String>,
}

/// How far a fetch has come: what is being done, bytes so far, bytes in all.
pub type Progress<'a> = &'a mut (dyn FnMut(&str, u64, u64) + Send);

/// Finds the image, and fetches it first where the policy says so.
pub async fn find(
    client: &Docker,
    reference: &str,
    pull: Pull,
    progress: Progress<'_>,
) -> Result<Image, Error> {
    if pull == Pull::Always {
        fetch(client, reference, progress).await?;
    }
    match inspect(client, reference).await? {
        Some(image) => Ok(image),
        None if pull == Pull::Missing => {
            fetch(client, reference, progress).await?;
            inspect(client, reference)
                .await?
                .ok_or_else(|| absent(reference, "it was fetched, and is not there now"))
        }
        None => Err(absent(
            reference,
            "the container engine does not have it, and the policy is not to fetch it",
        )),
    }
}

fn absent(reference: &str, reason: &str) -> Error {
    Error::InvalidRequest {
        field: "image".into(),
        given: shown(reference),
        accepted: format!("{reason}; get it with: docker pull {}", shown(reference)),
    }
}

async fn inspect(client: &Docker, reference: &str) -> Result<Option<Image>, Error> {
    match client.inspect_image(reference).await {
        Ok(found) => Ok(Some(Image {
            id: found.id.unwrap_or_default(),
            env: found
                .config
                .and_then(|config| config.env)
                .unwrap_or_default(),
        })),
        Err(bollard::errors::Error::DockerResponseServerError {
            status_code: 404, ..
        }) => Ok(None),
        Err(error) => Err(failed("image", &error)),
    }
}

async fn fetch(client: &Docker, reference: &str, progress: Progress<'_>) -> Result<(), Error> {
    // Without a tag the engine would fetch them all.
    let last = reference.rsplit('/').next().unwrap_or(reference);
    let options = CreateImageOptionsBuilder::default().from_image(reference);
    let options = if last.contains([':', '@']) {
        options
    } else {
        options.tag("latest")
    };
    let mut steps = std::pin::pin!(client.create_image(Some(options.build()), None, None));
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| {
            let failed = failed("image", &error);
            absent(reference, &format!("it could not be fetched ({failed})"))
        })?;
        let detail = step.progress_detail.unwrap_or_default();
        let number = |value: Option<i64>| value.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        let text = format!(
            "{} {}",
            step.id.unwrap_or_default(),
            step.status.unwrap_or_default()
        );
        progress(text.trim(), number(detail.current), number(detail.total));
    }
    Ok(())
}
