//! Pools and the warm interpreters behind them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use belljar::runtime::Cache;
use belljar::{Engine, PoolConfig, Session};
use belljar_spec::{CodeRequest, CommandRequest, LimitsPatch, Mode, SandboxRequest, State, Status};

use super::harness::{pool, run, run_request, settles_at};
use super::tests;

tests!["pool":
    copies_are_confined_and_fresh,
    time_is_up_in_a_copy,
    a_copy_that_exits_is_replaced,
    sandboxes_that_end_while_they_are_made_confuse_nobody,
    nothing_is_copied_to_where_code_runs,
    a_warm_interpreter_that_ended_is_replaced,
    a_module_that_cannot_be_preloaded_is_named,
    a_warm_interpreter_that_does_not_answer_is_given_up,
    who_bears_sandboxes_has_nothing_else_and_is_replaced,
    the_last_of_many_is_a_copy_too,
    copies_need_not_find_what_they_share,
    what_copies_write_to_lies_together,
    no_two_have_one_network,
];

pub async fn taken(engine: &Engine) -> (belljar::Pool, Session) {
    let pool = pool(engine, PoolConfig::default()).await;
    assert_eq!(pool.trouble(), None);
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    (pool, session)
}

async fn copies_are_confined_and_fresh(engine: Engine) {
    let (pool, first) = taken(&engine).await;
    let second = pool.take(SandboxRequest::default()).await.expect("session");
    let result = run(&first, "x = 41; print('hi'); x + 1").await;
    assert_eq!(result.value, Some(42.into()), "{:?}", result.error);
    assert_eq!(result.stdout, "hi\n");
    let result = run(&second, "'x' in globals()").await;
    assert_eq!(result.value, Some(false.into()));
    let who = "import os; [os.getuid(), os.getgid(), os.getcwd(), sorted(map(int, os.listdir('/proc/self/fd')))[:4], os.getppid()]";
    let result = run(&first, who).await;
    let expected = serde_json::json!([1000, 1000, "/workspace", [0, 1, 2, 3], 0]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    let random =
        "import random, secrets, uuid; [random.random(), secrets.token_hex(), str(uuid.uuid4())]";
    let (a, b) = (run(&first, random).await, run(&second, random).await);
    assert_ne!(a.value, b.value);
    // An ordinary user's sandboxes are all that user, each in a namespace of its own.
    if a.report.mode == Mode::Root {
        assert_ne!(a.report.uid, b.report.uid);
    }
}

async fn a_module_that_cannot_be_preloaded_is_named(engine: Engine) {
    let config = PoolConfig {
        ready: 1,
        preload: vec!["json".into(), "no_such_module".into()],
        ..PoolConfig::default()
    };
    let pool = pool(&engine, config).await;
    let trouble = pool.trouble().expect("trouble");
    let told = "the module \"no_such_module\" cannot be imported (ModuleNotFoundError: No module named 'no_such_module')";
    assert!(trouble.ends_with(told), "{trouble}");
    // Code runs all the same.
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    assert_eq!(run(&session, "6 * 7").await.value, Some(42.into()));
}

async fn time_is_up_in_a_copy(engine: Engine) {
    let (_pool, session) = taken(&engine).await;
    let limits = |ms: u64| -> LimitsPatch {
        serde_json::from_value(serde_json::json!({ "timeout_ms": ms })).expect("limits")
    };
    run(&session, "x = 7").await;
    let endless = CodeRequest {
        limits: limits(1_000),
        ..CodeRequest::new("while True: pass")
    };
    let result = run_request(&session, &endless).await;
    assert_eq!(
        (result.status, result.state),
        (Status::TimedOut, State::Kept)
    );
    let stubborn = CodeRequest {
        limits: limits(3_000),
        ..CodeRequest::new(
            "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
             subprocess.Popen(['sleep', '1000'], start_new_session=True)\nwhile True: pass",
        )
    };
    let result = run_request(&session, &stubborn).await;
    assert_eq!(
        (result.status, result.state),
        (Status::TimedOut, State::Lost)
    );
    assert_eq!(run(&session, "6*7").await.value, Some(42.into()));
    settles_at(&session, 1).await;
}

async fn a_copy_that_exits_is_replaced(engine: Engine) {
    let (_pool, session) = taken(&engine).await;
    for code in [
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.fork(); os._exit(3)",
    ] {
        let result = run(&session, code).await;
        assert_eq!(
            (result.status, result.state),
            (Status::Failed, State::Lost),
            "{code}"
        );
        assert_eq!(run(&session, "2").await.value, Some(2.into()));
    }
}

/// Each is closed while the copy for it is on its way into it, or while neither is there yet. Were an answer of the interpreter lost,
/// each later copy would be taken for the sandbox before it.
async fn sandboxes_that_end_while_they_are_made_confuse_nobody(engine: Engine) {
    let (pool, session) = taken(&engine).await;
    let unusual = || -> SandboxRequest {
        let request = serde_json::json!({ "limits": { "processes": 77 } });
        serde_json::from_value(request).expect("request")
    };
    for round in 0..40 {
        let brief = pool.take(unusual()).await.expect("session");
        tokio::time::sleep(Duration::from_micros(round * 97)).await;
        drop(brief);
        let moment = Duration::from_micros(round * 97);
        let _ = tokio::time::timeout(moment, pool.take(unusual())).await;
    }
    assert_eq!(run(&session, "6*7").await.value, Some(42.into()));
    let next = pool.take(SandboxRequest::default()).await.expect("session");
    assert_eq!(run(&next, "6*7").await.value, Some(42.into()));
    assert_eq!(pool.trouble(), None);
}

/// Code could keep the copy from getting there, and the interpreter that all share stands still until then.
async fn nothing_is_copied_to_where_code_runs(engine: Engine) {
    let (_pool, session) = taken(&engine).await;
    let command = async |shell: &str| {
        let request = CommandRequest {
            shell: Some(shell.into()),
            ..CommandRequest::default()
        };
        let result = session.command(&request, &mut |_| {}).await;
        result.expect("result")
    };
    // A copy has no parent inside.
    let parent = "import os; os.getppid()";
    assert_eq!(run(&session, parent).await.value, Some(0.into()));
    // It takes everything along, itself too; that it has is known a moment later.
    let end_all = async || {
        command("kill -9 -1").await;
        settles_at(&session, 0).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    end_all().await;
    assert_eq!(run(&session, parent).await.value, Some(0.into()));
    end_all().await;
    command("sleep 1000 > /dev/null 2>&1 &").await;
    let result = run(&session, parent).await;
    assert_eq!(result.value, Some(1.into()), "{:?}", result.error);
    // With the interpreter everything else ends.
    run(&session, "os._exit(0)").await;
    assert_eq!(run(&session, parent).await.value, Some(0.into()));
}

/// What it was asked for last may come yet: that sandbox is not used any more, but another one.
async fn a_warm_interpreter_that_does_not_answer_is_given_up(engine: Engine) {
    let config = PoolConfig {
        ready: 0,
        ..PoolConfig::default()
    };
    let pool = pool(&engine, config).await;
    let zygote = lone_zygote().await;
    let stopped = Command::new("kill").arg("-STOP").args(&zygote).status();
    assert!(stopped.expect("kill").success());
    let began = Instant::now();
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    let result = run(&session, "import os; os.getppid()").await;
    assert_eq!(result.value, Some(1.into()), "{:?}", result.error);
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
    assert!(zygotes() != zygote);
    settles_at(&session, 1).await;
}

async fn a_warm_interpreter_that_ended_is_replaced(engine: Engine) {
    let pool = pool(
        &engine,
        PoolConfig {
            ready: 0,
            ..PoolConfig::default()
        },
    )
    .await;
    let zygote = lone_zygote().await;
    let killed = Command::new("kill").arg("-9").args(&zygote).status();
    assert!(killed.expect("kill").success());
    let until = Instant::now() + Duration::from_mins(1);
    while zygotes().is_empty() || zygotes() == zygote || pool.trouble().is_some() {
        assert!(Instant::now() < until, "{:?}", pool.trouble());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let session = pool.take(SandboxRequest::default()).await.expect("session");
    assert_eq!(run(&session, "6*7").await.value, Some(42.into()));
}

/// More than a user without privileges may have keyrings.
async fn the_last_of_many_is_a_copy_too(engine: Engine) {
    let config = PoolConfig {
        ready: 0,
        ..PoolConfig::default()
    };
    let pool = pool(&engine, config).await;
    let mut all = Vec::new();
    for _ in 0..210 {
        all.push(pool.take(SandboxRequest::default()).await.expect("session"));
    }
    // Nobody inside is a copy's parent; whatever started cold is a child of the sandbox's init.
    let last = all.last().expect("session");
    let parent = run(last, "import os; os.getppid()").await;
    assert_eq!(parent.value, Some(0.into()), "{:?}", parent.error);
}

/// A number that no other network namespace ever has, and how many sockets there are in it.
const NETWORK: &str = "import socket
text = open('/proc/self/net/sockstat').readline() if __import__('os').path.exists('/proc/self/net/sockstat') else ''
one = socket.socket(socket.AF_UNIX)
cookie = int.from_bytes(one.getsockopt(socket.SOL_SOCKET, 71, 8), 'little')
one.bind('\\0name')
[cookie, text.split()[-1:]]";

/// Code goes over with the fork. What the interpreter has written to does so in large pages, and is no part of its file any more.
/// Only root's zygotes see enough of themselves for that.
async fn copies_need_not_find_what_they_share(engine: Engine) {
    let (_pool, session) = taken(&engine).await;
    let code = "
code, data = [], []
for line in open('/proc/self/smaps'):
    if '-' in line.split(maxsplit=1)[0]:
        place, rights, *_, name = line.split(maxsplit=5)
        is_code, is_data = rights == 'r-xp' and '/libc.so' in name, rights == 'rw-p' and '/python3' in name
    elif is_code and line.startswith(('Size:', 'Rss:')):
        code.append(int(line.split()[1]))
    elif is_data and line.startswith('Size:'):
        data.append(int(line.split()[1]))
[code, data]";
    let result = run(&session, code).await;
    if result.report.mode != Mode::Root {
        return;
    }
    let found = result.value.unwrap_or_default();
    let numbers = |kind: usize| -> Vec<u64> {
        serde_json::from_value(found[kind].clone()).unwrap_or_default()
    };
    let [size, there] = numbers(0)[..] else {
        panic!("{found} {:?}", result.error)
    };
    assert_eq!(size, there, "{found}");
    let possible = Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    if cfg!(target_arch = "x86_64") && possible {
        assert!(numbers(1).iter().all(|size| *size < 64), "{found}");
    }
}

/// What a copy has of its own, in KiB, after it has run this.
pub async fn own_memory(session: &Session) -> u64 {
    let code = "
size = 0
for line in open('/proc/self/smaps_rollup'):
    if line.startswith('Private_Dirty:'):
        size = int(line.split()[1])
size";
    let size = run(session, code).await.value;
    size.and_then(|size| size.as_u64()).expect("a number")
}

/// Once a pool has been used a little, its interpreter is replaced by one whose objects are where a scout has found that they should be.
/// Only root's zygotes see enough of themselves for that.
async fn what_copies_write_to_lies_together(engine: Engine) {
    let none_wait = PoolConfig {
        ready: 0,
        cache: Cache::none(),
        ..PoolConfig::default()
    };
    let pool = pool(&engine, none_wait).await;
    let take = async || pool.take(SandboxRequest::default()).await.expect("session");
    let session = take().await;
    let mode = run(&session, "1").await.report.mode;
    if mode != Mode::Root || !cfg!(target_arch = "x86_64") {
        return;
    }
    let before = own_memory(&session).await;
    drop(session);
    let first = lone_zygote().await;
    let until = Instant::now() + Duration::from_mins(4);
    // The scout, and then both, are there for a while.
    while zygotes().contains(&first[0]) {
        assert!(Instant::now() < until, "no other interpreter");
        assert_eq!(run(&take().await, "6 * 7").await.value, Some(42.into()));
    }
    let session = take().await;
    let after = own_memory(&session).await;
    assert!(
        after * 10 < before * 8,
        "{before} KiB before, {after} after"
    );
    // They are objects like all others: grow, move, and end.
    let code = "
import gc, json, os, re, sys
for grown in sys.path, sys.meta_path, sys.path_hooks, gc.callbacks:
    grown.extend([None] * 10000)
    del grown[-10000:]
for grown in os.environ._data, sys.path_importer_cache, re._cache, json.__dict__, vars(os):
    kept = dict(grown)
    grown.update((f'key{number}', number) for number in range(10000))
    for number in range(10000):
        del grown[f'key{number}']
    assert dict(grown) == kept
for name in 'json', 'json.decoder', 'json.encoder', 'json.scanner', 're', 're._compiler', 'collections', 'functools', 'enum', 'os', 'stat':
    sys.modules.pop(name, None)
del json, os, re
gc.unfreeze()
gc.collect()
import json, os, re, collections
[json.loads(json.dumps({'a': [1.5, None]})), re.sub('b+', 'c', 'abbbd'), os.path.join('x', 'y'), collections.Counter('aab').most_common(1)]";
    let result = run(&session, code).await;
    let expected = serde_json::json!([{"a": [1.5, null]}, "acd", "x/y", [["a", 2]]]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    assert_eq!(run(&session, "7 * 8").await.value, Some(56.into()));
}

async fn no_two_have_one_network(engine: Engine) {
    let pool = &pool(
        &engine,
        PoolConfig {
            ready: 0,
            ..PoolConfig::default()
        },
    )
    .await;
    let mut all = Vec::new();
    let mut is_root = false;
    for _ in 0..4 {
        let session = || async {
            let session = pool.take(SandboxRequest::default()).await.expect("session");
            let result = run(&session, NETWORK).await;
            (session, result)
        };
        let made = futures_util::future::join_all((0..6).map(|_| session())).await;
        let mut now = std::collections::BTreeSet::new();
        for (_, result) in &made {
            is_root = result.report.mode == Mode::Root;
            let value = result.value.as_ref().expect("a value");
            // The name was free, and nobody was there.
            assert_eq!(result.error, None);
            assert!(value[1].as_array().is_some_and(Vec::is_empty) || value[1][0] == "0");
            assert!(now.insert(value[0].to_string()), "{value} twice");
        }
        all.extend(now);
        drop(made);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let count = all.len();
    let different: std::collections::BTreeSet<_> = all.into_iter().collect();
    // Root's may be used again when their sandboxes have ended, an ordinary user's never are.
    assert!(is_root || different.len() == count, "{different:?}");
}

/// Whether it lives, and is in our process namespace.
fn is_beside(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("NSpid:"));
    let is_alive = !status.contains("\nState:\tZ");
    is_alive && line.is_some_and(|line| line.split_whitespace().count() == 2)
}

/// Ours is the one child of the keeper that has not gone into another process namespace and is no interpreter.
fn nursery() -> Option<String> {
    children_of_keeper()
        .into_iter()
        .find(|pid| is_beside(pid) && !is_zygote(pid))
}

/// What a process has open besides the standard descriptors and number 3. The network namespace that it is at home in is no secret.
fn open_besides(pid: &str) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors");
    let links = open.flatten().map(|entry| {
        let number = entry.file_name().into_string().expect("text");
        let target = fs::read_link(entry.path()).unwrap_or_default();
        format!("{number} {}", target.display())
    });
    let known = |link: &String| {
        let (number, target) = link.split_once(' ').unwrap_or_default();
        matches!(number, "0" | "1" | "2" | "3") || target.starts_with("net:")
    };
    links.filter(|link| !known(link)).collect()
}

async fn who_bears_sandboxes_has_nothing_else_and_is_replaced(engine: Engine) {
    let (pool, _first) = taken(&engine).await;
    let until = Instant::now() + Duration::from_mins(1);
    let old = nursery().expect("a nursery");
    // While it bears one it has what that one gets.
    while !open_besides(&old).is_empty() {
        assert!(Instant::now() < until, "{:?}", open_besides(&old));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let killed = Command::new("kill").args(["-KILL", &old]).status();
    assert!(killed.expect("kill").success());
    // Those that were ready do without it.
    while nursery().is_none_or(|now| now == old) {
        assert!(Instant::now() < until, "no other");
        let session = pool.take(SandboxRequest::default()).await.expect("session");
        assert_eq!(run(&session, "6 * 7").await.value, Some(42.into()));
    }
    // The dead one waits for nobody.
    assert!(!children_of_keeper().contains(&old));
}

pub(super) fn children(pid: &str) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

pub(super) fn children_of_keeper() -> Vec<String> {
    let keepers = children(&std::process::id().to_string());
    keepers.iter().flat_map(|keeper| children(keeper)).collect()
}

fn is_zygote(pid: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| String::from_utf8_lossy(&line).contains("zygote.py"))
}

/// Process ids of the warm interpreters of this process's keeper. Copies go by the same name, in sandboxes.
pub(super) fn zygotes() -> Vec<String> {
    let mut found = children_of_keeper();
    found.retain(|pid| is_zygote(pid) && is_beside(pid));
    found
}

/// The only one there is, once the keepers of earlier engines have gone, and theirs with them.
pub(super) async fn lone_zygote() -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let found = zygotes();
        if found.len() == 1 {
            return found;
        }
        assert!(Instant::now() < until, "{found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
