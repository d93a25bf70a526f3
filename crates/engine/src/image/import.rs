//! Images from files: what `docker save` writes, an OCI layout (a directory, or a tar file of one), or the tar file of a root.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_spec::Error;
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};
use serde::Deserialize;
use tar::{Archive, EntryType};

use super::config::Settings;
use super::digest::{Digest, Measured};
use super::platform::{self, Platform};
use super::reference::Name;
use super::store::{Adding, Listed, Store};
use super::{archive, tree};

/// Of a description: a manifest, an index, a configuration.
pub(super) const MOST_DESCRIPTION: u64 = 8 << 20;

fn broken(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

impl Store {
    /// Takes in the image in a file or directory. Its name is the one given, the one in the file, or that of the file.
    pub fn import(
        &self,
        file: &Path,
        name: Option<&Name>,
        wanted: &Platform,
    ) -> Result<Vec<Listed>, Error> {
        let text = file.to_string_lossy();
        let take_in = || {
            if fs::metadata(file).is_ok_and(|at| at.is_file() && at.len() == 0) {
                return Err(broken("it is empty"));
            }
            let adding = self.add()?;
            let source = Source::open(file, &adding, self.bounds().bytes)?;
            if let Some(images) = source.saved()? {
                if images.is_empty() {
                    return Err(broken("there is no image in it"));
                }
                return self.import_saved(&adding, &source, &images, name, wanted);
            }
            if source.has("oci-layout") && source.has("index.json") {
                return self.import_layout(&adding, &source, file, name, wanted);
            }
            if let Source::Directory(_) = source {
                return Err(broken("it is a directory, but no OCI layout"));
            }
            let name = name.cloned().map_or_else(|| name_of(file), Ok)?;
            let mut bounds = self.bounds();
            let layer = self.add_layer(&adding, source.all()?, None, &mut bounds)?;
            let config = Settings::plain(&layer);
            Ok(vec![self.add_image(
                &adding,
                &name,
                &config,
                None,
                &[layer],
            )?])
        };
        take_in().map_err(|error| {
            // Layers that were good by themselves are nobody's now.
            let _ = self.collect(false);
            self.failed(&text, &error)
        })
    }

    fn import_saved(
        &self,
        adding: &Adding,
        source: &Source,
        images: &[Saved],
        name: Option<&Name>,
        wanted: &Platform,
    ) -> io::Result<Vec<Listed>> {
        let mut done = Vec::new();
        for image in images {
            let config = source.description(&image.config)?;
            // Its name is its digest, where it has one.
            let said = Path::new(&image.config).file_stem();
            let said = said.and_then(|said| Digest::from_hex(said.to_str()?));
            if said.is_some_and(|said| said != Digest::of(&config)) {
                return Err(broken("its configuration has another digest than its name"));
            }
            let settings = Settings::parse(&config)?;
            wanted.check(&settings.platform).map_err(broken)?;
            if settings.layers.len() != image.layers.len() {
                return Err(broken("its configuration has another number of layers"));
            }
            let mut bounds = self.left(&settings.layers)?;
            for (digest, file) in settings.layers.iter().zip(&image.layers) {
                if self.layer(digest).is_none() {
                    let content = archive::decompress(source.read(file)?)?;
                    self.add_layer(adding, content, Some(digest), &mut bounds)?;
                }
            }
            let tags = image.repo_tags.as_deref().unwrap_or_default();
            let names = match name {
                Some(name) => vec![name.clone()],
                None => tags
                    .iter()
                    .map(|tag| parse(tag))
                    .collect::<io::Result<_>>()?,
            };
            if names.is_empty() {
                return Err(broken("it has no name in it; give one with --name"));
            }
            for name in names {
                done.push(self.add_image(adding, &name, &config, None, &settings.layers)?);
            }
        }
        Ok(done)
    }

    fn import_layout(
        &self,
        adding: &Adding,
        source: &Source,
        file: &Path,
        name: Option<&Name>,
        wanted: &Platform,
    ) -> io::Result<Vec<Listed>> {
        let index: ImageIndex = serde_json::from_slice(&source.description("index.json")?)?;
        let mut done = Vec::new();
        for (tag, images) in chosen(index.manifests(), name)? {
            let name = match (name, tag) {
                (Some(name), _) => name.clone(),
                (None, Some(tag)) => tagged(&tag, file)?,
                (None, None) => name_of(file)?,
            };
            let (digest, manifest) = source.manifest(&images, wanted)?;
            done.push(self.import_manifest(adding, source, &name, digest, &manifest, wanted)?);
        }
        Ok(done)
    }

    fn import_manifest(
        &self,
        adding: &Adding,
        source: &Source,
        name: &Name,
        digest: Digest,
        manifest: &ImageManifest,
        wanted: &Platform,
    ) -> io::Result<Listed> {
        let config_digest = manifest.config().digest().to_string();
        let config_digest = config_digest.parse().map_err(broken)?;
        let config = source.blob(&config_digest)?;
        let settings = Settings::parse(&config)?;
        wanted.check(&settings.platform).map_err(broken)?;
        if settings.layers.len() != manifest.layers().len() {
            return Err(broken("its configuration has another number of layers"));
        }
        let mut bounds = self.left(&settings.layers)?;
        for (digest, layer) in settings.layers.iter().zip(manifest.layers()) {
            if self.layer(digest).is_none() {
                let blob: Digest = layer.digest().to_string().parse().map_err(broken)?;
                let mut content = Measured::new(source.read(&blob_path(&blob))?, u64::MAX);
                // What is inside is held against the configuration as well.
                self.add_layer(
                    adding,
                    archive::decompress(&mut content)?,
                    Some(digest),
                    &mut bounds,
                )?;
                if content.finish()? != blob {
                    return Err(broken(format!("layer {} has another digest", blob.short())));
                }
            }
        }
        self.add_image(adding, name, &config, Some(digest), &settings.layers)
    }
}

/// One image of a layout, maybe for several platforms, and what the layout calls it.
type Tagged = (Option<String>, Vec<Descriptor>);

/// The images of a layout that are meant: all that have a tag, or of several the one with that of a name.
fn chosen(all: &[Descriptor], name: Option<&Name>) -> io::Result<Vec<Tagged>> {
    const TAG: &str = "org.opencontainers.image.ref.name";
    const NAME: &str = "io.containerd.image.name";
    let mut images: Vec<Tagged> = Vec::new();
    for one in all {
        let said = one.annotations().as_ref();
        let tag = said.and_then(|said| said.get(NAME).or_else(|| said.get(TAG)).cloned());
        match images.iter_mut().find(|(known, _)| *known == tag) {
            Some((_, same)) => same.push(one.clone()),
            None => images.push((tag, vec![one.clone()])),
        }
    }
    if images.len() > 1 {
        // Others belong to those: signatures, for example.
        images.retain(|(tag, _)| tag.is_some());
    }
    let Some(name) = name.filter(|_| images.len() > 1) else {
        return Ok(images);
    };
    let is_meant =
        |tag: &str| Some(tag) == name.tag() || tag.parse().is_ok_and(|tag: Name| tag == *name);
    let meant = images
        .iter()
        .find(|(tag, _)| tag.as_deref().is_some_and(is_meant));
    if let Some(meant) = meant {
        return Ok(vec![meant.clone()]);
    }
    let tags = images.iter().filter_map(|(tag, _)| tag.as_deref()).take(16);
    let tags: Vec<_> = tags.map(belljar_spec::shown).collect();
    Err(broken(format!(
        "there are several images in it, and none has the tag of that name: {}",
        tags.join(", ")
    )))
}

/// What a layout calls an image is a name, or only its tag.
fn tagged(tag: &str, file: &Path) -> io::Result<Name> {
    if tag.contains(['/', ':']) {
        parse(tag)
    } else {
        parse(&format!("{}:{tag}", stem(file)))
    }
}

fn parse(name: &str) -> io::Result<Name> {
    name.parse()
        .map_err(|error: Error| broken(error.to_string()))
}

fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mut name = name.to_lowercase();
    for ending in [".gz", ".tgz", ".zst", ".tar"] {
        if let Some(shorter) = name.strip_suffix(ending) {
            name = shorter.to_owned();
        }
    }
    name
}

