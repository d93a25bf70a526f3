//! What every sandbox of this host sees besides its toolchain: the system's programs and libraries, a few files of `/etc`.

use std::fs;
use std::path::{Path, PathBuf};

use belljar_jail::{Closed, Entry, INNER_ID};
use belljar_spec::{Error, Network, Volume, Weakening, shown};

use crate::egress::{CERTIFICATES, RESOLV_CONF};
use crate::engine::Engine;
use crate::image::Image;
use crate::kernel::PLACE;
use crate::runtime::{BASE, Toolchain};

const ETC: [&str; 4] = [
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/localtime",
];

/// Everything at the top of an image's root, but what a sandbox has of its own: the usual places, and `more`.
pub fn of_image(
    image: &Image,
    workdir: &Path,
    more: Vec<Entry>,
    weaken: &[Weakening],
) -> Result<Vec<Entry>, Error> {
    if weaken.contains(&Weakening::Mounts) {
        return Err(Error::NotSupported {
            what: "an image without protected mounts".into(),
            reason: "code could then change the image; leave out --weaken mounts".into(),
        });
    }
    let targets = more.iter().map(|entry| match entry {
        Entry::System { path } | Entry::Link { path, .. } | Entry::File { path, .. } => {
            path.as_path()
        }
        Entry::Volume { target, .. } | Entry::Image { target, .. } => target.as_path(),
    });
    let own = ["/dev", "/proc", "/sys", "/tmp", PLACE].map(Path::new);
    let taken: Vec<_> = own.into_iter().chain([workdir]).chain(targets).collect();
    let mut entries = Vec::new();
    open_up(image, Path::new("/"), &taken, &mut entries)?;
    entries.extend(more);
    Ok(entries)
}

/// The entries for what is in a directory of an image. One with a place of the sandbox's own somewhere in it is not shown as a
/// whole, but made anew, so that there is something to mount that place on.
fn open_up(
    image: &Image,
    directory: &Path,
    taken: &[&Path],
    entries: &mut Vec<Entry>,
) -> Result<(), Error> {
    const MOST: usize = 1024;
    let refused = |path: &Path, reason: &str| {
        let name = image.name.to_string();
        Error::invalid_image(
            &name,
            format!("{} cannot be used: {reason}", path.display()),
        )
    };
    let broken = |error: std::io::Error| refused(directory, &error.to_string());
    let relative = directory.strip_prefix("/").unwrap_or(directory);
    let at = image.root().join(relative);
    for entry in fs::read_dir(&at).map_err(broken)? {
        let entry = entry.map_err(broken)?;
        let (path, kind) = (
            directory.join(entry.file_name()),
            entry.file_type().map_err(broken)?,
        );
        if taken.contains(&path.as_path()) {
            continue;
        }
        if taken.iter().any(|below| below.starts_with(&path)) {
            if !kind.is_dir() {
                return Err(refused(
                    &path,
                    "it is no directory in the image, but the request needs one there",
                ));
            }
            open_up(image, &path, taken, entries)?;
        } else if kind.is_symlink() {
            let to = fs::read_link(entry.path()).map_err(broken)?;
            entries.push(Entry::Link { path, to });
        } else {
            entries.push(Entry::Image {
                source: entry.path(),
                target: path,
            });
        }
        if entries.len() > MOST {
            return Err(refused(
                directory,
                "there is too much in it to mount anything below it",
            ));
        }
    }
    Ok(())
}

/// The entries of a sandbox whose toolchain needs `mounts` besides.
pub fn entries(
    mounts: &[PathBuf],
    volumes: &[Volume],
    weaken: &[Weakening],
    network: &Network,
) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for base in BASE.map(PathBuf::from) {
        match fs::read_link(&base) {
            // On a merged system the directories at the top are links below /usr.
            Ok(to) => entries.push(Entry::Link { path: base, to }),
            Err(_) if base.is_dir() => entries.push(Entry::System { path: base }),
            Err(_) => {}
        }
    }
    let mut covered: Vec<&Path> = Vec::new();
    let mut paths: Vec<&Path> = mounts.iter().map(PathBuf::as_path).collect();
    paths.extend(ETC.map(Path::new));
    // Shorter paths first, so that what lies below another is not mounted twice.
    paths.sort_by_key(|path| path.components().count());
    for path in paths {
        if !covered.iter().any(|above| path.starts_with(above)) && path.exists() {
            entries.push(Entry::System {
                path: path.to_owned(),
            });
            covered.push(path);
        }
    }
    entries.extend(etc_files());
    entries.extend(name_server(network));
    for volume in volumes {
        entries.push(volume_entry(volume)?);
    }
    if weaken.contains(&Weakening::Mounts) {
        whole_host(&mut entries)?;
    }
    Ok(entries)
}

