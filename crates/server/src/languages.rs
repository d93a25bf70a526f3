//! Toolchains of this host, looked up once in a while instead of for every run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar::Engine;
use belljar::docker::Wish;
use belljar::image::Image;
use belljar::runtime::{LanguageHint, Listed, Registry, Toolchain, discover};
use belljar_spec::{Backend, Error, RunRequest, SandboxRequest};

use crate::config::Config;
use crate::tenants::Tenant;

/// A toolchain that was updated is noticed after this time.
const FRESH: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Languages(Arc<Inner>);

struct Inner {
    registry: Registry,
    known: Mutex<HashMap<String, (Instant, Found)>>,
}

/// What a request wants to be run in.
pub struct Venue<'a> {
    pub backend: Option<Backend>,
    pub image: Option<&'a str>,
    pub runtime: Option<&'a str>,
    /// An image that the container engine lacks is not fetched.
    pub local: bool,
}

impl Venue<'_> {
    /// What a tenant names is fetched from where the settings say and nowhere else: it could be any host that the engine can reach.
    #[must_use]
    pub fn asked_by(self, tenant: &Tenant, config: &Config) -> Self {
        let local = !tenant.admin && self.image.is_some_and(|image| !config.fetches(image));
        Self { local, ..self }
    }
}

impl<'a> From<&'a RunRequest> for Venue<'a> {
    fn from(request: &'a RunRequest) -> Self {
        Self {
            backend: request.backend,
            image: request.image.as_deref(),
            runtime: request.container_runtime.as_deref(),
            local: false,
        }
    }
}

impl<'a> From<&'a SandboxRequest> for Venue<'a> {
    fn from(request: &'a SandboxRequest) -> Self {
        Self {
            backend: request.backend,
            image: request.image.as_deref(),
            runtime: request.container_runtime.as_deref(),
            local: false,
        }
    }
}

impl Venue<'_> {
    /// What is about containers means nothing without them.
    pub fn check(&self) -> Result<(), Error> {
        match self.runtime {
            Some(runtime) if self.backend != Some(Backend::Docker) => Err(Error::invalid_request(
                "container_runtime",
                runtime,
                "it is about containers; give \"backend\": \"docker\" as well, or leave it out",
            )),
            _ => Ok(()),
        }
    }
}

/// A language that can be run.
#[derive(Clone)]
pub struct Found {
    pub toolchain: Arc<Toolchain>,
    /// What the code's file is called.
    pub main: Arc<str>,
}

impl Languages {
    pub fn load() -> Result<Self, Error> {
        Ok(Self(Arc::new(Inner {
            registry: Registry::load()?,
            known: Mutex::default(),
        })))
    }

    /// The name of a language that may have been given by an alias. What runs had besides, like `command`, stays as it is.
    pub fn name(&self, given: String) -> String {
        let hint = LanguageHint {
            language: Some(&given),
            file_name: None,
        };
        match self.0.registry.find(&hint) {
            Ok(found) => found.name.clone(),
            Err(_) => given,
        }
    }

    /// By name or alias; Python if none is named.
    pub async fn find(&self, language: Option<&str>) -> Result<Found, Error> {
        let hint = LanguageHint {
            language,
            file_name: None,
        };
        let name = self.0.registry.find(&hint)?.name.clone();
        let known = |inner: &Inner| {
            let known = inner.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&name).cloned()
        };
        if let Some((since, found)) = known(&self.0)
            && since.elapsed() < FRESH
        {
            return Ok(found);
        }
        let inner = Arc::clone(&self.0);
        let looked = move || {
            let hint = LanguageHint {
                language: Some(&name),
                file_name: None,
            };
            let manifest = inner.registry.find(&hint)?;
            let found = Found {
                toolchain: Arc::new(discover(manifest)?),
                main: manifest.main_for(None).into(),
            };
            let mut known = inner.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(name, (Instant::now(), found.clone()));
            Ok(found)
        };
        tokio::task::spawn_blocking(looked)
            .await
            .map_err(|error| Error::internal("runtimes", error))?
    }

    /// The same in an image, where it is remembered by the image itself.
    pub async fn find_in(
        &self,
        engine: &Engine,
        image: &Arc<Image>,
        language: Option<&str>,
    ) -> Result<Found, Error> {
        let hint = LanguageHint {
            language,
            file_name: None,
        };
        let manifest = self.0.registry.find(&hint)?;
        Ok(Found {
            toolchain: Arc::new(engine.toolchain_in(image, manifest, &[]).await?),
            main: manifest.main_for(None).into(),
        })
    }

    /// As the host has it, or as the image does that a request is to be run in.
    pub async fn find_for(
        &self,
        engine: &Engine,
        language: Option<&str>,
        venue: &Venue<'_>,
    ) -> Result<Found, Error> {
        if venue.backend != Some(Backend::Docker) {
            return self.find(language).await;
        }
        let hint = LanguageHint {
            language,
            file_name: None,
        };
        let manifest = self.0.registry.find(&hint)?;
        let wish = Wish {
            image: venue.image.map(str::to_owned),
            runtime: venue.runtime.map(str::to_owned),
            local: venue.local,
        };
        let mut last = String::new();
        let mut told = |step: &str, done: u64, all: u64| {
            if step != last {
                tracing::info!(image = venue.image, step, done, all, "an image is fetched");
                step.clone_into(&mut last);
            }
        };
        let toolchain = engine
            .toolchain_in_container(manifest, &wish, &mut told)
            .await?;
        Ok(Found {
            toolchain: Arc::new(toolchain),
            main: manifest.main_for(None).into(),
        })
    }

    /// All of them, with what this host has.
    pub async fn list(&self) -> Result<Vec<Listed>, Error> {
        let inner = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || inner.registry.list())
            .await
            .map_err(|error| Error::internal("runtimes", error))
    }
}
