//! Files that go into the workspace, held against volumes: what lies in a volume is what the volume has there, not what was given.

use std::path::Path;

use belljar_spec::{Error, Volume, shown};

use crate::files::InputFile;

/// The program's own file. A volume there would run in its place.
pub(crate) fn check_main(volumes: &[Volume], workdir: &Path, main: &str) -> Result<(), Error> {
    let place = workdir.join(main);
    let Some(volume) = at(volumes, &place) else {
        return Ok(());
    };
    let place = place.to_string_lossy();
    Err(Error::InvalidVolume {
        given: shown(&volume.destination),
        accepted: format!(
            "the code itself is put at {}; give another place inside",
            shown(&place)
        ),
    })
}

/// The other files that are put there.
pub(crate) fn check_files<'a>(
    volumes: &[Volume],
    workdir: &Path,
    files: impl IntoIterator<Item = &'a str>,
) -> Result<(), Error> {
    if volumes.is_empty() {
        return Ok(());
    }
    for file in files {
        if let Some(volume) = at(volumes, &workdir.join(file)) {
            let volume = shown(&volume.destination);
            let accepted =
                format!("the volume at {volume} is in its way; give a path outside of that");
            return Err(Error::invalid_path("file", file, accepted));
        }
    }
    Ok(())
}

/// Where files of the caller's are put.
pub(crate) fn destinations(files: &[InputFile]) -> impl Iterator<Item = &str> {
    files.iter().map(|file| file.destination.as_str())
}

/// The volume that has the file in it, or lies where it would have to be no file.
fn at<'a>(volumes: &'a [Volume], file: &Path) -> Option<&'a Volume> {
    volumes.iter().find(|volume| {
        let volume = Path::new(&volume.destination);
        file.starts_with(volume) || volume.starts_with(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(destination: &str) -> Vec<Volume> {
        vec![format!("/srv:{destination}").parse().unwrap()]
    }

    #[test]
    fn the_program_is_not_covered() {
        for (covering, main) in [
            ("/workspace/main.py", "main.py"),
            ("/workspace/main.py/deeper", "main.py"),
            ("/workspace", "main.py"),
            ("/workspace/src", "src/main.py"),
        ] {
            let refused = check_main(&volume(covering), Path::new("/workspace"), main);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(&format!("\"{covering}\"")), "{message}");
        }
        for apart in ["/workspace/main.pyc", "/workspace/lib", "/data", "/main.py"] {
            let accepted = check_main(&volume(apart), Path::new("/workspace"), "main.py");
            assert_eq!(accepted, Ok(()), "{apart}");
        }
    }

    #[test]
    fn files_lie_outside_of_volumes() {
        let check = |file: &str| {
            let volumes = volume("/work/v");
            check_files(&volumes, Path::new("/work"), ["fine", file])
        };
        for covered in ["v", "v/x", "v/x/y"] {
            let message = check(covered).unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "file: the path \"{covered}\" is not accepted; the volume at \"/work/v\" is in its way; give a path outside of that"
                )
            );
        }
        assert_eq!(check("vx/v"), Ok(()));
    }
}
