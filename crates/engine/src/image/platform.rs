//! Which of the images behind one name is meant: that for a platform.

use std::fmt;
use std::str::FromStr;

use belljar_spec::Error;
use oci_spec::image::Descriptor;

/// Like `linux/arm64` or `linux/arm/v7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// This machine's.
    pub fn of_host() -> Self {
        Self {
            os: "linux".into(),
            architecture: super::architecture().into(),
            variant: None,
        }
    }

    /// Whether what an image's configuration says is this.
    pub(super) fn check(&self, found: &str) -> Result<(), String> {
        if format!("{}/{}", self.os, self.architecture) == found {
            return Ok(());
        }
        let found = belljar_spec::shown(found);
        Err(format!(
            "there is none for {self}, only for {}",
            found.trim_matches('"')
        ))
    }
}

impl FromStr for Platform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = |part: &&str| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let parts: Vec<_> = text.split('/').filter(plain).collect();
        match (parts[..].len(), text.split('/').count()) {
            (2, 2) | (3, 3) => Ok(Self {
                os: parts[0].to_owned(),
                architecture: parts[1].to_owned(),
                variant: parts.get(2).map(|part| (*part).to_owned()),
            }),
            _ => Err(Error::invalid_request(
                "platform",
                text,
                "give it like linux/amd64 or linux/arm/v7",
            )),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

/// The one for that platform. One that names no platform is taken if it is alone.
pub(super) fn choose<'a>(
    all: &'a [Descriptor],
    wanted: &Platform,
) -> Result<&'a Descriptor, String> {
    if let [only] = all
        && only.platform().is_none()
    {
        return Ok(only);
    }
    let fits = |one: &&Descriptor| {
        one.platform().as_ref().is_some_and(|found| {
            found.os().to_string() == wanted.os
                && found.architecture().to_string() == wanted.architecture
                && (wanted.variant.is_none() || wanted.variant == *found.variant())
        })
    };
    all.iter().find(fits).ok_or_else(|| {
        let there: Vec<_> = all
            .iter()
            .filter_map(|one| one.platform().as_ref())
            .map(|found| format!("{}/{}", found.os(), found.architecture()))
            .filter(|text| !text.contains("unknown"))
            .take(16)
            .collect();
        if there.is_empty() {
            return format!(
                "there is none for {wanted}: of {} none says which platform it is for",
                all.len()
            );
        }
        format!("there is none for {wanted}, only for {}", there.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for good in ["linux/amd64", "linux/arm/v7"] {
            assert_eq!(good.parse::<Platform>().unwrap().to_string(), good);
        }
        for bad in ["", "linux", "linux/", "a/b/c/d", "linux/am d64", "//"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }
}
