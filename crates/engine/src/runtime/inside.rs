//! From a manifest to a toolchain in an image: programs by the image's own PATH, asked in a sandbox made of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use belljar_jail::{Command, Plan, Role, Stage};
use belljar_spec::{Amount, Error, LimitsPatch, Network, Status, WORKSPACE, Weakening};

use super::cache::{Cache, Record};
use super::manifest::{Alternative, Manifest};
use super::probe::{self, Answer};
use super::template;
use super::toolchain::Toolchain;
use crate::command::{Prepared, Stdin, environment};
use crate::engine::Engine;
use crate::host::capacity;
use crate::image::Image;
use crate::layout;
use crate::sandbox::Sandbox;
use crate::verdict::verdict;

/// What a probe prints is bounded on the host too.
const MOST_OUTPUT: u64 = probe::MAX_OUTPUT;

impl Engine {
    /// The manifest's toolchain in an image. Nothing of the image is run outside a sandbox; what it says is remembered with it.
    pub async fn toolchain_in(
        &self,
        image: &Arc<Image>,
        manifest: &Manifest,
        weaken: &[Weakening],
    ) -> Result<Toolchain, Error> {
        let cache = Cache::at(image.directory());
        let known = cache.load(&manifest.name, manifest.hash);
        if let Some(record) = known
            && let Some(alternative) = manifest.alternatives.get(record.alternative)
        {
            let toolchain = Toolchain::of(manifest, alternative, &record)?;
            return Ok(in_image(image, toolchain));
        }
        let mut last_reason = None;
        for (index, path) in candidates(image, manifest) {
            let Some(alternative) = manifest.alternatives.get(index) else {
                continue;
            };
            match self.ask_inside(image, alternative, &path, weaken).await? {
                Ok(answer) => {
                    let program = answer.vars.get("program").map(PathBuf::from);
                    let record = Record {
                        hash: manifest.hash,
                        candidates: Vec::new(),
                        alternative: index,
                        program: program.unwrap_or(path),
                        // Not mounted, since all of the image is; but read where little else may be.
                        mounts: answer.mounts,
                        vars: answer.vars,
                        stamps: Vec::new(),
                    };
                    let toolchain = Toolchain::of(manifest, alternative, &record)?;
                    cache.store(&manifest.name, &record);
                    return Ok(in_image(image, toolchain));
                }
                Err(reason) => last_reason = Some(reason),
            }
        }
        let names = manifest.alternatives.iter().flat_map(|one| &one.programs);
        let names: Vec<_> = names.map(String::as_str).collect();
        Err(Error::RuntimeMissing {
            language: manifest.name.clone(),
            reason: last_reason.unwrap_or_else(|| {
                format!("image {} has none of {}", image.name, names.join(", "))
            }),
            install: "use an image that has it".into(),
        })
    }

    /// The inner error says why a candidate will not do.
    async fn ask_inside(
        &self,
        image: &Arc<Image>,
        alternative: &Alternative,
        program: &Path,
        weaken: &[Weakening],
    ) -> Result<Result<Answer, String>, Error> {
        let vars = [("program".to_owned(), program.to_string_lossy().into_owned())].into();
        let fill = |word: &String| template::fill_early(word, &vars);
        let words = alternative.probe.iter().map(fill).collect();
        let argv: Vec<String> = match words {
            Ok(words) => words,
            Err(name) => return Ok(Err(format!("probe: {{{name}}} is not known"))),
        };
        let shown = belljar_spec::shown(&program.to_string_lossy());
        let patience = u64::try_from(probe::PATIENCE.as_millis()).unwrap_or(u64::MAX);
        let patch = LimitsPatch {
            timeout_ms: Some(Amount::Text(format!("{patience}ms"))),
            output_bytes: Some(Amount::Text(format!("{MOST_OUTPUT}b"))),
            ..LimitsPatch::default()
        };
        let limits = patch.resolve(&LimitsPatch::default(), &capacity())?;
        let plan = Plan {
            entries: layout::of_image(image, Path::new(WORKSPACE), Vec::new(), weaken)?,
            files: Vec::new(),
            workdir: PathBuf::from(WORKSPACE),
            limits,
            writable: false,
            kept: false,
            network: false,
            ports: Vec::new(),
            closed: None,
            weakened: weaken.iter().copied().collect(),
            image: Some(image.described()),
        };
        let locale = [("LC_ALL".to_owned(), "C.UTF-8".to_owned())].into();
        let command = Command {
            argv,
            env: environment(
                Some(image),
                &locale,
                &Network::default(),
                &std::collections::BTreeMap::new(),
            ),
            cwd: PathBuf::from("/"),
            limits,
        };
        let prepared = Prepared::new(command, Stage::Run, Role::Alone)?;
        let fds = prepared.fds();
        let opened = Sandbox::open_with(self, None, plan, prepared.launch(&fds)).await?;
        let (_sandbox, mut process) = opened;
        let mut silent = |_, _: &[u8]| {};
        let finished = prepared
            .finish(&mut process, Stdin::Empty, Instant::now(), &mut silent)
            .await;
        let finished = match finished {
            Ok(finished) => finished,
            // It may be for another machine, or a library may be missing.
            Err(Error::InvalidFile { reason, .. }) => {
                return Ok(Err(format!("{shown} does not start: {reason}")));
            }
            Err(error) => return Err(error),
        };
        if verdict(&finished.outcome) != Status::Ok {
            let words = String::from_utf8_lossy(&finished.stderr.bytes).into_owned();
            let line = words.lines().rfind(|line| !line.trim().is_empty());
            let line: String = line
                .unwrap_or("it says nothing")
                .chars()
                .filter(|c| !c.is_control())
                .take(300)
                .collect();
            return Ok(Err(format!("{shown} does not work: {line}")));
        }
        Ok(probe::parse(&String::from_utf8_lossy(
            &finished.stdout.bytes,
        )))
    }
}

fn in_image(image: &Arc<Image>, mut toolchain: Toolchain) -> Toolchain {
    toolchain.image = Some(Arc::clone(image));
    toolchain
}

/// Programs of the manifest that are in the image, each with the alternative it belongs to. Those on the image's PATH come
/// first: there it puts what it wants to be used.
fn candidates(image: &Image, manifest: &Manifest) -> Vec<(usize, PathBuf)> {
    let mut found: Vec<(usize, PathBuf)> = Vec::new();
    for (index, alternative) in manifest.alternatives.iter().enumerate() {
        let is_path = |program: &&String| program.starts_with('/');
        let named = alternative
            .programs
            .iter()
            .filter(|program| !program.contains('/'));
        let on_path = named.filter_map(|program| {
            image
                .path()
                .split(':')
                .filter(|dir| dir.starts_with('/'))
                .find_map(|dir| image.program(&Path::new(dir).join(program)))
        });
        let at_paths = alternative.programs.iter().filter(is_path);
        let at_paths = at_paths.filter_map(|program| image.program(Path::new(program)));
        for path in on_path.chain(at_paths) {
            if !found.iter().any(|(_, known)| *known == path) {
                found.push((index, path));
            }
        }
    }
    found
}
