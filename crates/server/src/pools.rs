//! Pristine sandboxes that wait: one shelf for each language and each template that asks for one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use belljar::runtime::Toolchain;
use belljar::{Engine, Pool, PoolConfig, Session};
use belljar_spec::{Error, SandboxRequest};
use serde_json::Value;

use crate::app::Shared;
use crate::config::{Config, Template};
use crate::languages::Venue;

#[derive(Default)]
pub struct Pools {
    /// By `language`, `template:name` or `image:id:language`. Those that are not warm yet are not here.
    warm: Mutex<HashMap<String, Arc<Pool>>>,
    /// Pools of images that no template names, the one used last at the end; those that come up have their place already.
    images: Mutex<Vec<String>>,
}

/// What an interpreter takes that sandboxes are copies of, or that is to be one of those, about.
const INTERPRETER: u64 = 16 << 20;
/// So many images that no template names have an interpreter that is warm.
const IMAGES: usize = 4;
/// After the first session from such an image, so many wait.
const READY_OF_IMAGE: usize = 1;
/// A pool that could not be filled is tried again after this time, then after twice as long,
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// up to this.
const LAST_RETRY: Duration = Duration::from_mins(10);
/// How often is looked whether one has lost its interpreter.
const LOOK: Duration = Duration::from_secs(2);

fn of_toolchain(toolchain: &Toolchain) -> String {
    match &toolchain.image {
        Some(image) => format!("image:{}:{}", image.id.hex(), toolchain.name),
        None => toolchain.name.clone(),
    }
}

fn of_template(name: &str) -> String {
    format!("template:{name}")
}

impl Pools {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pool>>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sandboxes are ready in each.
    pub fn ready(&self) -> Vec<(String, usize)> {
        let warm = self.lock();
        let pools = warm.iter();
        pools
            .map(|(name, pool)| (name.clone(), pool.ready()))
            .collect()
    }

    /// The memory of those that wait, and of the interpreters that they are copies of.
    pub fn memory(&self) -> u64 {
        let warm: Vec<_> = self.lock().values().cloned().collect();
        let interpreters: usize = warm.iter().map(|pool| pool.interpreters()).sum();
        let ready: u64 = warm.iter().map(|pool| pool.memory()).sum();
        ready + interpreters as u64 * INTERPRETER
    }

    fn pool(&self, toolchain: &Toolchain, request: &SandboxRequest) -> Option<Arc<Pool>> {
        let named = request.template.as_deref().map(of_template);
        let warm = self.lock();
        let of_template = named.and_then(|name| warm.get(&name));
        let pool = of_template.or_else(|| warm.get(&of_toolchain(toolchain)));
        // Another image's, or the other backend's, are of no use.
        pool.filter(|pool| pool.is_of(toolchain)).cloned()
    }

    /// What keeps the packages of this request, if sessions that have them wait: nobody need look for them then.
    pub fn furnished(
        &self,
        toolchain: &Toolchain,
        request: &SandboxRequest,
    ) -> Option<Arc<Toolchain>> {
        self.pool(toolchain, request)?.furnished(request)
    }

    /// A session as asked for: a waiting one if there is one that fits.
    pub async fn session(
        &self,
        engine: &Engine,
        toolchain: Arc<Toolchain>,
        request: SandboxRequest,
    ) -> Result<Session, Error> {
        match self.pool(&toolchain, &request) {
            Some(pool) => pool.take(request).await,
            None => Session::open(engine, toolchain, request).await,
        }
    }

    fn add(&self, name: String, pool: Pool) {
        let pool = Arc::new(pool);
        tokio::spawn(tell_of_trouble(name.clone(), Arc::downgrade(&pool)));
        self.lock().insert(name, pool);
    }

    pub fn drop_all(&self) {
        self.lock().clear();
    }

    /// Keeps an interpreter of the image warm from now on, in place of that of an image that was not used for longer.
    pub fn keep_warm(&self, app: &Shared, toolchain: &Arc<Toolchain>, request: &SandboxRequest) {
        let zygote = toolchain
            .kernel
            .as_ref()
            .and_then(|kernel| kernel.zygote.as_ref());
        if toolchain.image.is_none() || zygote.is_none() || request.template.is_some() {
            return;
        }
        let name = of_toolchain(toolchain);
        {
            let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
            let known = images.iter().position(|one| *one == name);
            if let Some(known) = known {
                images.remove(known);
            }
            images.push(name.clone());
            if images.len() > IMAGES {
                let unused = images.remove(0);
                self.lock().remove(&unused);
            }
            if known.is_some() {
                return;
            }
        }
        let request = SandboxRequest {
            language: request.language.clone(),
            image: request.image.clone(),
            limits: app.config.limits.default.clone(),
            ..SandboxRequest::default()
        };
        let (app, toolchain) = (Arc::clone(app), Arc::clone(toolchain));
        tokio::spawn(async move {
            let config = PoolConfig {
                ready: READY_OF_IMAGE,
                ..PoolConfig::default()
            };
            let pool = Pool::start(&app.engine, toolchain, request, config).await;
            let mut images = app
                .pools
                .images
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match pool {
                // Others may have taken its place meanwhile.
                Ok(_) if !images.contains(&name) => {}
                Ok(pool) => app.pools.add(name, pool),
                Err(error) => {
                    tracing::error!(pool = name, %error, "cannot be filled");
                    // The next session from the image tries again.
                    images.retain(|one| *one != name);
                }
            }
        });
    }
}

