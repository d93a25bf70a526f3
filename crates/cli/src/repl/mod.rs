//! `belljar repl`: a live session in the terminal.

mod here;
mod kept;
mod screen;

use anyhow::Result;
use belljar::OutputDirectory;

use crate::args::ReplArgs;
use here::Here;
use kept::InDaemon;
use screen::Terminal;

const HELP: &str = "\
:reset   begin anew: a fresh interpreter, the first files
:files   what is in the workspace
:help    this
:quit    leave (or exit, or Ctrl-D)
Ctrl-C interrupts what is running. A block ends with an empty line.";

/// Where the code runs.
enum Live {
    Here(Box<Here>),
    Daemon(Box<InDaemon>),
}

pub fn repl(args: &ReplArgs) -> Result<u8> {
    let (runtime, live) = match &args.sandbox {
        None => {
            let (runtime, here) = Here::open(args)?;
            (runtime, Live::Here(Box::new(here)))
        }
        Some(id) => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let kept = runtime.block_on(InDaemon::find(id))?;
            (runtime, Live::Daemon(Box::new(kept)))
        }
    };
    // After the keeper, which would hold it too, and before there is code that could lead its name astray.
    let displays = match &args.output_dir {
        Some(path) => {
            let opened = OutputDirectory::open(path, &args.inside.volumes()?)?;
            Some((path.clone(), opened))
        }
        None => None,
    };
    let (language, version) = match &live {
        Live::Here(here) => here.language(),
        Live::Daemon(kept) => kept.language(),
    };
    let mut terminal = Terminal::new(language, displays)?;
    Terminal::greet(version, live.keeps_state());
    while let Some(input) = terminal.read()? {
        match input.trim() {
            "" => {}
            ":quit" | ":q" | "exit" | "exit()" | "quit" | "quit()" | ".exit" => break,
            ":help" => crate::terminal::say(HELP)?,
            ":reset" => runtime.block_on(live.reset())?,
            ":files" => runtime.block_on(live.list_files())?,
            _ => runtime.block_on(live.run(&input, &mut terminal))?,
        }
    }
    terminal.remember();
    runtime.block_on(async {
        if let Live::Here(here) = live {
            here.close().await;
        }
    });
    Ok(0)
}

impl Live {
    fn keeps_state(&self) -> bool {
        match self {
            Self::Here(here) => here.keeps_state(),
            Self::Daemon(kept) => kept.keeps_state(),
        }
    }

    /// Runs one input. Ctrl-C interrupts it, and this program goes on.
    async fn run(&self, code: &str, terminal: &mut Terminal) -> Result<()> {
        match self {
            Self::Here(here) => here.run(code, terminal).await,
            Self::Daemon(kept) => kept.run(code, terminal).await,
        }
    }

    async fn reset(&self) -> Result<()> {
        match self {
            Self::Here(here) => here.reset().await,
            Self::Daemon(kept) => kept.reset().await,
        }
    }

    async fn list_files(&self) -> Result<()> {
        match self {
            Self::Here(here) => here.list_files().await,
            Self::Daemon(kept) => kept.list_files().await,
        }
    }
}
