//! `belljar runtimes`.

use std::sync::Arc;

use anyhow::Result;
use belljar::runtime::{Listed, Registry};
use belljar::{Engine, scope};

use crate::args::RuntimesArgs;
use crate::terminal::say;

pub fn list(args: &RuntimesArgs) -> Result<u8> {
    let listed = match &args.image {
        None => Registry::load()?.list(),
        Some(image) => in_image(image)?,
    };
    if args.json {
        say(serde_json::to_string_pretty(&listed)?)?;
        return Ok(0);
    }
    let version =
        |row: &belljar::runtime::Listed| row.version.clone().unwrap_or_else(|| "missing".into());
    let width = |cells: Vec<usize>| cells.into_iter().max().unwrap_or(0);
    let names = width(listed.iter().map(|row| row.name.len()).collect());
    let versions = width(listed.iter().map(|row| version(row).len()).collect());
    for row in &listed {
        let detail = match (&row.program, &row.install) {
            (Some(program), _) => program.display().to_string(),
            (None, Some(install)) => install.clone(),
            (None, None) => row.missing.clone().unwrap_or_default(),
        };
        say(format_args!(
            "{:names$}  {:versions$}  {detail}",
            row.name,
            version(row)
        ))?;
    }
    Ok(0)
}

/// Each is asked in a sandbox of its own.
fn in_image(image: &str) -> Result<Vec<Listed>> {
    scope::enter_if_needed();
    let starting = Engine::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = starting.finish()?;
        let image = Arc::new(crate::image::find(image).await?);
        let listed = Registry::load()?.list_in(&engine, &image).await;
        engine.shut_down().await;
        Ok(listed)
    })
}
