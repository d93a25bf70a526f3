//! Volumes of this host in a container. The engine resolves their paths by itself, and would follow a link that code has put there
//! since they were allowed. So each is held open before, and looked at in the container before any code runs there.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_jail::{Entry, Plan, source};
use belljar_spec::{Error, shown};

/// What is open here does not change, and nothing else has its number meanwhile.
pub struct Pinned(Vec<(File, PathBuf, PathBuf)>);

impl Pinned {
    pub fn of(plan: &Plan) -> Result<Self, Error> {
        let volumes = plan.entries.iter().filter_map(|entry| match entry {
            Entry::Volume { source, target, .. } => Some((source, target)),
            _ => None,
        });
        let pin = |(source, target): (&PathBuf, &PathBuf)| {
            let place =
                source::open(source).map_err(|error| refused(source, &error.to_string()))?;
            Ok((place, source.clone(), target.clone()))
        };
        volumes.map(pin).collect::<Result<_, _>>().map(Self)
    }

    /// In the container with this process. Where that cannot be seen (only root can), at least the paths still lead where they did.
    pub fn check(&self, pid: Option<i64>) -> Result<(), Error> {
        let root = pid.and_then(|pid| File::open(format!("/proc/{pid}/root")).ok());
        for (place, source, target) in &self.0 {
            let found = match &root {
                Some(root) => source::open_in(root, target),
                None => source::open(source),
            };
            if !same(place, found).unwrap_or(false) {
                return Err(refused(
                    source,
                    "something else came into the container in its place",
                ));
            }
        }
        Ok(())
    }
}

fn same(place: &File, found: io::Result<File>) -> io::Result<bool> {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    Ok(identity(place.metadata()?) == identity(found?.metadata()?))
}

fn refused(source: &Path, reason: &str) -> Error {
    Error::InvalidVolume {
        given: shown(&source.to_string_lossy()),
        accepted: format!("it must stay what it is while the container is made ({reason})"),
    }
}