/// Whoever runs the daemon hears of it when interpreters start cold, and when they no longer do.
async fn tell_of_trouble(pool_name: String, pool: Weak<Pool>) {
    let mut told = None;
    while let Some(trouble) = pool.upgrade().map(|pool| pool.trouble()) {
        match &trouble {
            known if *known == told => {}
            Some(trouble) => {
                tracing::warn!(pool = pool_name, trouble, "interpreters start cold");
            }
            None => tracing::info!(pool = pool_name, "interpreters are warm again"),
        }
        told = trouble;
        tokio::time::sleep(LOOK).await;
    }
}

/// What a pool is of.
struct Kind {
    name: String,
    request: SandboxRequest,
    config: PoolConfig,
}

fn kinds(config: &Config) -> Result<Vec<Kind>, Error> {
    let mut kinds = Vec::new();
    let sized = |ready: usize, preload: &[String]| PoolConfig {
        ready,
        preload: preload.to_vec(),
        ..PoolConfig::default()
    };
    for (language, ready) in config.pool.iter().filter(|(_, ready)| **ready > 0) {
        kinds.push(Kind {
            name: language.clone(),
            request: SandboxRequest {
                language: Some(language.clone()),
                limits: config.limits.default.clone(),
                backend: Some(config.backend),
                ..SandboxRequest::default()
            },
            config: sized(*ready, &[]),
        });
    }
    for (name, template) in &config.templates {
        if template.pool == 0 {
            continue;
        }
        let mut request = sandbox_of(name, template)?;
        request.backend.get_or_insert(config.backend);
        kinds.push(Kind {
            name: of_template(name),
            request,
            config: sized(template.pool, &template.preload),
        });
    }
    Ok(kinds)
}

/// What the template says about a sandbox; the rest of it is about runs.
fn sandbox_of(name: &str, template: &Template) -> Result<SandboxRequest, Error> {
    serde_json::from_value(Value::Object(template.of_sandbox()))
        .map_err(|error| Error::internal(format!("template {name}"), error))
}

/// Fills the shelves one after the other. Until then, and where it cannot be done, sandboxes are made when they are asked for.
pub async fn warm_up(app: Shared) {
    let kinds = match kinds(&app.config) {
        Ok(kinds) => kinds,
        Err(error) => {
            tracing::error!(%error, "there will be no pools");
            return;
        }
    };
    // A registry that is slow holds up only what needs its images.
    let (of_images, of_host): (Vec<_>, Vec<_>) = kinds
        .into_iter()
        .partition(|kind| kind.request.image.is_some());
    fill_all(&app, of_host).await;
    for name in &app.config.images.ahead {
        let fetched = async { app.images.fetch(&name.parse()?).await };
        if let Err(error) = fetched.await {
            tracing::error!(image = name, %error, "cannot be fetched");
        }
    }
    fill_all(&app, of_images).await;
}

async fn fill_all(app: &Shared, kinds: Vec<Kind>) {
    for kind in kinds {
        // Nobody waits for an index that does not answer.
        if kind.request.packages.is_empty() {
            fill(app, kind).await;
        } else {
            let app = Arc::clone(app);
            tokio::spawn(async move { fill(&app, kind).await });
        }
    }
}

/// What cannot be filled now, because an index or a registry does not answer, is tried again later.
async fn fill(app: &Shared, kind: Kind) {
    if try_to_fill(app, &kind).await {
        return;
    }
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let mut pause = FIRST_RETRY;
        loop {
            tokio::time::sleep(pause).await;
            if try_to_fill(&app, &kind).await {
                return;
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    });
}

async fn try_to_fill(app: &Shared, kind: &Kind) -> bool {
    let Kind {
        name,
        request,
        config,
    } = kind;
    let started = async {
        let venue = Venue::from(request);
        let language = request.language.as_deref();
        let found = app.language(language, &venue).await?;
        Pool::start(
            &app.engine,
            found.toolchain,
            request.clone(),
            config.clone(),
        )
        .await
    };
    match started.await {
        Ok(pool) => {
            app.pools.add(name.clone(), pool);
            true
        }
        Err(error) => {
            tracing::error!(pool = name, %error, "cannot be filled");
            false
        }
    }
}
