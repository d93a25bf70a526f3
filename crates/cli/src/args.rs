//! What can be typed. Texts are kept as given here; `spec` decides what they mean.

mod remote;
mod sandbox;

use std::path::PathBuf;

use belljar_spec::LIMITS;
use clap::{Args, FromArgMatches, Parser, Subcommand};

pub use remote::{CopyArgs, ExecArgs, HistoryArgs, NewArgs, PsArgs, RemoveArgs, ShowArgs};
pub use sandbox::{InsideArgs, LimitFlags, NetworkArgs, WeakenArgs};

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
    /// The program; - or nothing to read it from stdin
    #[arg(value_name = "FILE")]
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
    /// What the program reads on stdin; by default or with -, what belljar does
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
    /// With the backend docker: what a container has with --network (loopback, bridge) [default: loopback]
    #[arg(long, value_name = "KIND")]
    pub container_network: Option<String>,
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
