//! The command `belljar`.
#![forbid(unsafe_code)]

mod args;
mod client;
mod complete_input;
mod complete_shell;
mod copy;
mod doctor;
mod exec;
mod image;
mod mistake;
mod printer;
mod remote;
mod repl;
mod run;
mod runtimes;
mod seat;
mod serve;
mod terminal;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use run::EarlyKeeper;

/// The caller, or Belljar itself, did something wrong.
const EXIT_ERROR: u8 = 125;

fn main() -> ExitCode {
    belljar_jail::heed_children();
    let keeper = run::start_early();
    let cli = match Cli::of_run().map_or_else(Cli::try_parse, Ok) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            terminal::note(mistake::told(&error));
            return ExitCode::from(EXIT_ERROR);
        }
        Err(asked) => {
            return match terminal::heard(asked.print()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(EXIT_ERROR),
            };
        }
    };
    let is_run = matches!(cli.command, Command::Run(_));
    let done = match cli.command {
        Command::Run(args) => run::run(&args, keeper),
        command => carry_out(command, keeper),
    };
    match done {
        Ok(code) if is_run => {
            // Whoever waits for us waits for all that we still take apart.
            let _ = io::stdout().flush();
            belljar_jail::leave(code)
        }
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            terminal::note(format_args!("{error:#}"));
            ExitCode::from(EXIT_ERROR)
        }
    }
}

/// Everything but a run. Apart, because what these commands keep on the stack is more than a run needs, and each page of it costs
/// one, and its keeper, a fault.
#[inline(never)]
fn carry_out(command: Command, keeper: Option<EarlyKeeper>) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(&args, keeper),
        Command::Repl(args) => repl::repl(&args),
        Command::Doctor(args) => doctor::examine(&args),
        Command::Runtimes(args) => runtimes::list(&args),
        Command::Image(command) => image::image(&command),
        Command::Serve(args) => serve::serve(&args, keeper),
        Command::Key => serve::new_key(),
        Command::Ps(args) => remote::wait(remote::ps(&args)),
        Command::New(args) => remote::wait(remote::new(&args)),
        Command::Rm(args) => remote::wait(remote::rm(&args)),
        Command::Exec(args) => remote::wait(exec::exec(&args)),
        Command::Cp(args) => remote::wait(copy::cp(&args)),
        Command::History(args) => remote::wait(remote::history(&args)),
        Command::Show(args) => remote::wait(remote::show(&args)),
    }
}
