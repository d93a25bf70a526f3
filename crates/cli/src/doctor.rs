//! `belljar doctor`.

use std::io::{self, IsTerminal};

use anyhow::Result;
use belljar::doctor::{Check, Examination};
use belljar::{Engine, scope};
use belljar_spec::Weakening;

use crate::args::ListArgs;
use crate::terminal::say;

pub fn examine(args: &ListArgs) -> Result<u8> {
    // As `run` would be: in a scope of its own where that is what it takes.
    scope::enter_if_needed();
    let mut examination = Examination::begin();
    if let Ok(state) = crate::serve::state_directory() {
        examination.look_at_images(&state);
    }
    let starting = Engine::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = starting.finish()?;
        examination.open_sandbox(&engine).await;
        examination.ask_docker(&engine.docker_settings()).await;
        engine.shut_down().await;
        anyhow::Ok(())
    })?;
    examination.add_way_around(Weakening::instead);
    if args.json {
        say(serde_json::to_string_pretty(&examination)?)?;
    } else {
        print(&examination)?;
    }
    Ok(u8::from(!examination.ok))
}

fn print(examination: &Examination) -> io::Result<()> {
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let width = examination
        .checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    say(format_args!(
        "Linux {}, {} mode\n",
        examination.kernel, examination.mode
    ))?;
    for check in &examination.checks {
        say(format_args!(
            "{} {:width$}  {}",
            mark(check, colour),
            check.name,
            check.found
        ))?;
        say(format_args!("     {:width$}  {}", "", check.why))?;
        if let Some(fix) = &check.fix {
            say(format_args!("     {:width$}  to do: {fix}", ""))?;
        }
    }
    let verdict = if examination.ok {
        "`belljar run` works here."
    } else {
        "`belljar run` would refuse here."
    };
    say(format_args!("\n{verdict}"))
}

fn mark(check: &Check, colour: bool) -> String {
    let (word, code) = match (check.ok, check.required) {
        (true, _) => ("ok  ", 32),
        (false, true) => ("FAIL", 31),
        (false, false) => ("note", 33),
    };
    if colour {
        format!("\x1b[{code}m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}