fn name_of(file: &Path) -> io::Result<Name> {
    let stem = stem(file);
    stem.parse()
        .map_err(|_| broken("its file's name is no name for an image; give one with --name"))
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// One image in what `docker save` writes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Where the parts of an image are read from.
enum Source {
    Directory(PathBuf),
    /// A tar file, with where in it the files are.
    Archive {
        path: PathBuf,
        files: HashMap<PathBuf, Part>,
    },
}

enum Part {
    File { at: u64, bytes: u64 },
    Link(PathBuf),
}

impl Source {
    /// A compressed file is decompressed first: its parts come in any order.
    fn open(file: &Path, adding: &Adding, most: u64) -> io::Result<Self> {
        // Not as an error of the store's own files, which would be told as one.
        let unread = |error: io::Error| broken(format!("it cannot be read: {error}"));
        let found = fs::metadata(file).map_err(unread)?;
        if found.is_dir() {
            return Ok(Self::Directory(file.to_owned()));
        }
        // Looked at before it is opened: to open a pipe is to wait for whoever writes to it.
        if !found.is_file() {
            let reason =
                "it is no file and no directory; write what comes out of a pipe to a file first";
            return Err(broken(reason));
        }
        let mut opened = File::open(file).map_err(unread)?;
        let mut path = file.to_owned();
        if archive::is_compressed(&mut opened)? {
            path = adding.place.0.join("archive");
            let mut plain = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            let mut source =
                archive::decompress(BufReader::new(opened))?.take(most.saturating_add(1));
            if io::copy(&mut source, &mut plain)? > most {
                return Err(broken(super::digest::TOO_LARGE));
            }
        }
        let files = list(&path)?;
        Ok(Self::Archive { path, files })
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(at) => at.join(name).is_file(),
            Self::Archive { files, .. } => files.contains_key(Path::new(name)),
        }
    }

    /// The whole tar file.
    fn all(&self) -> io::Result<BufReader<File>> {
        match self {
            Self::Directory(_) => Err(broken("it is a directory")),
            Self::Archive { path, .. } => Ok(BufReader::with_capacity(1 << 18, File::open(path)?)),
        }
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Read>> {
        let missing = || broken(format!("{} is not in it", belljar_spec::shown(name)));
        let inside = tree::normal(name.as_bytes()).map_err(broken)?;
        match self {
            Self::Directory(at) => {
                // Links stay inside here too: what lies around may be somebody else's.
                let file = at.join(tree::resolve(at, &inside, true)?);
                if !fs::metadata(&file).is_ok_and(|found| found.is_file()) {
                    return Err(missing());
                }
                let file = File::open(file).map_err(|_| missing())?;
                Ok(Box::new(BufReader::new(file)))
            }
            Self::Archive { path, files } => {
                let mut part = files.get(&inside).ok_or_else(missing)?;
                if let Part::Link(to) = part {
                    // Layers that are there twice are links in files of older versions.
                    let to = lexical(&inside, to);
                    part = files.get(&to).ok_or_else(missing)?;
                }
                let Part::File { at, bytes } = part else {
                    return Err(missing());
                };
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(*at))?;
                Ok(Box::new(
                    BufReader::with_capacity(1 << 18, file).take(*bytes),
                ))
            }
        }
    }

    fn description(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.read(name)?
            .take(MOST_DESCRIPTION + 1)
            .read_to_end(&mut text)?;
        if text.len() as u64 > MOST_DESCRIPTION {
            return Err(broken(format!(
                "{} is too large",
                belljar_spec::shown(name)
            )));
        }
        Ok(text)
    }

    fn blob(&self, digest: &Digest) -> io::Result<Vec<u8>> {
        let text = self.description(&blob_path(digest))?;
        if Digest::of(&text) != *digest {
            return Err(broken(format!(
                "blob {} has another digest",
                digest.short()
            )));
        }
        Ok(text)
    }

    /// The images of a saved file, if it is one.
    fn saved(&self) -> io::Result<Option<Vec<Saved>>> {
        if !self.has("manifest.json") || matches!(self, Self::Directory(_)) {
            return Ok(None);
        }
        // A root may have a file of that name, too.
        Ok(serde_json::from_slice(&self.description("manifest.json")?).ok())
    }

    /// The manifest for a platform, and its digest.
    fn manifest(
        &self,
        images: &[Descriptor],
        wanted: &Platform,
    ) -> io::Result<(Digest, ImageManifest)> {
        let chosen = platform::choose(images, wanted).map_err(broken)?;
        let digest: Digest = chosen.digest().to_string().parse().map_err(broken)?;
        let text = self.blob(&digest)?;
        if let Ok(manifest) = serde_json::from_slice::<ImageManifest>(&text) {
            return Ok((digest, manifest));
        }
        let nested: ImageIndex = serde_json::from_slice(&text)?;
        let chosen = platform::choose(nested.manifests(), wanted).map_err(broken)?;
        let digest: Digest = chosen.digest().to_string().parse().map_err(broken)?;
        Ok((digest, serde_json::from_slice(&self.blob(&digest)?)?))
    }
}

