//! Patterns for names of files: `*` and `?` stand for what is within a name, `**` for any number of directories.

use crate::{Error, check_destination};

const MOST: usize = 64;
/// Nobody needs more.
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
    let is_star = |glob: &Vec<char>| glob == &['*', '*'];
    fits(&parts(glob), &parts(path), is_star, |glob, name| {
        fits(glob, name, |c| *c == '*', |c, d| *c == '?' || c == d)
    })
}

/// Whether items fit a pattern in which stars stand for any number of them. Where the rest does not fit, only the last star has
/// to take one more: whatever an earlier one could take instead, the last can. So the steps are at most the product of the
/// lengths, and names, which code chooses, cannot make it take long.
fn fits<P, T>(
    pattern: &[P],
    items: &[T],
    is_star: impl Fn(&P) -> bool,
    one_fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut next) = (0, 0);
    // What comes after the last star, and the first item that it has not taken.
    let mut star = None;
    while next < items.len() {
        match pattern.get(at) {
            Some(glob) if is_star(glob) => {
                at += 1;
                star = Some((at, next));
            }
            Some(glob) if one_fits(glob, &items[next]) => {
                at += 1;
                next += 1;
            }
            _ => {
                let Some((after, taken)) = &mut star else {
                    return false;
                };
                *taken += 1;
                (at, next) = (*after, *taken);
            }
        }
    }
    pattern[at..].iter().all(is_star)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    /// What a glob means, in few words: each star is tried with everything.
    fn means<P, T>(
        globs: &[P],
        items: &[T],
        is_star: &dyn Fn(&P) -> bool,
        one_fits: &dyn Fn(&P, &T) -> bool,
    ) -> bool {
        match (globs.split_first(), items.split_first()) {
            (None, None) => true,
            (Some((glob, rest)), _) if is_star(glob) => {
                (0..=items.len()).any(|taken| means(rest, &items[taken..], is_star, one_fits))
            }
            (Some((glob, rest)), Some((item, items))) => {
                one_fits(glob, item) && means(rest, items, is_star, one_fits)
            }
            _ => false,
        }
    }

    fn reference(glob: &str, path: &str) -> bool {
        let parts = |text: &str| -> Vec<Vec<char>> {
            text.split('/').map(|part| part.chars().collect()).collect()
        };
        let name = |glob: &Vec<char>, name: &Vec<char>| {
            means(glob, name, &|c| *c == '*', &|c, d| *c == '?' || c == d)
        };
        let stars = |glob: &Vec<char>| glob == &['*', '*'];
        means(&parts(glob), &parts(path), &stars, &name)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]
        #[test]
        fn globs_mean_what_they_say(
            glob in prop::collection::vec(prop::sample::select(vec!["a", "b", "?", "*", "/", "**/", "/**/", "/**"]), 0..9),
            path in "[ab/]{0,9}",
        ) {
            let glob = glob.concat();
            prop_assert_eq!(fits_glob(&glob, &path), reference(&glob, &path), "{} {}", glob, path);
        }
    }

    /// With all stars tried in all ways these would take weeks.
    #[test]
    fn no_name_takes_long() {
        let began = Instant::now();
        let name = "n".repeat(255);
        let glob = format!("{}x", "*n".repeat(8));
        let deep = vec!["n"; 2_000].join("/");
        let stars = format!("{}x", "**/n/".repeat(8));
        for _ in 0..100 {
            assert!(!fits_glob(&glob, &name));
        }
        assert!(!fits_glob(&stars, &deep));
        assert!(began.elapsed() < Duration::from_secs(5));
    }

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
