//! Languages as images have them: each toolchain is asked once per image, in a container of it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_jail::{Command, Plan, Role, Stage};
use belljar_spec::{Error, LimitsPatch, Network, WORKSPACE, shown};

use super::container::Container;
use super::image::{self, Image, Progress, Pull};
use super::{Docker, RemoteFiles};
use crate::command::{Prepared, Stdin, environment};
use crate::engine::Engine;
use crate::host::capacity;
use crate::output::Stream;
use crate::runtime::{Manifest, Toolchain};
use crate::sandbox::Sandbox;
use crate::verdict::verdict;

/// A name that means another image now is noticed after this time.
const FRESH: Duration = Duration::from_secs(30);

/// What is known of images: references of this process, toolchains by image and language.
#[derive(Default)]
pub struct Images {
    images: Mutex<HashMap<String, (Instant, Image)>>,
    toolchains: Mutex<HashMap<(String, String), Toolchain>>,
}

impl Images {
    /// Looked for again by whoever needs it next.
    pub fn forget(&self, container: &Container) {
        lock(&self.images).remove(&container.reference);
    }
}

/// What a request says about where it shall run.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    pub image: Option<String>,
    pub runtime: Option<String>,
    /// Only what the engine has already, whatever the settings say about fetching.
    pub local: bool,
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
        let first = known.is_none();
        let known = known.filter(|(since, _)| since.elapsed() < FRESH);
        let image = if let Some((_, image)) = known {
            image
        } else {
            let pull = match settings.pull {
                _ if wish.local => Pull::Never,
                Pull::Always if !first => Pull::Missing,
                pull => pull,
            };
            let image = image::find(&self.client, reference, pull, progress).await?;
            let found = (Instant::now(), image.clone());
            lock(&images.images).insert(reference.clone(), found);
            image
        };
        Ok(Container {
            image,
            reference: reference.clone(),
            runtime: wish.runtime.clone(),
            kernel: None,
        })
    }
}

impl Engine {
    /// A language as an image has it, to be run by the container engine.
    pub async fn toolchain_in_container(
        &self,
        manifest: &Manifest,
        wish: &Wish,
        progress: Progress<'_>,
    ) -> Result<Toolchain, Error> {
        let images = self.images();
        let container = self
            .docker()
            .await?
            .container(images, wish, progress)
            .await?;
        let key = (container.image.id.clone(), manifest.name.clone());
        let known = lock(&images.toolchains).get(&key).cloned();
        let known = known.or_else(|| manifest.remembered(&container.image.id));
        let mut toolchain = if let Some(known) = known {
            known
        } else {
            let found = examine(self, manifest, &container).await?;
            lock(&images.toolchains).insert(key, found.clone());
            found
        };
        let kernel = toolchain.kernel.as_ref().map(|kernel| kernel.files.clone());
        toolchain.container = Some(container.with_kernel(kernel));
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
        ports: Vec::new(),
        closed: None,
        weakened: [].into(),
        image: None,
    };
    let sandbox = Sandbox::open(engine, Some(container), plan).await?;
    let files = sandbox.remote()?;
    let mut reason = format!("the image {} does not have it", shown(&container.reference));
    for candidate in manifest.candidates() {
        let Some(program) = located(&files, candidate.program).await? else {
            continue;
        };
        let argv = candidate.probe(&program)?;
        let command = Command {
            argv,
            env: environment(
                None,
                &BTreeMap::new(),
                &Network::default(),
                &BTreeMap::new(),
            ),
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
        let text = String::from_utf8_lossy(&finished.stdout.bytes).into_owned();
        match candidate.answered(&program, &text, &container.image.id) {
            Ok(toolchain) => return Ok(toolchain),
            Err(why) => reason = why.to_string(),
        }
    }
    Err(Error::RuntimeMissing {
        language: manifest.name.clone(),
        reason,
        install: format!(
            "use an image that has it, or build one with: {}",
            manifest.install
        ),
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
