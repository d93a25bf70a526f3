//! What can be typed. Texts are kept as given here; `spec` decides what they mean.

use std::path::PathBuf;

use belljar_spec::{
    Amount, Error, Filesystem, LIMITS, LimitsPatch, Unit, Volume, Weakening, shown,
};
use clap::{Arg, ArgMatches, Args, FromArgMatches, Parser, Subcommand};

/// Run code you do not trust, fully isolated, on this machine.
#[derive(Parser)]
#[command(name = "belljar", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// `belljar run` and what follows, if all of it is right. To read the words of all other commands before takes a third of a
    /// millisecond. Help and mistakes are for the whole of them.
    pub fn of_run() -> Option<Self> {
        let mut words = std::env::args_os().skip(1).peekable();
        words.next_if(|word| word == "run")?;
        let name = std::ffi::OsString::from("run");
        let read = RunArgs::augment_args(clap::Command::new("run"))
            .try_get_matches_from(std::iter::once(name).chain(words))
            .and_then(|matches| RunArgs::from_arg_matches(&matches));
        let command = Command::Run(Box::new(read.ok()?));
        Some(Self { command })
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a program in a sandbox of its own and exit as it does
    Run(Box<RunArgs>),
    /// A live session in the terminal: files stay from line to line, and in Python, JavaScript and bash variables too
    Repl(Box<ReplArgs>),
    /// Show what this host can enforce, and how to turn on what it cannot; exit 1 if `run` would refuse
    Doctor(ListArgs),
    /// List the languages this host can run, and how to get those it cannot
    Runtimes(RuntimesArgs),
    /// Keep container images to run code in, without Docker
    #[command(subcommand)]
    Image(ImageCommand),
    /// Serve the HTTP API: the daemon that many share
    Serve(ServeArgs),
    /// Make a key for a tenant of the daemon, and print the line for its settings
    Key,
    /// List the sandboxes that the daemon keeps
    Ps(PsArgs),
    /// Make a sandbox that the daemon keeps, and print its id
    New(Box<NewArgs>),
    /// Delete sandboxes of the daemon
    Rm(RemoveArgs),
    /// Run a command, or code, in a sandbox of the daemon and exit as it does
    Exec(ExecArgs),
    /// Copy files or whole directories into a sandbox of the daemon, or out of it
    Cp(CopyArgs),
    /// List runs that ended
    History(HistoryArgs),
    /// Say what went wrong in a run
    Show(ShowArgs),
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Fetch an image from its registry, with the credentials of `docker login`; a download that broke off goes on
    Pull {
        /// Its name, like python:3.12-slim
        #[arg(value_name = "REF")]
        image: String,
        /// For which machine [default: this one]
        #[arg(long, value_name = "OS/ARCH")]
        platform: Option<String>,
        /// Speak to this registry without TLS, as to those on this machine
        #[arg(long, value_name = "HOST[:PORT]")]
        insecure: Vec<String>,
        /// Refuse an image whose files are larger together
        #[arg(long, value_name = "SIZE", default_value = "16g")]
        max_size: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take in an image from a file: what `docker save` writes, an OCI layout, or the tar file of a root
    Import {
        /// Where it is
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// What to call it; by default what the file says, or is called
        #[arg(long, value_name = "REF")]
        name: Option<String>,
        /// Which one, if there are several [default: this machine's]
        #[arg(long, value_name = "OS/ARCH")]
        platform: Option<String>,
        /// Refuse an image whose files are larger together
        #[arg(long, value_name = "SIZE", default_value = "16g")]
        max_size: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the images that are here
    List(ListArgs),
    /// Remove images, and what nothing else needs
    Rm {
        /// Their names, as `image list` has them
        #[arg(value_name = "REF", required = true)]
        images: Vec<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove what no image needs any more, and unfinished downloads
    Prune(ListArgs),
}

#[derive(Args)]
pub struct PsArgs {
    /// Only those with this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only those of this language
    #[arg(short, long)]
    pub language: Option<String>,
    /// Only those with this label: NAME or NAME=VALUE
    #[arg(long)]
    pub label: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(mut_arg("volumes", |arg| arg.help("Show a directory of the daemon's machine inside, if its settings allow that")))]
pub struct NewArgs {
    /// Language [default: python]
    #[arg(short, long)]
    pub language: Option<String>,
    /// A preset of the daemon's settings
    #[arg(long)]
    pub template: Option<String>,
    /// The image whose root it has
    #[arg(long, value_name = "REF")]
    pub image: Option<String>,
    /// A name for people
    #[arg(long)]
    pub name: Option<String>,
    /// A label, to find it again
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Hosts it may reach: none, all, or HOST,HOST:PORT,*.HOST
    #[arg(long, value_name = "HOSTS")]
    pub network: Option<String>,
    /// A package to be installed in it
    #[arg(long = "package", value_name = "NAME")]
    pub packages: Vec<String>,
    /// Set an environment variable inside
    #[arg(long = "env", value_name = "K=V", allow_hyphen_values = true)]
    pub env: Vec<String>,
    /// Copy a file into the workspace, also whenever it is reset; see `cp` for large ones
    #[arg(long = "file", value_name = "[DEST=]SRC")]
    pub files: Vec<String>,
    /// What isolates: native or docker [default: native, or what the daemon says]
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<String>,
    #[command(flatten)]
    pub inside: InsideArgs,
    /// A fresh interpreter after so many runs [default: never]
    #[arg(long, value_name = "NUMBER")]
    pub max_runs: Option<u64>,
    /// Delete it when nobody used it for so long [default: 1h, or what the daemon says]
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<String>,
    /// Delete it then in any case [default: never]
    #[arg(long, value_name = "TIME")]
    pub lifetime: Option<String>,
    #[command(flatten)]
    pub limits: LimitFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RemoveArgs {
    /// As `new` printed them and `ps` lists them
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Print which as JSON
    #[arg(long)]
    pub json: bool,
}

const EXEC_HELP: &str = "\
Standard input is read if it is a pipe or a file: to its end, and then the command starts with it. \
It starts without, if nothing has come for 5 s. What is typed is not read (see -t). \
Whatever ends this program, Ctrl-C too, ends the command.

Exit status: as of `belljar run`.

Examples:
  belljar exec $id -- sh -c 'ls | wc -l'
  belljar exec $id -c 'print(x)' --timeout 2s
  belljar exec $id -- sort <words.txt";

#[derive(Args)]
#[command(after_help = EXEC_HELP)]
pub struct ExecArgs {
    /// The sandbox
    #[arg(value_name = "ID")]
    pub id: String,
    /// Code for the sandbox's interpreter instead of a command
    #[arg(
        short,
        value_name = "CODE",
        allow_hyphen_values = true,
        conflicts_with = "command"
    )]
    pub code: Option<String>,
    /// At a terminal: what you type goes in, what the program draws comes out as it is. Without CMD, a shell
    #[arg(short, long, conflicts_with_all = ["code", "timeout", "max_output"])]
    pub terminal: bool,
    /// Wall-clock time
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Bytes kept of each of stdout and stderr
    #[arg(long, value_name = "SIZE")]
    pub max_output: Option<String>,
    /// Print one JSON object with the result instead of the output
    #[arg(long, conflicts_with = "terminal")]
    pub json: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present_any = ["code", "terminal"])]
    pub command: Vec<String>,
}

