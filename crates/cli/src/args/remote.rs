//! What is typed to talk to the daemon.

use clap::Args;

use super::{InsideArgs, LimitFlags};

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
    /// As `new` printed them and `ps` lists them; or names that no others have
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
    /// The sandbox, or its name if no other has it
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
