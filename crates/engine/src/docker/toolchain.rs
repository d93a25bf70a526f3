//! Languages as images have them: each toolchain is asked once per image, in a container of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use belljar_jail::{Command, Plan, Role, Stage};
use belljar_spec::{Error, LimitsPatch, WORKSPACE, shown};

use super::container::Container;
use super::image::{self, Image, Progress};
use super::{Docker, RemoteFiles};
use crate::command::{Prepared, Stdin, environment};
use crate::engine::Engine;
use crate::host::capacity;
use crate::output::Stream;
use crate::runtime::{Manifest, Toolchain};
use crate::sandbox::Sandbox;
use crate::verdict::verdict;

/// What is known of images: references of this process, toolchains by image and language.
#[derive(Default)]
pub struct Images {
    images: Mutex<HashMap<String, Image>>,
    toolchains: Mutex<HashMap<(String, String), Arc<Toolchain>>>,
}

/// What a request says about where it shall run.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    pub image: Option<String>,
    pub runtime: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each change of these maps is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Docker {
    /// The container that is asked for: the image is found, and fetched if need be.
    pub async fn container(
        &self,
        images: &Images,
        wish: &Wish,
        progress: Progress<'_>,
    ) -> Result<Container, Error> {
        let settings = &self.settings;
        let reference = wish.image.as_ref().or(settings.image.as_ref());
        let reference = reference.ok_or_else(|| Error::InvalidRequest {
            field: "image".into(),
            given: "none".into(),
            accepted: "the docker backend runs images; name one (--image python:3.12-slim), or set docker.image in the daemon's settings".into(),
        })?;
        if let Some(runtime) = &wish.runtime
            && settings.runtime.as_ref() != Some(runtime)
            && !settings.runtimes.contains(runtime)
        {
            return Err(Error::invalid_request(
                "runtime",
                runtime,
                "give one that the daemon's settings allow (docker.runtimes)",
            ));
        }
        let known = lock(&images.images).get(reference).cloned();
        let image = match known {
            Some(image) => image,
            None => {
                let image =
                    image::find(&self.client, reference, settings.pull, progress).await?;
                lock(&images.images).insert(reference.clone(), image.clone());
                image
            }
        };
        Ok(Container {
            image,
            reference: reference.clone(),
            runtime: wish.runtime.clone(),
            kernel: None,
            start_timeout: None,
        })
    }
}

impl Engine {
    /// A language as the image of this container has it.
    pub(crate) async fn ask_image(
        &self,
        images: &Images,
        manifest: &Manifest,
        container: &Container,
    ) -> Result<Arc<Toolchain>, Error> {
        let key = (container.image.id.clone(), manifest.name.clone());
        if let Some(known) = lock(&images.toolchains).get(&key) {
            return Ok(Arc::clone(known));
        }
        let toolchain = Arc::new(examine(self, manifest, container).await?);
        lock(&images.toolchains).insert(key, Arc::clone(&toolchain));
        Ok(toolchain)
    }
}

/// Looks for the manifest's programs in the image, and asks the first that answers.
async fn examine(
    engine: &Engine,
    manifest: &Manifest,
    container: &Container,
) -> Result<Toolchain, Error> {
    let limits = LimitsPatch::default().resolve(&LimitsPatch::default(), &capacity())?;
    let plan = Plan {
        entries: Vec::new(),
        files: Vec::new(),
        workdir: PathBuf::from(WORKSPACE),
        limits,
        writable: false,
        kept: true,
        network: false,
        weakened: [].into(),
    };
    let sandbox = Sandbox::open(engine, Some(container), plan).await?;
    let files = sandbox.remote()?;
    let mut reason = format!("the image {} does not have it", shown(&container.reference));
    for candidate in manifest.candidates() {
        let Some(program) = located(&files, &candidate.program).await? else {
            continue;
        };
        let argv = candidate.probe(&program)?;
        let command = Command {
            argv,
            env: environment(&std::collections::BTreeMap::new(), &std::collections::BTreeMap::new()),
            cwd: PathBuf::from("/"),
            limits,
        };
        let prepared = Prepared::new(command, Stage::Run, Role::Beside)?;
        let mut process = sandbox.start(prepared.launch(&prepared.fds()))?;
        let mut silent = |_: Stream, _: &[u8]| {};
        let finished = prepared
            .finish(&mut process, Stdin::Empty, Instant::now(), &mut silent)
            .await?;
        if verdict(&finished.outcome) != belljar_spec::Status::Ok {
            let text = String::from_utf8_lossy(&finished.stderr.bytes).into_owned();
            let last = text.lines().rfind(|line| !line.trim().is_empty());
            reason = last.map_or(reason, |line| shown(line.trim()));
            continue;
        }
        match candidate.answered(&program, &String::from_utf8_lossy(&finished.stdout.bytes)) {
            Ok(toolchain) => return Ok(toolchain),
            Err(why) => reason = why.to_string(),
        }
    }
    Err(Error::RuntimeMissing {
        language: manifest.name.clone(),
        reason,
        install: format!("use an image that has it, or build one with: {}", manifest.install),
    })
}

async fn located(files: &RemoteFiles, program: &str) -> Result<Option<String>, Error> {
    // Somebody's home on this host says nothing about an image.
    if program.starts_with('~') {
        return Ok(None);
    }
    let found = files
        .find_programs(&[program])
        .await
        .map_err(|error| Error::internal("container", error))?;
    Ok(found.into_iter().next().flatten())
}
