//! `belljar image`: the images that are kept here.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use belljar::image::{Bounds, Digest, Image, Listed, Name, Platform, Progress, Registries, Store};
use belljar_spec::{Amount, Error, Unit};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::EXIT_ERROR;
use crate::args::ImageCommand;
use crate::serve::state_directory;
use crate::terminal;

pub fn open() -> Result<Store> {
    Ok(Store::open(&state_directory()?)?)
}

pub fn image(command: &ImageCommand) -> Result<u8> {
    let store = open()?;
    match command {
        ImageCommand::Pull {
            image,
            platform,
            insecure,
            max_size,
            json,
        } => {
            let store = store.with_bounds(bounds(max_size)?);
            let registries = Registries {
                insecure: insecure.clone(),
            };
            let name = image.parse()?;
            let listed = wait(pull(
                &store,
                &name,
                &wanted(platform.as_deref())?,
                &registries,
            ))?;
            if *json {
                return print(&listed);
            }
            terminal::say(format_args!("{}  {}", listed.name, listed.id.short()))?;
        }
        ImageCommand::Import {
            file,
            name,
            platform,
            max_size,
            json,
        } => {
            let store = store.with_bounds(bounds(max_size)?);
            let name = name.as_deref().map(str::parse::<Name>).transpose()?;
            let images = store.import(file, name.as_ref(), &wanted(platform.as_deref())?)?;
            if *json {
                return print(&images);
            }
            for image in images {
                terminal::say(format_args!("{}  {}", image.name, image.id.short()))?;
            }
        }
        ImageCommand::List(args) => {
            let images = store.list()?;
            if args.json {
                return print(&images);
            }
            list(&images)?;
        }
        ImageCommand::Rm { images, json } => {
            return remove(&store, images, *json);
        }
        ImageCommand::Prune(args) => {
            let done = store.collect(true)?;
            if args.json {
                return print(&done);
            }
            terminal::say(format_args!(
                "{} images, {} layers and {} downloads removed, {} freed",
                done.images,
                done.layers,
                done.downloads,
                size(done.bytes)
            ))?;
        }
    }
    Ok(0)
}

/// All that can be removed are, whatever is wrong with the others.
fn remove(store: &Store, images: &[String], json: bool) -> Result<u8> {
    let mut all = Vec::new();
    for image in images {
        match store.remove(image) {
            Err(error) => terminal::note(&error),
            Ok(done) if json => all.push(done),
            Ok(done) => {
                let note = if done.in_use > 0 {
                    "; something still runs on it, its files go with the next that is removed"
                } else {
                    ""
                };
                terminal::say(format_args!(
                    "{image} removed, {} freed{note}",
                    size(done.bytes)
                ))?;
                all.push(done);
            }
        }
    }
    if json && !all.is_empty() {
        print(&all)?;
    }
    let complete = all.len() == images.len();
    Ok(if complete { 0 } else { EXIT_ERROR })
}

fn wait<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(work)?)
}

/// Fetches an image, and shows how far it has come if somebody looks.
async fn pull(
    store: &Store,
    name: &Name,
    wanted: &Platform,
    registries: &Registries,
) -> Result<Listed, Error> {
    let bars = Bars::new();
    let pulled = store
        .pull(name, wanted, registries, &|progress| bars.show(progress))
        .await;
    bars.clear();
    pulled
}

/// An image that is here, or is fetched because it is not.
pub async fn find(given: &str) -> Result<Image> {
    let store = open()?;
    match store.image(given) {
        Err(Error::NotFound { .. }) => {
            let name: Name = given.parse()?;
            let registry = name.registry();
            terminal::note(format_args!(
                "{name} is not here; fetching it from {registry}"
            ));
            let listed = pull(&store, &name, &Platform::of_host(), &Registries::default()).await?;
            Ok(store.image(&listed.name.to_string())?)
        }
        found => Ok(found?),
    }
}

fn bounds(size: &str) -> Result<Bounds, Error> {
    let amount = Amount::Text(size.to_owned()).value(Unit::BinaryBytes);
    let bytes = amount.filter(|bytes| *bytes > 0).ok_or_else(|| {
        Error::invalid_request("max-size", size, "give a size with a unit, like 500m or 4g")
    })?;
    Ok(Bounds {
        bytes,
        ..Bounds::default()
    })
}

/// A bar for each layer, on a terminal only.
struct Bars {
    all: MultiProgress,
    bars: Mutex<BTreeMap<Digest, ProgressBar>>,
}

impl Bars {
    fn new() -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            all: MultiProgress::with_draw_target(target),
            bars: Mutex::default(),
        }
    }

    fn show(&self, progress: Progress<'_>) {
        let mut bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        let (Progress::Layer { digest, .. }
        | Progress::Received { digest, .. }
        | Progress::Unpacking { digest }
        | Progress::Ready { digest }) = progress;
        if let Progress::Layer { bytes, .. } = progress {
            let bar = self.all.add(ProgressBar::new(bytes));
            let style = ProgressStyle::with_template(
                "{prefix}  {bar:30}  {bytes:>10} of {total_bytes:<10}  {bytes_per_sec:>12}  {msg}",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(digest.short());
            bars.insert(*digest, bar);
        }
        let Some(bar) = bars.get(digest) else { return };
        match progress {
            Progress::Layer { .. } => {}
            Progress::Received { bytes, .. } => bar.set_position(bytes),
            Progress::Unpacking { .. } => bar.set_message("unpacking"),
            Progress::Ready { .. } => {
                bar.set_position(bar.length().unwrap_or(0));
                bar.finish_with_message("ready");
            }
        }
    }

    fn clear(&self) {
        let _ = self.all.clear();
    }
}

fn wanted(platform: Option<&str>) -> Result<Platform> {
    Ok(platform.map_or_else(|| Ok(Platform::of_host()), str::parse)?)
}

fn print(value: &impl Serialize) -> Result<u8> {
    terminal::say(serde_json::to_string_pretty(value)?)?;
    Ok(0)
}

fn list(images: &[Listed]) -> io::Result<()> {
    let row = |image: &Listed| {
        vec![
            image.name.to_string(),
            image.id.short(),
            image.platform.clone(),
            size(image.bytes),
            image.added_at.clone(),
        ]
    };
    let rows: Vec<_> = images.iter().map(row).collect();
    let text = terminal::table(&["IMAGE", "ID", "PLATFORM", "SIZE", "ADDED"], &rows);
    terminal::heard(terminal::Output::new(io::stdout()).write(text.as_bytes()))
}

/// For people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}
