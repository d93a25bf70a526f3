//! Places that an image declares as volumes. Left to itself the engine mounts a directory of its own disk over each: a place to
//! write to, and of any size, in a container whose root is read-only.

use std::collections::HashMap;
use std::path::{Component, Path};

use belljar_spec::Error;
use bollard::Docker;
use bollard::models::{HostConfig, MountPoint};
use sha2::{Digest, Sha256};
use tar::Builder;

use super::container;
use super::volume::{self, Volumes};

/// As the engine understands what an image says: sorted, and without what is no absolute path.
pub fn places(declared: &[String]) -> Vec<String> {
    let mut places: Vec<_> = declared.iter().filter_map(|path| cleaned(path)).collect();
    places.sort_unstable();
    places.dedup();
    places
}

fn cleaned(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in Path::new(path.strip_prefix('/')?).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    (!parts.is_empty()).then(|| format!("/{}", parts.join("/")))
}

/// One of them, for containers that have other mounts in it.
pub struct Part<'a> {
    /// By its digest.
    image: &'a str,
    place: &'a str,
    /// Below it. Where nothing can be written, no directory can be made to mount something on.
    inner: Vec<&'a str>,
}

/// Those that have no mount of ours already; `taken` are the places that have.
pub fn parts<'a>(image: &'a str, places: &'a [String], taken: &'a [String]) -> Vec<Part<'a>> {
    let open = |place: &&String| !taken.contains(place);
    let part = |place: &'a String| Part {
        image,
        place,
        inner: places
            .iter()
            .chain(taken)
            .filter(|other| *other != place && Path::new(other).starts_with(place))
            .map(String::as_str)
            .collect(),
    };
    places.iter().filter(open).map(part).collect()
}

impl Part<'_> {
    pub fn place(&self) -> &str {
        self.place
    }
}

impl Volumes {
    /// A volume with what the image has there, to be mounted read-only. This process's own, so that nobody finds it half filled: it
    /// goes when this one has gone.
    pub async fn part(
        &self,
        client: &Docker,
        part: &Part<'_>,
        labels: HashMap<String, String>,
    ) -> Result<String, Error> {
        let Part {
            image,
            place,
            inner,
        } = part;
        let key = format!("{image} {place} {inner:?}");
        let _one_at_a_time = self.making.lock().await;
        if let Some(name) = self.known(&key) {
            return Ok(name);
        }
        let mut whose: Vec<_> = labels.iter().collect();
        whose.sort_unstable();
        let digest = format!("{:x}", Sha256::digest(format!("{key} {whose:?}")));
        let name = format!("belljar-image-{}", &digest[..16]);
        if volume::found(client, &name).await?.is_some() {
            volume::discard(client, &name).await?;
        }
        volume::make(client, &name, labels.clone()).await?;
        let id = volume::handle(client, (&name, place), true, image, labels).await?;
        let made = self.make_room(client, &id, part).await;
        container::remove(client, &id).await;
        made?;
        self.keep(&key, &name);
        Ok(name)
    }

    /// Directories for what is mounted below, where the image has none.
    async fn make_room(&self, client: &Docker, id: &str, part: &Part<'_>) -> Result<(), Error> {
        let wrong = |error: std::io::Error| Error::internal("files of a container", error);
        let mut archive = Builder::new(Vec::new());
        let mut missing = false;
        for inner in &part.inner {
            let below = inner.strip_prefix(part.place).unwrap_or_default();
            let below = below.trim_start_matches('/');
            let ends = below.match_indices('/').map(|(end, _)| end);
            for end in ends.chain([below.len()]) {
                let path = &below[..end];
                if !volume::holds(client, id, &format!("{}/{path}", part.place)).await {
                    volume::add_directory(&mut archive, path, 0o755).map_err(wrong)?;
                    missing = true;
                }
            }
        }
        if !missing {
            return Ok(());
        }
        let archive = archive.into_inner().map_err(wrong)?;
        volume::upload(client, id, part.place, archive).await
    }
}

/// One that can be written to all the same.
pub fn left_open<'a>(asked: &HostConfig, found: &'a [MountPoint]) -> Option<&'a str> {
    let ours = |place: &str| {
        asked
            .tmpfs
            .as_ref()
            .is_some_and(|all| all.contains_key(place))
    };
    found
        .iter()
        .filter(|mount| mount.typ.as_deref() == Some("volume") && mount.rw != Some(false))
        .map(|mount| mount.destination.as_deref().unwrap_or_default())
        .find(|place| !ours(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|&path| path.to_owned()).collect()
    }

    #[test]
    fn paths_are_what_the_engine_makes_of_them() {
        let declared = strings(&[
            "/var//lib/./x/",
            "/data",
            "/a/../data",
            "/",
            "data",
            "",
            "/..",
        ]);
        assert_eq!(places(&declared), ["/data", "/var/lib/x"]);
    }

    #[test]
    fn each_has_one_mount_and_room_for_those_below() {
        let declared = places(&strings(&[
            "/belljar", "/data", "/data/in", "/tmp", "/tmp/x",
        ]));
        let taken = strings(&["/belljar", "/tmp", "/workspace", "/data/work", "/database"]);
        let parts = parts("sha256:1", &declared, &taken);
        let told: Vec<_> = parts
            .iter()
            .map(|part| (part.place(), part.inner.clone()))
            .collect();
        assert_eq!(
            told,
            [
                ("/data", vec!["/data/in", "/data/work"]),
                ("/data/in", vec![]),
                ("/tmp/x", vec![]),
            ]
        );
    }

    #[test]
    fn what_an_engine_left_open_is_named() {
        let asked = HostConfig {
            tmpfs: Some(HashMap::from([("/tmp".to_owned(), String::new())])),
            ..HostConfig::default()
        };
        let mount = |kind: &str, place: &str, rw| MountPoint {
            typ: Some(kind.into()),
            destination: Some(place.into()),
            rw,
            ..MountPoint::default()
        };
        let fine = [
            mount("volume", "/belljar", Some(false)),
            mount("volume", "/tmp", Some(true)),
            mount("bind", "/out", Some(true)),
        ];
        assert_eq!(left_open(&asked, &fine), None);
        for rw in [Some(true), None] {
            let open = [mount("volume", "/data", rw)];
            assert_eq!(left_open(&asked, &open), Some("/data"));
        }
    }
}
