//! The library of Belljar: runtimes, sandboxes, files.
//!
//! Theory of operation. An [`Engine`] owns a keeper process and speaks with it over a socket. A run is: find the
//! language's toolchain on this host, turn the request into a plan, have the keeper open a sandbox, put the files in its
//! workspace, start the stages (compile, run) with pipes whose other ends are read here, collect what was written, close.
//! What happened is told by the keeper's counts, never by what the code printed.
#![forbid(unsafe_code)]

mod advice;
mod awake;
mod cause;
pub mod clock;
mod command;
mod covered;
pub mod docker;
pub mod doctor;
mod egress;
mod engine;
pub mod failure;
mod files;
mod host;
pub mod image;
mod kernel;
mod layout;
mod once;
mod output;
mod output_dir;
mod packages;
pub mod pax;
mod pool;
mod process;
mod run;
pub mod runtime;
mod sandbox;
pub mod scope;
mod session;
mod socket;
mod stop;
pub mod trust;
mod unused;
mod verdict;
mod workspace;

pub use belljar_jail::Counters;
pub use belljar_jail::terminal::Window;
pub use command::Stdin;
pub use egress::{Outside, Totals};
pub use engine::{Engine, Starting};
pub use files::{InputFile, Source, harmless};
pub use host::{capacity, machine, set_maxima};
pub use output::{Sink, Stream};
pub use output_dir::{LeftBehind, OutputDirectory};
pub use packages::PackageSettings;
pub use pool::{Pool, PoolConfig};
pub use run::{Task, new_run_id, random_bits};
pub use session::{Observer, Program, Screen, Session, Terminal};
pub use stop::Stop;
pub use workspace::{Entry, Files, Kind, Upload};