/// A relative link's target by its text alone.
fn lexical(link: &Path, to: &Path) -> PathBuf {
    let mut at = link.parent().unwrap_or(Path::new("")).to_owned();
    for part in to.components() {
        match part {
            std::path::Component::ParentDir => drop(at.pop()),
            std::path::Component::Normal(name) => at.push(name),
            _ => {}
        }
    }
    at
}

/// The files of a tar file that can be parts of an image: those near its top.
fn list(path: &Path) -> io::Result<HashMap<PathBuf, Part>> {
    const MOST: usize = 1 << 16;
    let mut archive = Archive::new(BufReader::with_capacity(1 << 18, File::open(path)?));
    let mut files = HashMap::new();
    let mut is_empty = true;
    for entry in archive.entries_with_seek()?.raw(true) {
        let entry = entry.map_err(|error| broken(format!("it is no tar file: {error}")))?;
        is_empty = false;
        let header = entry.header();
        let Ok(name) = tree::normal(&header.path_bytes()) else {
            continue;
        };
        if name.components().count() > 3 || files.len() == MOST {
            continue;
        }
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                let part = Part::File {
                    at: entry.raw_file_position(),
                    bytes: header.entry_size()?,
                };
                files.insert(name, part);
            }
            EntryType::Symlink | EntryType::Link => {
                if let Ok(Some(to)) = header.link_name() {
                    files.insert(name, Part::Link(to.into_owned()));
                }
            }
            _ => {}
        }
    }
    if is_empty {
        return Err(broken("there is nothing in it"));
    }
    Ok(files)
}
