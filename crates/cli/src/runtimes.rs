//! `belljar runtimes`.

use anyhow::Result;
use belljar::runtime::Registry;

use crate::args::ListArgs;

pub fn list(args: &ListArgs) -> Result<u8> {
    let listed = Registry::load().list();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
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
        println!("{:names$}  {:versions$}  {detail}", row.name, version(row));
    }
    Ok(0)
}