#[derive(Args)]
pub struct CopyArgs {
    /// A path here, - for standard input, or ID:PATH. A pipe is read to its end, as soon as something is written to it
    #[arg(value_name = "SRC")]
    pub source: String,
    /// A path here, - for standard output (of a directory: a tar file), or ID:PATH. As with `cp -r`, the copy goes into it under SRC's own name
    /// if it is a directory or ends in a slash, and else is DST itself; of SRC/. and of ID: it gets what is in there. Directories above it
    /// are made
    #[arg(value_name = "DST")]
    pub destination: String,
    /// Print how much was copied as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct HistoryArgs {
    /// How many, newest first, at most 1000 [default: 50]
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<u32>,
    #[arg(
        long,
        help = "How they ended: ok, failed, compile_failed, timed_out, out_of_memory, killed"
    )]
    pub status: Option<String>,
    /// Only those of this language
    #[arg(short, long)]
    pub language: Option<String>,
    /// Not before: a time, or how long ago, like 1h or 2d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Before that: a time, or how long ago
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only those with this label: NAME or NAME=VALUE
    #[arg(long)]
    pub label: Option<String>,
    /// Text that occurs in the error
    #[arg(long)]
    pub text: Option<String>,
    /// The sandbox they ran in
    #[arg(long, value_name = "ID")]
    pub sandbox: Option<String>,
    /// Whose they are, for the administrator
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ShowArgs {
    /// As `history` lists it
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Print JSON, with all that is kept of it
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ServeArgs {
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "Where to listen [default: 127.0.0.1:7117; env: BELLJAR_LISTEN]; \"\" for nowhere"
    )]
    pub listen: Option<String>,
    #[arg(
        long,
        value_name = "PATH",
        help = "The unix socket [default: belljar.sock in the state directory; env: BELLJAR_UNIX]; \"\" for none"
    )]
    pub unix: Option<String>,
    #[arg(long, value_name = "FILE", help = "Settings [env: BELLJAR_CONFIG]")]
    pub config: Option<PathBuf>,
    /// Leave when nobody has needed it for so long; 0s for never
    #[arg(long, value_name = "TIME")]
    pub idle_exit: Option<String>,
    /// Only say whether the settings are fine
    #[arg(long)]
    pub check_config: bool,
}

