//! How pools come to other warm interpreters, and that none of those that went is left.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use belljar::runtime::Cache;
use belljar::{Engine, Pool, PoolConfig};
use belljar_spec::{Mode, SandboxRequest};

use super::harness::{fills_to, pool, run};
use super::pool::{children, children_of_keeper, lone_zygote, own_memory, zygotes};
use super::tests;

tests!["pool_renewal":
    one_that_hangs_while_it_comes_up_is_ended,
    while_another_comes_up_the_shelf_is_filled,
    a_scout_takes_its_copy_along,
    what_does_not_come_up_as_laid_out_comes_up_plainly,
    what_a_scout_has_found_is_remembered,
];

fn signal(pid: &str, signal: &str) {
    let done = Command::new("kill").args([signal, pid]).status();
    assert!(done.expect("kill").success());
}

/// Looks often enough to see what lasts for some milliseconds.
async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_mins(3);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: {:?}", zygotes());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The first warm interpreter that is none of these.
async fn zygote_besides(known: &[String]) -> String {
    let other = || zygotes().into_iter().find(|pid| !known.contains(pid));
    until("no other interpreter", other).await
}

async fn one_that_hangs_while_it_comes_up_is_ended(engine: Engine) {
    let starting = {
        let engine = engine.clone();
        tokio::spawn(async move { pool(&engine, PoolConfig::default()).await })
    };
    let zygote = zygote_besides(&[]).await;
    signal(&zygote, "-STOP");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!starting.is_finished() && zygotes() == [zygote]);
    // As when its time is up: nobody waits for it any more.
    starting.abort();
    until("it is still there", || zygotes().is_empty().then_some(())).await;
}

async fn while_another_comes_up_the_shelf_is_filled(engine: Engine) {
    let config = PoolConfig {
        ready: 1,
        // Before a scout is sent.
        rotate_after: Duration::from_secs(1),
        ..PoolConfig::default()
    };
    let pool = pool(&engine, config).await;
    let first = lone_zygote().await;
    let second = zygote_besides(&first).await;
    signal(&second, "-STOP");
    assert_eq!(pool.interpreters(), 2);
    let began = Instant::now();
    for _ in 0..3 {
        fills_to(&pool, 1).await;
        let session = pool.take(SandboxRequest::default()).await.expect("session");
        // A copy, as nobody inside is its parent.
        let parent = run(&session, "import os; os.getppid()").await;
        assert_eq!(parent.value, Some(0.into()), "{:?}", parent.error);
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(zygotes().contains(&second), "{:?}", zygotes());
    drop(pool);
    until("they are still there", || {
        zygotes().is_empty().then_some(())
    })
    .await;
}

/// One of which no sessions wait, with its interpreter, when it is worth sending a scout. None where there are no scouts.
async fn in_use(engine: &Engine, cache: Cache) -> Option<(Pool, Vec<String>)> {
    let none_wait = PoolConfig {
        ready: 0,
        cache,
        ..PoolConfig::default()
    };
    let pool = pool(engine, none_wait).await;
    let first = lone_zygote().await;
    let mut mode = Mode::Root;
    for _ in 0..16 {
        let session = pool.take(SandboxRequest::default()).await.expect("session");
        mode = run(&session, "1").await.report.mode;
    }
    (mode == Mode::Root && cfg!(target_arch = "x86_64")).then_some((pool, first))
}

async fn a_scout_takes_its_copy_along(engine: Engine) {
    let Some((_pool, first)) = in_use(&engine, Cache::none()).await else {
        return;
    };
    let scout = zygote_besides(&first).await;
    let copy = until("it makes no copy", || children(&scout).pop()).await;
    signal(&scout, "-KILL");
    until("something of it is left", || {
        let left = children_of_keeper();
        let alone = !left.contains(&scout) && !left.contains(&copy);
        (alone && !Path::new("/proc").join(&copy).exists()).then_some(())
    })
    .await;
}

async fn what_does_not_come_up_as_laid_out_comes_up_plainly(engine: Engine) {
    let Some((pool, first)) = in_use(&engine, Cache::none()).await else {
        return;
    };
    let scout = zygote_besides(&first).await;
    let known = [first[0].clone(), scout];
    let laid = zygote_besides(&known).await;
    until("the first one serves", || {
        (zygotes() == [&*laid]).then_some(())
    })
    .await;
    signal(&laid, "-KILL");
    let known = [&known[..], &[laid]].concat();
    let next = zygote_besides(&known).await;
    signal(&next, "-KILL");
    let began = Instant::now();
    let plain = zygote_besides(&[&known[..], &[next]].concat()).await;
    until("no interpreter is warm", || {
        pool.trouble().is_none().then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(15));
    assert!(zygotes().contains(&plain));
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    let parent = run(&session, "import os; os.getppid()").await;
    assert_eq!(parent.value, Some(0.into()), "{:?}", parent.error);
}

async fn what_a_scout_has_found_is_remembered(engine: Engine) {
    let home = tempfile::tempdir().expect("directory");
    let cache = Cache::at(home.path().join("cache"));
    let Some((pool, first)) = in_use(&engine, cache.clone()).await else {
        return;
    };
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    let before = own_memory(&session).await;
    until("the first one serves", || {
        (zygotes() != first).then_some(())
    })
    .await;
    until("nothing is remembered", || {
        let listing = fs::read_dir(home.path().join("cache")).ok()?;
        let mut names = listing.flatten().map(|entry| entry.file_name());
        names.find(|name| name.as_encoded_bytes().starts_with(b"layout-"))
    })
    .await;
    drop((session, pool));
    until("they are still there", || {
        zygotes().is_empty().then_some(())
    })
    .await;
    let (pool, second) = in_use(&engine, cache).await.expect("a pool");
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    let after = own_memory(&session).await;
    assert!(
        after * 10 < before * 8,
        "{before} KiB before, {after} after"
    );
    // Nobody is sent.
    assert_eq!(zygotes(), second);
}
