//! What a session's sandbox is made of: its plan, its files, its interpreter.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_jail::{Command, Plan};
use belljar_spec::{Error, Filesystem, Limits, Network, SandboxRequest};

use crate::command::Setting;
use crate::covered;
use crate::egress::{self, Log};
use crate::engine::Engine;
use crate::files::{InputFile, Source};
use crate::kernel::{self, Kernel, Source as KernelSource};
use crate::layout;
use crate::runtime::{Step, Toolchain};
use crate::sandbox::Sandbox;

/// What a session's sandbox is made of.
pub(super) struct Furniture<'a> {
    pub engine: &'a Engine,
    pub toolchain: &'a Toolchain,
    pub request: &'a SandboxRequest,
    /// As it is now, which may be other than was asked for at first.
    pub network: Network,
    pub plan: &'a Plan,
    pub limits: &'a Limits,
    pub source: KernelSource,
    /// Where what it tries to reach is told.
    pub log: &'a Log,
}

impl Furniture<'_> {
    /// A sandbox with the request's files in it, and the interpreter where the language keeps one.
    pub async fn make(&self) -> Result<(Sandbox, Option<Kernel>), Error> {
        let container = self.toolchain.container.as_ref();
        let plan = Plan {
            ports: egress::ports(&self.network),
            ..self.plan.clone()
        };
        let (sandbox, kernel) = match &self.toolchain.kernel {
            None => (Sandbox::open(self.engine, container, plan).await?, None),
            Some(kernel) => {
                let command = self.command(&kernel.step, "", self.limits, &[]);
                let form = kernel.form;
                let made =
                    Kernel::start_in_new(self.engine, container, plan, command, form, self.source)
                        .await?;
                (made.0, Some(made.1))
            }
        };
        sandbox.serve(&self.network, self.log)?;
        furnish(&sandbox, self.request).await?;
        Ok((sandbox, kernel))
    }

    /// A fresh interpreter in a sandbox that is there already.
    pub fn kernel(&self, sandbox: &Sandbox) -> Result<Option<Kernel>, Error> {
        let Some(kernel) = &self.toolchain.kernel else {
            return Ok(None);
        };
        let command = self.command(&kernel.step, "", self.limits, &[]);
        Kernel::start(sandbox, command, kernel.form, self.source).map(Some)
    }

    /// For an interpreter that was started before it was known whose it would be.
    pub fn kernel_environment(&self, sandbox: &Sandbox) -> BTreeMap<String, String> {
        let kernel = self.toolchain.kernel.as_ref();
        let command = kernel.map(|kernel| self.command(&kernel.step, "", self.limits, &[]));
        let own = command.map_or_else(Vec::new, |command| command.env);
        sandbox.environment(own).into_iter().collect()
    }

    /// About packages.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut all = self.engine.package_variables(&self.network);
        all.extend(self.toolchain.variables.clone());
        all
    }

    pub fn command(&self, step: &Step, main: &str, limits: &Limits, args: &[String]) -> Command {
        let workdir = self.plan.workdir.to_string_lossy();
        let setting = Setting {
            toolchain: self.toolchain,
            workdir: &workdir,
            main: &format!("{workdir}/{main}"),
            variables: self.variables(),
            network: &self.network,
            env: &self.request.env,
        };
        setting.command(step, limits, args)
    }
}

/// The toolchain with the packages that are asked for, unless it has them.
pub(crate) async fn furnished(
    engine: &Engine,
    toolchain: Arc<Toolchain>,
    request: &SandboxRequest,
) -> Result<Arc<Toolchain>, Error> {
    if request.packages.is_empty() || !toolchain.layers.is_empty() {
        return Ok(toolchain);
    }
    let with = Box::pin(engine.with_packages(&toolchain, &request.packages)).await?;
    Ok(Arc::new(with))
}

/// Puts the request's files into it.
pub(super) async fn furnish(sandbox: &Sandbox, request: &SandboxRequest) -> Result<(), Error> {
    for (path, content) in &request.files {
        let file = InputFile {
            destination: path.clone(),
            content: Source::Bytes(content.as_bytes().to_vec()),
        };
        sandbox.put(file).await?;
    }
    Ok(())
}

pub(crate) fn plan(
    engine: &Engine,
    toolchain: &Toolchain,
    request: &SandboxRequest,
    limits: Limits,
) -> Result<Plan, Error> {
    let workdir = PathBuf::from(toolchain.workdir(request.workdir.as_deref()));
    let files = request.files.keys().map(String::as_str);
    covered::check_files(&request.volumes, &workdir, files)?;
    // Where no interpreter is kept, each piece of code becomes this file.
    if toolchain.kernel.is_none() {
        covered::check_main(&request.volumes, &workdir, &toolchain.main)?;
    }
    let mut entries = layout::furnished(
        engine,
        toolchain,
        &workdir,
        &request.volumes,
        &request.weaken,
        &request.network,
    )?;
    if let Some(kernel) = &toolchain.kernel
        && toolchain.container.is_none()
    {
        entries.extend(kernel::entries(toolchain, kernel));
    }
    Ok(Plan {
        entries,
        files: Vec::new(),
        workdir,
        limits,
        writable: !request.read_only,
        kept: true,
        network: !request.network.is_none(),
        ports: egress::ports(&request.network),
        closed: match request.filesystem {
            Filesystem::Workspace => None,
            Filesystem::None => layout::closed(toolchain),
        },
        weakened: request.weaken.iter().copied().collect(),
        image: toolchain.root(),
    })
}
