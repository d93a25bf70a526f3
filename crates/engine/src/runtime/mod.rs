//! Runtimes: languages as data.
//!
//! A manifest (`runtimes/python.toml`) says how a language is called, how its toolchain is found on the host, what of the
//! host its programs need to see, and how they are compiled and run. Here is the one piece of code for all of them:
//! [`Registry`] finds the manifest for a name or a file ending, [`discover`] turns it into a [`Toolchain`] of this host by
//! running its probe once, and a cache remembers what the probe said until a file it depends on changes.
//!
//! People add languages, or replace built-in ones, by files of the same format named `<name>.toml` in the directory that
//! `BELLJAR_RUNTIMES` names, in `$XDG_CONFIG_HOME/belljar/runtimes`, or in `/etc/belljar/runtimes`; the first one wins.
//!
//! A probe runs on the host, unconfined, as the caller: manifests are configuration and as trusted as the caller's shell.

mod cache;
mod discover;
mod inside;
mod manifest;
mod mounts;
mod own;
mod probe;
mod registry;
mod template;
mod toolchain;

pub use cache::Cache;
pub use discover::{Candidate, discover, discover_with};
pub use manifest::Manifest;
pub use mounts::BASE;
pub(crate) use probe::output;
pub use registry::{LanguageHint, Listed, Registry};
pub use template::Place;
pub use toolchain::{Kernel, Step, Toolchain};
