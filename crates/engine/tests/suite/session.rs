//! Live sessions: state, verdicts, time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar::Engine;
use belljar_spec::{
    CodeRequest, CommandRequest, LimitsPatch, Network, RunEvent, SandboxRequest, State, Status,
};

use super::harness::{open, python, run, run_request, settles_at};
use super::tests;

tests!["session":
    state_is_kept,
    keys_stay_in_their_order,
    a_failure_is_a_result,
    time_is_up_but_the_code_yields,
    time_is_up_and_the_code_does_not_yield,
    code_that_is_interrupted_may_take_a_moment,
    an_interpreter_that_exits_is_replaced,
    a_run_that_is_dropped_ends,
    commands_run_beside,
    more_commands_than_there_is_room_for,
    a_language_without_a_kernel_keeps_files,
    reset_begins_anew,
    what_a_reset_ends_is_not_kept,
    rules_set_during_a_reset_hold,
    memory_is_bounded,
];

fn timeout(ms: u64) -> LimitsPatch {
    serde_json::from_value(serde_json::json!({ "timeout_ms": ms })).expect("limits")
}

fn shell(line: &str) -> CommandRequest {
    CommandRequest {
        shell: Some(line.into()),
        ..CommandRequest::default()
    }
}

async fn state_is_kept(engine: Engine) {
    let session = python(&engine).await;
    assert_eq!(run(&session, "x = 41").await.state, State::Kept);
    let result = run(&session, "print('hi'); x + 1").await;
    assert_eq!(result.value, Some(42.into()));
    assert_eq!(result.stdout, "hi\n");
    assert_eq!((result.status, result.state), (Status::Ok, State::Kept));
    assert!(result.report.no_new_privs && result.usage.cpu_ms > Some(0.0));
}

