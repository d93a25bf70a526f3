//! Flags about the sandbox, which `run`, `repl` and `new` share.

use belljar_spec::{
    Amount, Error, Filesystem, LIMITS, Limit, LimitsPatch, Unit, Volume, Weakening, shown,
};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, FromArgMatches};
use rustix::fs::{Access, access};

/// What code finds inside, and what it is kept from.
#[derive(Args)]
pub struct InsideArgs {
    /// Modules that Python code may import, like json,math; `safe` stands for a list of harmless ones
    #[arg(long, value_name = "MODULES", value_delimiter = ',')]
    pub imports: Option<Vec<String>>,
    /// No files and no further processes for the code (Python and JavaScript)
    #[arg(long)]
    pub no_files: bool,
    /// Lay a private writable layer over the whole root, thrown away afterwards
    #[arg(long)]
    pub writable: bool,
    /// Show a directory of this machine inside, read-only unless :rw
    #[arg(long = "volume", value_name = "SRC:DEST[:rw]")]
    pub volumes: Vec<String>,
}

impl InsideArgs {
    pub fn filesystem(&self) -> Filesystem {
        if self.no_files {
            Filesystem::None
        } else {
            Filesystem::Workspace
        }
    }

    /// Links in what was typed are followed now, and none later.
    pub fn volumes(&self) -> Result<Vec<Volume>, Error> {
        let resolved = |text: &String| {
            let volume: Volume = text.parse()?;
            let refused = |reason: String| Error::InvalidVolume {
                given: shown(&volume.source),
                accepted: format!("it must be a file or directory that can be read ({reason})"),
            };
            let source = std::fs::canonicalize(&volume.source)
                .map_err(|error| refused(error.to_string()))?;
            // Inside it would be an empty promise.
            let needed = if source.is_dir() {
                Access::READ_OK | Access::EXEC_OK
            } else {
                Access::READ_OK
            };
            access(&source, needed).map_err(|error| refused(error.to_string()))?;
            let source = source
                .into_os_string()
                .into_string()
                .map_err(|_| refused("its name is not UTF-8".into()))?;
            Ok(Volume { source, ..volume })
        };
        self.volumes.iter().map(resolved).collect()
    }
}

/// What it does without.
#[derive(Args)]
pub struct WeakenArgs {
    #[arg(long = "weaken", value_name = "PROTECTION", help = weaken_help())]
    pub weaken: Vec<String>,
}

impl WeakenArgs {
    pub fn weakenings(&self) -> Result<Vec<Weakening>, Error> {
        self.weaken.iter().map(|text| text.parse()).collect()
    }
}

/// Whom code may reach.
#[derive(Args)]
pub struct NetworkArgs {
    /// Hosts the program may reach: none, all, or HOST,HOST:PORT,*.HOST
    #[arg(long, value_name = "HOSTS", default_value = "none")]
    pub network: String,
    /// Add a header to requests to a host of --network; its value is that of an environment variable, and is not seen inside
    #[arg(long = "network-header", value_name = "HOST=HEADER=VARIABLE")]
    pub headers: Vec<String>,
    /// Let the program trust Belljar's certificate, so that such headers reach HTTPS too
    #[arg(long)]
    pub intercept: bool,
    /// Install a package first, from the index that pip or npm on this machine use; once, then it is kept
    #[arg(long = "package", value_name = "NAME")]
    pub packages: Vec<String>,
}

fn weaken_help() -> String {
    let names: Vec<_> = Weakening::ALL
        .iter()
        .map(|protection| protection.name())
        .collect();
    format!(
        "Leave out a protection that this host cannot give ({}); the result's report shows it",
        names.join(", ")
    )
}

fn value_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Milliseconds => "TIME",
        Unit::BinaryBytes | Unit::DecimalBytes => "SIZE",
        Unit::Cores | Unit::Count => "NUMBER",
    }
}

/// What the environment says of a limit. Where that is none on any host, it is named: nobody has typed the flag.
fn of_environment(row: &Limit) -> Result<Option<Amount>, clap::Error> {
    let Some(text) = std::env::var_os(row.env) else {
        return Ok(None);
    };
    // What is no text is no amount either.
    let given = Amount::Text(text.to_string_lossy().into_owned());
    let mut alone = LimitsPatch::default();
    *alone.get_mut(row.kind) = Some(given.clone());
    alone.check_for_any_host().map_err(|error| {
        let error = match error {
            Error::InvalidRequest {
                given, accepted, ..
            } => Error::InvalidLimit {
                field: format!("{} ({})", row.json, row.env),
                given,
                accepted,
            },
            other => other,
        };
        clap::Error::raw(ErrorKind::Format, error)
    })?;
    Ok(Some(given))
}

/// A flag for each row of the limits table, which also says its default.
pub struct LimitFlags(pub LimitsPatch);

impl FromArgMatches for LimitFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self(LimitsPatch::default());
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for row in &LIMITS {
            let given = match matches.get_one::<String>(row.json) {
                Some(text) => Some(Amount::Text(text.clone())),
                None => of_environment(row)?,
            };
            if given.is_some() {
                *self.0.get_mut(row.kind) = given;
            }
        }
        Ok(())
    }
}

impl Args for LimitFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        LIMITS.iter().fold(command, |command, row| {
            let default = row.unit.text(row.default);
            command.arg(
                Arg::new(row.json)
                    .long(row.flag.trim_start_matches('-'))
                    .value_name(value_name(row.unit))
                    .allow_hyphen_values(true)
                    .help_heading("Limits")
                    .help(format!(
                        "{} [default: {default}; env: {}]",
                        row.doc, row.env
                    )),
            )
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}