#[derive(Args)]
pub struct RuntimesArgs {
    /// Those in this image instead
    #[arg(long, value_name = "REF")]
    pub image: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const RUN_HELP: &str = "\
Exit status: that of the program; 124 if it ran out of time, 137 out of memory, 128+n if signal n ended it,
125 if Belljar could not run it (the reason is on stderr, and nothing on stdout) or its output could not be written.

Examples:
  belljar run script.py -- --verbose input.txt
  belljar run -c 'print(6 * 7)'
  echo 'puts 6 * 7' | belljar run -l ruby -
  belljar run main.c --memory 256m --timeout 2s --stdin input.txt --json
  belljar run plot.py --file data.csv --output-dir out";

#[derive(Args)]
#[command(after_help = RUN_HELP)]
pub struct RunArgs {
    /// The program, or - to read it from stdin
    #[arg(value_name = "FILE", required_unless_present = "code")]
    pub file: Option<PathBuf>,
    /// The program itself
    #[arg(
        short,
        value_name = "CODE",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    pub code: Option<String>,
    /// Language; by default from the ending of FILE, else Python
    #[arg(short, long)]
    pub language: Option<String>,
    /// What the program reads on stdin; by default, what belljar does
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,
    /// Copy a file into the workspace
    #[arg(long = "file", value_name = "[DEST=]SRC")]
    pub files: Vec<String>,
    /// Set an environment variable of the program
    #[arg(long = "env", value_name = "K=V", allow_hyphen_values = true)]
    pub env: Vec<String>,
    #[command(flatten)]
    pub limits: LimitFlags,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// What isolates
    #[arg(long, value_name = "BACKEND", default_value = "native")]
    pub backend: String,
    /// The image to run in
    #[arg(long, value_name = "REF")]
    pub image: Option<String>,
    /// With the backend docker: when to fetch the image (never, missing, always)
    #[arg(long, value_name = "WHEN", default_value = "missing")]
    pub pull: String,
    /// With the backend docker: what runs the container, like runsc
    #[arg(long, value_name = "NAME")]
    pub container_runtime: Option<String>,
    /// With the backend docker: what a container has with --network (loopback, bridge)
    #[arg(long, value_name = "KIND", default_value = "loopback")]
    pub container_network: String,
    #[command(flatten)]
    pub inside: InsideArgs,
    #[command(flatten)]
    pub weak: WeakenArgs,
    /// Copy the files that the program wrote to its workspace into DIR
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Print one JSON object with the result instead of the program's output
    #[arg(long)]
    pub json: bool,
    /// Arguments of the program
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<String>,
}

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

#[derive(Args)]
pub struct ReplArgs {
    /// A sandbox that the daemon keeps, instead of a new one; everything else about it is as it was made
    #[arg(long, value_name = "ID", conflicts_with_all = repl_conflicts())]
    pub sandbox: Option<String>,
    /// Language [default: python]
    #[arg(short, long)]
    pub language: Option<String>,
    /// Run on the root of this image instead of the host's programs
    #[arg(long, value_name = "REF")]
    pub image: Option<String>,
    /// Set an environment variable of the session
    #[arg(long = "env", value_name = "K=V", allow_hyphen_values = true)]
    pub env: Vec<String>,
    #[command(flatten)]
    pub limits: LimitFlags,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub inside: InsideArgs,
    #[command(flatten)]
    pub weak: WeakenArgs,
    /// Save pictures and tables that the code shows in DIR; by default in a temporary directory
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
}

/// What a sandbox that is there already cannot be given any more.
fn repl_conflicts() -> Vec<&'static str> {
    let mut all = vec![
        "language",
        "image",
        "env",
        "network",
        "headers",
        "intercept",
        "packages",
        "imports",
        "no_files",
        "writable",
        "volumes",
        "weaken",
    ];
    all.extend(LIMITS.iter().map(|row| row.json));
    all
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
            let given = matches
                .get_one::<String>(row.json)
                .cloned()
                .or_else(|| std::env::var(row.env).ok());
            if let Some(text) = given {
                *self.0.get_mut(row.kind) = Some(Amount::Text(text));
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