/// Where names are asked for, if there is a network.
pub fn name_server(network: &Network) -> Option<Entry> {
    (!network.is_none()).then(|| Entry::File {
        path: "/etc/resolv.conf".into(),
        content: RESOLV_CONF.into(),
    })
}

/// Libraries of the system, which every interpreter loads from.
const LIBRARIES: [&str; 9] = [
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/local/lib",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
];
/// What the system itself executes in order to load a program.
const LOADERS: [&str; 4] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// What is left of the file system where code has none: what its interpreter is made of. `None`: it cannot do without.
pub fn closed(toolchain: &Toolchain) -> Option<Closed> {
    let reads = toolchain.kernel.as_ref()?.reads.as_ref()?;
    let program = [toolchain.program.clone()];
    let readable = LIBRARIES
        .iter()
        .chain(&ETC)
        .map(PathBuf::from)
        .chain([PathBuf::from(PLACE)])
        .chain(program.clone())
        .chain(toolchain.mounts.iter().chain(reads).cloned());
    let executable = LOADERS.iter().map(PathBuf::from).chain(program);
    Some(Closed {
        readable: readable.collect(),
        executable: executable.collect(),
    })
}

/// The same with what the toolchain and the network bring along.
pub fn furnished(
    engine: &Engine,
    toolchain: &Toolchain,
    workdir: &Path,
    volumes: &[Volume],
    weaken: &[Weakening],
    network: &Network,
) -> Result<Vec<Entry>, Error> {
    let mut more = Vec::new();
    for (source, target) in &toolchain.layers {
        let source =
            fs::canonicalize(source).map_err(|error| Error::internal("packages", error))?;
        more.push(Entry::Volume {
            source,
            target: target.clone(),
            writable: false,
        });
    }
    if network.intercept {
        let authority = engine.world().authority();
        let authority = authority.map_err(|error| Error::internal("certificates", error))?;
        more.push(Entry::File {
            path: CERTIFICATES.into(),
            content: authority.bundle(),
        });
    }
    if toolchain.container.is_none() && toolchain.image.is_none() {
        let mut all = entries(&toolchain.mounts, volumes, weaken, network)?;
        all.extend(more);
        return Ok(all);
    }
    for volume in volumes {
        more.push(volume_entry(volume)?);
    }
    match &toolchain.image {
        // Of a container's image there is nothing of this host; the container engine says who is asked for names.
        None => Ok(more),
        Some(image) => {
            more.extend(name_server(network));
            of_image(image, workdir, more, weaken)
        }
    }
}

/// Its source is as whoever allowed it has resolved it. To resolve it again, now or whenever the sandbox is made anew, would be to
/// follow links that code has put there since.
fn volume_entry(volume: &Volume) -> Result<Entry, Error> {
    let refused = |reason: &dyn std::fmt::Display| Error::InvalidVolume {
        given: shown(&volume.source),
        accepted: format!(
            "it must be a file or directory that can be read, without links on the way ({reason})"
        ),
    };
    let source = belljar_jail::source::open(Path::new(&volume.source));
    let found = source.and_then(|source| source.metadata());
    let found = found.map_err(|error| refused(&error))?;
    // Whoever listens at a socket serves the code, read-only or not.
    if !found.is_file() && !found.is_dir() {
        return Err(refused(&"it is neither"));
    }
    Ok(Entry::Volume {
        source: PathBuf::from(&volume.source),
        target: PathBuf::from(&volume.destination),
        writable: volume.writable,
    })
}

/// Everything of the host's root that the sandbox does not have already: what `--weaken mounts` means.
fn whole_host(entries: &mut Vec<Entry>) -> Result<(), Error> {
    let private = [
        "dev", "proc", "sys", "tmp", "etc", "usr", "bin", "lib", "lib32", "lib64", "libx32",
    ];
    let listing = fs::read_dir("/").map_err(|error| Error::internal("listing /", error))?;
    for name in listing.flatten().map(|entry| entry.file_name()) {
        let path = Path::new("/").join(&name);
        if path.is_dir() && !path.is_symlink() && !private.iter().any(|known| name == *known) {
            entries.push(Entry::System { path });
        }
    }
    Ok(())
}

/// Just enough for programs that ask who they are and what `localhost` is.
fn etc_files() -> [Entry; 4] {
    let file = |path: &str, content: String| Entry::File {
        path: path.into(),
        content,
    };
    [
        file(
            "/etc/passwd",
            format!(
                "root:x:0:0:root:/:/usr/sbin/nologin\n\
                 sandbox:x:{INNER_ID}:{INNER_ID}:sandbox:/tmp:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
            ),
        ),
        file(
            "/etc/group",
            format!("root:x:0:\nsandbox:x:{INNER_ID}:\nnogroup:x:65534:\n"),
        ),
        file("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n".into()),
        file(
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n".into(),
        ),
    ]
}