async fn keys_stay_in_their_order(engine: Engine) {
    let session = python(&engine).await;
    let text = r#"{"b":1,"a":{"d":2,"c":3}}"#;
    let request = CodeRequest {
        globals: serde_json::from_str(&format!(r#"{{"given":{text}}}"#)).expect("globals"),
        ..CodeRequest::new("print(*given, *given['a']); given")
    };
    let result = run_request(&session, &request).await;
    assert_eq!(result.stdout, "b a d c\n");
    assert_eq!(serde_json::to_string(&result.value).expect("JSON"), text);
}

async fn a_failure_is_a_result(engine: Engine) {
    let session = python(&engine).await;
    let result = run(&session, "1/0").await;
    assert_eq!((result.status, result.exit_code), (Status::Failed, Some(1)));
    let error = result.error.expect("an error");
    assert_eq!(error.kind, "ZeroDivisionError");
    assert_eq!(run(&session, "5").await.value, Some(5.into()));
}

async fn time_is_up_but_the_code_yields(engine: Engine) {
    let session = python(&engine).await;
    run(&session, "x = 7").await;
    let request = CodeRequest {
        limits: timeout(1_000),
        ..CodeRequest::new("while True: pass")
    };
    let result = run_request(&session, &request).await;
    assert_eq!(
        (result.status, result.state),
        (Status::TimedOut, State::Kept)
    );
    assert_eq!(run(&session, "x").await.value, Some(7.into()));
}

async fn time_is_up_and_the_code_does_not_yield(engine: Engine) {
    let session = python(&engine).await;
    run(&session, "x = 7; open('kept.txt', 'w').write('here')").await;
    let stubborn = "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                    subprocess.Popen(['sleep', '1000'], start_new_session=True)\nwhile True: pass";
    let request = CodeRequest {
        limits: timeout(3_000),
        ..CodeRequest::new(stubborn)
    };
    let result = run_request(&session, &request).await;
    assert_eq!(
        (result.status, result.state),
        (Status::TimedOut, State::Lost)
    );
    let result = run(&session, "'x' in globals()").await;
    assert_eq!(
        (result.status, result.value),
        (Status::Ok, Some(false.into()))
    );
    let result = run(&session, "open('kept.txt').read()").await;
    assert_eq!(result.value, Some("here".into()));
    settles_at(&session, 1).await;
}

/// Longer than until it is asked once more.
async fn code_that_is_interrupted_may_take_a_moment(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    run(&session, "x = 7").await;
    let code = "import signal, time\nasked = []\nsignal.signal(signal.SIGINT, lambda *_: asked.append(1))\n\
                print('begun', flush=True)\nwhile not asked: time.sleep(.01)\ntime.sleep(.3)";
    for _ in 0..8 {
        let other = Arc::clone(&session);
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let running = tokio::spawn(async move {
            let mut observer = move |event: RunEvent| {
                if let RunEvent::Stdout(_) = event {
                    let _ = begun.send(());
                }
            };
            let request = CodeRequest::new(code);
            other.run(&request, &mut observer).await.expect("a result")
        });
        begins.recv().await.expect("output");
        session.interrupt();
        let result = running.await.expect("a result");
        assert_eq!(result.state, State::Kept, "{:?}", result.error);
    }
    assert_eq!(run(&session, "x").await.value, Some(7.into()));
}

async fn an_interpreter_that_exits_is_replaced(engine: Engine) {
    let session = python(&engine).await;
    for (code, status) in [
        ("import os; os._exit(0)", Status::Failed),
        ("import os; os.kill(os.getpid(), 9)", Status::Failed),
        (
            "import os; os.closerange(0, 4096)\nwhile True: pass",
            Status::Killed,
        ),
        (
            "import os, struct; os.write(3, struct.pack('<I', 2**31))\nwhile True: pass",
            Status::Killed,
        ),
        (
            "import os, struct; f = b'{\"op\": \"done\", \"id\": \"x\", \"ok\": true}'; os.write(3, struct.pack('<I', len(f)) + f)\nwhile True: pass",
            Status::Killed,
        ),
    ] {
        let result = run(&session, code).await;
        assert_eq!(
            (result.status, result.state),
            (status, State::Lost),
            "{code}"
        );
        assert!(result.error.is_some() && !result.success);
        assert_eq!(run(&session, "2").await.value, Some(2.into()));
    }
}

async fn a_run_that_is_dropped_ends(engine: Engine) {
    let session = python(&engine).await;
    run(&session, "x = 1").await;
    let endless = CodeRequest::new("while True: pass");
    let mut silent = |_: RunEvent| {};
    let waited = std::time::Duration::from_millis(200);
    let dropped = tokio::time::timeout(waited, session.run(&endless, &mut silent)).await;
    assert!(dropped.is_err());
    let result = run(&session, "'x' in globals()").await;
    assert_eq!(
        (result.value, result.state),
        (Some(false.into()), State::Lost)
    );
}

async fn commands_run_beside(engine: Engine) {
    let session = python(&engine).await;
    run(&session, "open('a.txt', 'w').write('from python')").await;
    let mut silent = |_: RunEvent| {};
    let result = session
        .command(&shell("cat a.txt; exit 3"), &mut silent)
        .await
        .expect("result");
    assert_eq!(
        (result.stdout.as_str(), result.exit_code),
        ("from python", Some(3))
    );
    // Ends by its own deadline; what runs beside it does not.
    let request = CommandRequest {
        limits: timeout(300),
        ..shell("setsid sleep 1000 & sleep 1000")
    };
    let result = session
        .command(&request, &mut silent)
        .await
        .expect("result");
    assert_eq!(result.status, Status::TimedOut);
    assert_eq!(run(&session, "6*7").await.value, Some(42.into()));
    settles_at(&session, 1).await;
}

async fn more_commands_than_there_is_room_for(engine: Engine) {
    let limits = serde_json::json!({ "processes": 200 });
    let request = SandboxRequest {
        limits: serde_json::from_value(limits).expect("limits"),
        ..SandboxRequest::default()
    };
    let session = Arc::new(open(&engine, request).await);
    run(&session, "x = 41").await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..70 {
        let session = Arc::clone(&session);
        all.spawn(async move {
            let mut silent = |_: RunEvent| {};
            let waits = shell("until [ -e go ]; do sleep .1; done");
            session.command(&waits, &mut silent).await
        });
    }
    // Seven have no room beside the interpreter, and are told so while the others wait.
    for _ in 0..7 {
        let refused = all.join_next().await.expect("one").expect("its end");
        let error = refused.expect_err("it has no room");
        assert_eq!(error.code(), "conflict", "{error}");
        assert!(error.to_string().contains("at once"), "{error}");
    }
    let kept = run(&session, "open('go', 'w').close()\nx + 1").await;
    assert_eq!(kept.value, Some(42.into()));
    while let Some(ended) = all.join_next().await {
        let result = ended.expect("its end").expect("a result");
        assert_eq!(result.status, Status::Ok, "{result:?}");
    }
}

async fn a_language_without_a_kernel_keeps_files(engine: Engine) {
    let request = SandboxRequest {
        language: Some("perl".into()),
        ..SandboxRequest::default()
    };
    let session = open(&engine, request).await;
    run(&session, "open(F, '>x'); print F 'kept'; close F;").await;
    let result = run(&session, "open(F, 'x'); print <F>;").await;
    assert_eq!(
        (result.stdout.as_str(), result.status),
        ("kept", Status::Ok)
    );
    let result = run(&session, "exit 4").await;
    assert_eq!((result.exit_code, result.status), (Some(4), Status::Failed));
}

async fn reset_begins_anew(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_str(r#"{"files": {"in.txt": "first"}}"#).expect("request");
    let session = open(&engine, request).await;
    run(
        &session,
        "x = 1; open('in.txt', 'w').write('changed'); open('new', 'w').close()",
    )
    .await;
    session.reset().await.expect("reset");
    let result = run(
        &session,
        "import os; ['x' in globals(), open('in.txt').read(), os.listdir()]",
    )
    .await;
    let expected = serde_json::json!([false, "first", ["in.txt"]]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
}

async fn what_a_reset_ends_is_not_kept(engine: Engine) {
    let session = python(&engine).await;
    run(&session, "x = 1").await;
    let code = "import time\nopen('going', 'w').close()\ntime.sleep(1000)";
    let reset = async {
        while session.files().look("going").is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        session.reset().await.expect("reset");
    };
    let (ended, ()) = tokio::join!(run(&session, code), reset);
    assert_eq!((ended.status, ended.state), (Status::Killed, State::Lost));
    let result = run(&session, "'x' in globals()").await;
    assert_eq!(
        (result.value, result.state),
        (Some(false.into()), State::Kept)
    );
}

/// Whoever sets rules while another sandbox takes the place of this one must not set them for that which goes.
async fn rules_set_during_a_reset_hold(engine: Engine) {
    // Nobody listens there.
    let hosts = ["127.0.0.2", "127.0.0.3"];
    let rules = |host: &str| -> Network {
        serde_json::from_value([format!("{host}:1")].as_slice().into()).expect("rules")
    };
    let request = SandboxRequest {
        network: rules(hosts[0]),
        ..SandboxRequest::default()
    };
    let session = Arc::new(open(&engine, request).await);
    let code = format!(
        "import urllib.error, urllib.request\n\
         for host in {hosts:?}:\n    \
             try: urllib.request.urlopen(f'http://{{host}}:1/')\n    \
             except urllib.error.HTTPError: pass\n"
    );
    // What sets them does nothing else until the other one is there, so that its last call is nearly always one that meets it. Three
    // times at least, on a slow machine.
    let began = Instant::now();
    for round in 0..30 {
        if round >= 3 && began.elapsed() > Duration::from_secs(15) {
            break;
        }
        let setting = Arc::clone(&session);
        let files = session.files();
        let setter = tokio::spawn(async move {
            for host in hosts.into_iter().cycle() {
                setting.set_network(&rules(host)).await.expect("rules");
                if !setting.has(&files) {
                    return host;
                }
                // There may be one thread for both.
                tokio::task::yield_now().await;
            }
            unreachable!("it goes on for ever");
        });
        session.reset().await.expect("reset");
        let last = setter.await.expect("a host");
        assert_eq!(session.network(), rules(last));
        let result = run(&session, &code).await;
        for host in hosts {
            let tried = result.connections.iter().rfind(|one| one.host == host);
            let reason = tried.expect("an attempt").reason.as_deref();
            let refused = reason.is_some_and(|reason| reason.starts_with("no rule allows"));
            assert_eq!(refused, host != last, "{last}: {host}: {result:?}");
        }
    }
}

async fn memory_is_bounded(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_str(r#"{"limits": {"memory_bytes": "64m"}}"#).expect("request");
    let session = open(&engine, request).await;
    let result = run(&session, "x = 'x' * (1 << 30)").await;
    assert_eq!(
        (result.status, result.state),
        (Status::OutOfMemory, State::Lost),
        "{:?}",
        result.error
    );
    assert_eq!(run(&session, "1").await.value, Some(1.into()));
    let child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = \"x\" * (1 << 30)']).returncode";
    let result = run(&session, child).await;
    assert_eq!(
        (result.status, result.state),
        (Status::OutOfMemory, State::Kept),
        "{:?}",
        result.error
    );
}
