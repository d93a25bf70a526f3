//! Images of the engine: there already, or fetched when the policy says so.

use belljar_spec::{Error, shown};
use bollard::Docker;
use bollard::auth::DockerCredentials;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use serde::Deserialize;

use super::{declared, failed};
use crate::image::Name;
use crate::image::credentials::{self, Login};

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
    /// Places that it declares as volumes.
    pub volumes: Vec<String>,
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
        fetch(client, reference, login(reference).await?, progress).await?;
    }
    match inspect(client, reference).await? {
        Some(image) => Ok(image),
        None if pull == Pull::Missing => {
            fetch(client, reference, login(reference).await?, progress).await?;
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

pub fn absent(reference: &str, reason: &str) -> Error {
    Error::InvalidRequest {
        field: "image".into(),
        given: shown(reference),
        accepted: format!("{reason}; get it with: docker pull {}", shown(reference)),
    }
}

/// Whether a container could not be made for want of its image.
pub fn is_gone(error: &bollard::errors::Error) -> bool {
    use bollard::errors::Error::DockerResponseServerError as Answer;
    matches!(error, Answer { status_code: 404, message } if message.to_lowercase().contains("no such image"))
}

async fn inspect(client: &Docker, reference: &str) -> Result<Option<Image>, Error> {
    match client.inspect_image(reference).await {
        Ok(found) => {
            let config = found.config.unwrap_or_default();
            Ok(Some(Image {
                id: found.id.unwrap_or_default(),
                env: config.env.unwrap_or_default(),
                volumes: declared::places(&config.volumes.unwrap_or_default()),
            }))
        }
        Err(bollard::errors::Error::DockerResponseServerError {
            status_code: 404, ..
        }) => Ok(None),
        Err(error) => Err(failed("image", &error)),
    }
}

/// Who the caller is where the image comes from. The engine does not look into the caller's files.
async fn login(reference: &str) -> Result<Option<DockerCredentials>, Error> {
    // Names that the engine alone understands are for it to judge.
    let Ok(name) = reference.parse::<Name>() else {
        return Ok(None);
    };
    let registry = name.registry().to_owned();
    let asked = registry.clone();
    // Helpers are programs that may take their time.
    let found = tokio::task::spawn_blocking(move || credentials::login(&asked)).await;
    let found = found.map_err(|error| absent(reference, &error.to_string()))?;
    let found = found.map_err(|reason| absent(reference, &reason))?;
    Ok(told(found, &registry))
}

/// In the engine's words.
fn told(login: Login, registry: &str) -> Option<DockerCredentials> {
    let address = match registry {
        "docker.io" => "https://index.docker.io/v1/",
        other => other,
    };
    let mut told = DockerCredentials {
        serveraddress: Some(address.to_owned()),
        ..DockerCredentials::default()
    };
    match login {
        Login::Nobody => return None,
        Login::Password(name, password) => {
            told.username = Some(name);
            told.password = Some(password);
        }
        Login::Identity(token) => told.identitytoken = Some(token),
    }
    Some(told)
}

async fn fetch(
    client: &Docker,
    reference: &str,
    login: Option<DockerCredentials>,
    progress: Progress<'_>,
) -> Result<(), Error> {
    // Without a tag the engine would fetch them all.
    let last = reference.rsplit('/').next().unwrap_or(reference);
    let options = CreateImageOptionsBuilder::default().from_image(reference);
    let options = if last.contains([':', '@']) {
        options
    } else {
        options.tag("latest")
    };
    let mut steps = std::pin::pin!(client.create_image(Some(options.build()), None, login));
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

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use std::io::{BufRead, BufReader, Write};

    #[test]
    fn credentials_in_the_engines_words() {
        let told = |login, registry| {
            told(login, registry).map(|told| {
                (
                    told.username,
                    told.password,
                    told.identitytoken,
                    told.serveraddress,
                )
            })
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(told(Login::Nobody, "r.example"), None);
        let password = Login::Password("ada".into(), "pw".into());
        assert_eq!(
            told(password, "r.example:5000"),
            Some((some("ada"), some("pw"), None, some("r.example:5000")))
        );
        assert_eq!(
            told(Login::Identity("x".into()), "docker.io"),
            Some((None, None, some("x"), some("https://index.docker.io/v1/")))
        );
    }

    /// An engine that only hears what it is told.
    #[tokio::test]
    async fn the_engine_is_told_who_asks() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let lines = lines
                .map(Result::unwrap)
                .take_while(|line| !line.is_empty());
            let lines: Vec<String> = lines.collect();
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
            lines
        });
        let version = bollard::API_DEFAULT_VERSION;
        let client = Docker::connect_with_http(&address.to_string(), 30, version).unwrap();
        let login = told(Login::Password("ada".into(), "pw".into()), "r.example");
        fetch(&client, "r.example/app:1", login, &mut |_, _, _| {})
            .await
            .unwrap();
        let heard = heard.join().unwrap();
        let said = heard.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("x-registry-auth")
                .then_some(value.trim())
        });
        let engine = base64::engine::general_purpose::STANDARD;
        let said = engine.decode(said.expect("the header is there")).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        assert_eq!(
            (&said["username"], &said["password"]),
            (&"ada".into(), &"pw".into())
        );
    }
}
