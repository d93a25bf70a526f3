//! Patterns for names of files: `*` and `?` stand for what is within a name, `**` for any number of directories.

use crate::{Error, check_destination};

const MOST: usize = 64;
/// More would take too long to try.
const MOST_STARS: usize = 8;

pub(crate) fn check(globs: &[String]) -> Result<(), Error> {
    if globs.len() > MOST {
        return Err(Error::InvalidRequest {
            field: "collect".into(),
            given: format!("a list of {}", globs.len()),
            accepted: format!("give at most {MOST}"),
        });
    }
    for glob in globs {
        check_destination("collect", glob)?;
        if glob.matches('*').count() > MOST_STARS {
            let accepted = format!("give at most {MOST_STARS} stars");
            return Err(Error::invalid_path("collect", glob, accepted));
        }
    }
    Ok(())
}

/// Whether a path fits a glob that has been checked.
pub fn fits_glob(glob: &str, path: &str) -> bool {
    let parts = |text: &str| -> Vec<Vec<char>> {
        text.split('/').map(|part| part.chars().collect()).collect()
    };
    path_fits(&parts(glob), &parts(path))
}

fn path_fits(globs: &[Vec<char>], names: &[Vec<char>]) -> bool {
    match (globs.split_first(), names.split_first()) {
        (None, None) => true,
        (Some((glob, rest)), _) if glob == &['*', '*'] => {
            (0..=names.len()).any(|skipped| path_fits(rest, &names[skipped..]))
        }
        (Some((glob, rest)), Some((name, names))) => {
            name_fits(glob, name) && path_fits(rest, names)
        }
        _ => false,
    }
}

fn name_fits(glob: &[char], name: &[char]) -> bool {
    match (glob.split_first(), name.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), _) => (0..=name.len()).any(|skipped| name_fits(rest, &name[skipped..])),
        (Some(('?', rest)), Some((_, name))) => name_fits(rest, name),
        (Some((c, rest)), Some((d, name))) => c == d && name_fits(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fit() {
        for (glob, path, fits) in [
            ("out.csv", "out.csv", true),
            ("*.csv", "out.csv", true),
            ("*.csv", "a/out.csv", false),
            ("**/*.csv", "a/b/out.csv", true),
            ("**/*.csv", "out.csv", true),
            ("a/**", "a/b/c", true),
            ("a/**", "b/c", false),
            ("?.t*t", "é.text", true),
            ("?.txt", "ab.txt", false),
            ("**", "a/b", true),
            ("a*b*c", "axxbxxc", true),
            ("a*b*c", "axxbxx", false),
        ] {
            assert_eq!(fits_glob(glob, path), fits, "{glob} {path}");
        }
        assert!(check(&["*".repeat(9)]).is_err());
        assert!(check(&vec!["a".into(); 65]).is_err());
        assert!(check(&["../a".into()]).is_err());
    }
}
