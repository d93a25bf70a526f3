//! A tar file of the daemon as a directory of this host.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use belljar_server::{LeftOut, Pieces};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use tar::{Archive, EntryType};

use super::{Copied, bar, size};

/// Takes the answer apart as it comes.
pub async fn unpacked(
    answer: Response<Incoming>,
    from: PathBuf,
    to: PathBuf,
) -> Result<(Copied, LeftOut)> {
    let (sender, source) = Pieces::new(4);
    let work = tokio::task::spawn_blocking(move || unpack(source, &from, &to));
    let bar = bar(size(&answer));
    let mut body = answer.into_body();
    let mut whole = Ok(());
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                bar.inc(data.len() as u64);
                // Whoever takes them says why it has stopped.
                if sender.send(Ok(data)).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                whole = Err(error);
                break;
            }
        }
    }
    drop(sender);
    bar.finish_and_clear();
    let copied = work.await?;
    whole.context("the daemon broke off")?;
    copied
}

/// The files and directories of an archive, whose names begin with that of the directory that was asked for. What is in it was
/// written by strangers: nothing else is taken out of it, and nothing gets outside of `to`.
fn unpack(source: impl Read, from: &Path, to: &Path) -> Result<(Copied, LeftOut)> {
    super::make(to)?;
    let from: PathBuf = from.components().filter(is_name).collect();
    let (mut copied, mut left_out) = (Copied::default(), LeftOut::default());
    for entry in Archive::new(source).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let inner = path.strip_prefix(&from).unwrap_or(&path);
        if !inner.components().all(|part| is_name(&part)) {
            bail!("the archive has a file {} in it", path.display());
        }
        let target = to.join(inner);
        let written = match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&target).map(|()| None),
            EntryType::Regular => write(&mut entry, &target).map(Some),
            _ => continue,
        };
        match written {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                copied.bytes += bytes;
                copied.files += 1;
            }
            // Code makes longer ones than can be made here by a path. The others are none the worse for it.
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                left_out.add(&path, "its path would be too long here");
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot write {}", target.display()));
            }
        }
    }
    Ok((copied, left_out))
}

/// One file, and the directories above it.
fn write(entry: &mut tar::Entry<'_, impl Read>, target: &Path) -> io::Result<u64> {
    target.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mode = 0o666 | entry.header().mode()? & 0o111;
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(mode);
    io::copy(entry, &mut options.open(target)?)
}

fn is_name(part: &Component<'_>) -> bool {
    matches!(part, Component::Normal(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::{Builder, Header};

    /// One path that cannot be made here costs none of the others.
    #[test]
    fn what_is_too_long_here_is_left_out() {
        let mut archive = Builder::new(Vec::new());
        for name in [
            "a".to_owned(),
            "d".repeat(200) + "/" + &"d/".repeat(2000) + "f",
            "z".to_owned(),
        ] {
            let mut header = Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            archive
                .append_data(&mut header, name, &b"x"[..])
                .expect("an entry");
        }
        let archive = archive.into_inner().expect("an archive");
        let place = tempfile::tempdir().expect("tempdir");
        let (copied, left_out) =
            unpack(&archive[..], Path::new(""), place.path()).expect("unpacked");
        assert_eq!((copied.files, copied.bytes, left_out.count), (2, 2, 1));
        assert_eq!(fs::read(place.path().join("z")).expect("a file"), b"x");
    }
}
