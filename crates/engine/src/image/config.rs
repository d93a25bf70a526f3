//! What an image's configuration says that matters to a sandbox.

use std::collections::BTreeMap;
use std::io;

use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// Where programs are looked for when the image does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const MOST_VARIABLES: usize = 512;
const MOST_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub platform: String,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub layers: Vec<Digest>,
}

impl Settings {
    pub fn parse(config: &[u8]) -> io::Result<Self> {
        let broken = |reason: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("its configuration is broken: {reason}"),
            )
        };
        let parsed: ImageConfiguration =
            serde_json::from_slice(config).map_err(|error| broken(error.to_string()))?;
        let layers = parsed
            .rootfs()
            .diff_ids()
            .iter()
            .map(|digest| digest.parse());
        let layers = layers.collect::<Result<_, String>>().map_err(broken)?;
        let given = parsed.config().as_ref();
        let empty = Vec::new();
        let lines = given
            .and_then(|given| given.env().as_ref())
            .unwrap_or(&empty);
        let plain = |line: &&String| !line.contains('\0');
        let env: BTreeMap<_, _> = lines
            .iter()
            .filter(plain)
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let bytes: usize = env
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if env.len() > MOST_VARIABLES || bytes > MOST_BYTES {
            return Err(broken("its environment is too large".into()));
        }
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            platform: format!("{}/{}", parsed.os(), parsed.architecture()),
            env,
            user: given.and_then(|given| text(given.user())),
            workdir: given.and_then(|given| text(given.working_dir())),
            layers,
        })
    }

    /// Of a root that came without one.
    pub fn plain(layer: &Digest) -> Vec<u8> {
        let text = serde_json::json!({
            "architecture": super::architecture(),
            "os": "linux",
            "config": { "Env": [format!("PATH={DEFAULT_PATH}")] },
            "rootfs": { "type": "layers", "diff_ids": [layer] },
        });
        text.to_string().into_bytes()
    }

    pub fn path(&self) -> &str {
        self.env.get("PATH").map_or(DEFAULT_PATH, String::as_str)
    }
}
