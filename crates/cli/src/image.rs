//! `belljar image`: the images that are kept here.

use std::io;

use anyhow::Result;
use belljar::image::{Image, Listed, Name, Platform, Store};
use belljar_spec::Error;
use serde::Serialize;

use crate::args::ImageCommand;
use crate::serve::state_directory;
use crate::terminal;

pub fn open() -> Result<Store> {
    Ok(Store::open(&state_directory()?)?)
}

pub fn image(command: &ImageCommand) -> Result<u8> {
    let store = open()?;
    match command {
        ImageCommand::Import {
            file,
            name,
            platform,
            json,
        } => {
            let name = name.as_deref().map(str::parse::<Name>).transpose()?;
            let images = store.import(file, name.as_ref(), &wanted(platform.as_deref())?)?;
            if *json {
                return print(&images);
            }
            for image in images {
                println!("{}  {}", image.name, image.id.short());
            }
        }
        ImageCommand::List(args) => {
            let images = store.list()?;
            if args.json {
                return print(&images);
            }
            list(&images);
        }
        ImageCommand::Rm { images, json } => {
            let mut all = Vec::new();
            for image in images {
                all.push(store.remove(image)?);
            }
            if *json {
                return print(&all);
            }
            for (image, done) in images.iter().zip(all) {
                let note = if done.in_use > 0 {
                    "; something still runs on it, its files go with the next that is removed"
                } else {
                    ""
                };
                println!("{image} removed, {} freed{note}", size(done.bytes));
            }
        }
        ImageCommand::Prune(args) => {
            let done = store.collect(true)?;
            if args.json {
                return print(&done);
            }
            println!(
                "{} images, {} layers and {} downloads removed, {} freed",
                done.images,
                done.layers,
                done.downloads,
                size(done.bytes)
            );
        }
    }
    Ok(0)
}

/// An image that is here.
#[expect(clippy::unused_async, reason = "one that is not here will be fetched")]
pub async fn find(given: &str) -> Result<Image> {
    let store = open()?;
    match store.image(given) {
        Err(Error::NotFound { .. }) => Err(Error::invalid_image(
            given,
            "it is not here; get it with `belljar image import`, and see `belljar image list`",
        )
        .into()),
        found => Ok(found?),
    }
}

fn wanted(platform: Option<&str>) -> Result<Platform> {
    Ok(platform.map_or_else(|| Ok(Platform::of_host()), str::parse)?)
}

fn print(value: &impl Serialize) -> Result<u8> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(0)
}

fn list(images: &[Listed]) {
    let rows = images.iter().map(|image| {
        [
            image.name.to_string(),
            image.id.short(),
            image.platform.clone(),
            size(image.bytes),
            image.added_at.clone(),
        ]
    });
    let heading = ["IMAGE", "ID", "PLATFORM", "SIZE", "ADDED"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..4).map(width).collect();
    let mut out = terminal::Output::new(io::stdout());
    for row in &rows {
        let mut line = String::new();
        for (text, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{text:width$}  "));
        }
        line.push_str(&row[4]);
        line.push('\n');
        let _ = out.write(line.as_bytes());
    }
}

/// For people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}
