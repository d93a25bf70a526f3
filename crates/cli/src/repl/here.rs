//! A session of this process.

use std::io;
use std::sync::Arc;

use anyhow::Result;
use belljar::runtime::{LanguageHint, Registry, discover};
use belljar::{Engine, PackageSettings, Session, Sink, Stdin, Stop, Stream, scope};
use belljar_spec::{CodeRequest, CommandRequest, RunEvent, SandboxRequest, Weakening};
use tokio::runtime::Runtime;

use super::screen::{Terminal, keyboard, text_of};
use crate::args::ReplArgs;
use crate::printer::Printer;
use crate::run::{environment, network, outside};
use crate::serve::state_directory;
use crate::terminal::Output;

pub struct Here {
    engine: Engine,
    session: Session,
}

impl Here {
    pub fn open(args: &ReplArgs) -> Result<(Runtime, Self)> {
        let weaken = args.weak.weakenings()?;
        if !weaken.contains(&Weakening::Cgroups) {
            scope::enter_if_needed();
        }
        // Before there are threads.
        let starting = Engine::start()?;
        let request = SandboxRequest {
            language: args.language.clone(),
            env: environment(&args.env)?,
            limits: args.limits.0.clone(),
            read_only: !args.inside.writable,
            volumes: args.inside.volumes()?,
            image: args.image.clone(),
            imports: args.inside.imports.clone(),
            filesystem: args.inside.filesystem(),
            network: network(&args.network)?,
            packages: args.network.packages.clone(),
            weaken,
            ..SandboxRequest::default()
        };
        request.check()?;
        let registry = Registry::load()?;
        let hint = LanguageHint {
            language: args.language.as_deref(),
            file_name: None,
        };
        let manifest = registry.find(&hint)?;
        let of_host = match &args.image {
            None => Some(discover(manifest)?),
            Some(_) => None,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let here = runtime.block_on(async {
            let engine = starting.finish()?;
            engine.set_outside(&outside()?);
            if let Ok(state) = state_directory() {
                engine.set_packages(PackageSettings::at(state.join("packages")));
            }
            let toolchain = match (of_host, &args.image) {
                (Some(found), _) => found,
                (None, image) => {
                    let image = crate::image::find(image.as_deref().unwrap_or_default()).await?;
                    let (image, weaken) = (Arc::new(image), &request.weaken);
                    engine.toolchain_in(&image, manifest, weaken).await?
                }
            };
            let session = Session::open(&engine, Arc::new(toolchain), request).await?;
            anyhow::Ok(Self { engine, session })
        })?;
        Ok((runtime, here))
    }

    /// Its name, and what it calls itself.
    pub fn language(&self) -> (&str, &str) {
        let toolchain = self.session.toolchain();
        (&toolchain.name, &toolchain.version)
    }

    pub fn keeps_state(&self) -> bool {
        self.session.toolchain().kernel.is_some()
    }

    pub async fn run(&self, code: &str, terminal: &mut Terminal) -> Result<()> {
        let session = &self.session;
        let (mut printer, mut displays) = (Printer::default(), Vec::new());
        let mut print = |event| match event {
            RunEvent::Stdout(bytes) => printer.output(Stream::Stdout, &bytes),
            RunEvent::Stderr(bytes) => printer.output(Stream::Stderr, &bytes),
            // Text as it comes; the rest is saved when the code has ended.
            RunEvent::Display(display) => match text_of(&display) {
                Some(text) => printer.output(Stream::Stdout, &text),
                None => displays.push(display),
            },
            RunEvent::ToolCall(_) | RunEvent::Result(_) => {}
        };
        let request = CodeRequest::new(code);
        let kernel = session.toolchain().kernel.as_ref();
        let can_read = kernel.is_some_and(|kernel| kernel.descriptors);
        let result = {
            let stdin = match terminal.is_read_by(code).then(keyboard) {
                Some(Ok(typed)) if can_read => Stdin::Stream(Box::new(typed)),
                _ => Stdin::Empty,
            };
            let stop = Stop::default();
            let mut run = std::pin::pin!(session.run_with(&request, stdin, &stop, &mut print));
            loop {
                tokio::select! {
                    result = &mut run => break result,
                    pressed = tokio::signal::ctrl_c() => {
                        pressed?;
                        stop.stop();
                    }
                }
            }
        };
        let all_out = printer.finish();
        let result = result?;
        for display in displays {
            terminal.show(&display);
        }
        terminal.tell(&result)?;
        all_out
    }

    pub async fn reset(&self) -> Result<()> {
        Ok(self.session.reset().await?)
    }

    pub async fn list_files(&self) -> Result<()> {
        let request = CommandRequest {
            shell: Some("ls -la".into()),
            ..CommandRequest::default()
        };
        let mut silent = |_: RunEvent| {};
        let result = self.session.command(&request, &mut silent).await?;
        Ok(Output::new(io::stdout()).write(result.stdout.as_bytes())?)
    }

    pub async fn close(self) {
        drop(self.session);
        self.engine.shut_down().await;
    }
}
