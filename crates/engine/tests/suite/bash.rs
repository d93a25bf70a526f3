//! The bash kernel, through the engine.

use std::sync::Arc;
use std::time::Duration;

use belljar::{Engine, PoolConfig};
use belljar_spec::{CodeRequest, Content, RunEvent, SandboxRequest, State, Status, Tool};
use serde_json::json;

use super::harness::{fills_to, pool_of, run, run_request, settles_at, speaking};
use super::tests;

tests!["bash":
    state_is_kept,
    the_status_is_the_last_commands,
    time_is_up_but_the_shell_yields,
    time_is_up_and_the_shell_does_not_yield,
    an_interrupt_ends_the_run_only,
    variables_arguments_and_input_arrive,
    what_it_cannot_do_is_refused,
    forged_messages_end_the_interpreter,
    ready_shells_wait_in_a_pool,
];

fn limited(code: &str, ms: u64) -> CodeRequest {
    CodeRequest {
        limits: serde_json::from_value(json!({ "timeout_ms": ms })).expect("limits"),
        ..CodeRequest::new(code)
    }
}

async fn state_is_kept(engine: Engine) {
    let session = speaking(&engine, "bash").await;
    let code = "x=41; f() { echo \"f: $1\"; }; mkdir -p /tmp/there; cd /tmp/there; set -- a b; shopt -s extglob";
    let result = run(&session, code).await;
    assert_eq!(
        (result.status, result.state),
        (Status::Ok, State::Kept),
        "{:?}",
        result.error
    );
    let result = run(&session, "f $((x + 1)); pwd; echo $2; [[ ab == @(ab|c) ]]").await;
    assert_eq!(result.stdout, "f: 42\n/tmp/there\nb\n");
    // What ends a shell ends the run; the next one goes on with all it knew.
    let result = run(&session, "y=1; exit 3").await;
    assert_eq!(
        (result.status, result.exit_code, result.state),
        (Status::Failed, Some(3), State::Kept)
    );
    let result = run(&session, "f $x$y; pwd").await;
    assert_eq!(result.stdout, "f: 411\n/tmp/there\n");
}

async fn the_status_is_the_last_commands(engine: Engine) {
    let session = speaking(&engine, "bash").await;
    let result = run(&session, "echo out; echo err >&2; false").await;
    assert_eq!((result.status, result.exit_code), (Status::Failed, Some(1)));
    assert_eq!(
        (result.stdout.as_str(), result.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert!(result.error.is_none() && !result.success);
    let result = run(&session, "echo first\nif true; then\n  echo x )\nfi").await;
    assert_eq!(result.exit_code, Some(2));
    let error = result.error.expect("an error");
    assert_eq!((error.kind.as_str(), error.line), ("SyntaxError", Some(3)));
    let result = run(&session, "no-such-command").await;
    assert_eq!(result.exit_code, Some(127));
    assert!(
        result.stderr.contains("line 1: no-such-command"),
        "{}",
        result.stderr
    );
}

async fn time_is_up_but_the_shell_yields(engine: Engine) {
    let session = speaking(&engine, "bash").await;
    run(&session, "x=7").await;
    for endless in ["while :; do :; done", "sleep 1000"] {
        let result = run_request(&session, &limited(endless, 1_000)).await;
        assert_eq!(
            (result.status, result.state),
            (Status::TimedOut, State::Kept),
            "{endless}"
        );
    }
    assert_eq!(run(&session, "echo $x").await.stdout, "7\n");
}

async fn time_is_up_and_the_shell_does_not_yield(engine: Engine) {
    let session = speaking(&engine, "bash").await;
    run(&session, "x=7; echo here > kept").await;
    let stubborn = "trap '' INT; setsid sleep 1000 & while :; do sleep 1000; done";
    let result = run_request(&session, &limited(stubborn, 3_000)).await;
    assert_eq!(
        (result.status, result.state),
        (Status::TimedOut, State::Lost)
    );
    let result = run(&session, "echo ${x-gone}; cat kept").await;
    assert_eq!(result.stdout, "gone\nhere\n");
    // The shell, and the process that passes interrupts on to it.
    settles_at(&session, 2).await;
}

async fn an_interrupt_ends_the_run_only(engine: Engine) {
    let session = Arc::new(speaking(&engine, "bash").await);
    run(&session, "x=1").await;
    let other = Arc::clone(&session);
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let running = tokio::spawn(async move {
        let mut observer = move |event: RunEvent| {
            if let RunEvent::Stdout(_) = event {
                let _ = begun.send(());
            }
        };
        let code = CodeRequest::new("echo begun; sleep 1000");
        other.run(&code, &mut observer).await.expect("result")
    });
    begins.recv().await.expect("output");
    session.interrupt();
    let result = tokio::time::timeout(Duration::from_secs(20), running);
    let result = result.await.expect("in time").expect("result");
    assert_eq!((result.status, result.state), (Status::Killed, State::Kept));
    assert_eq!(result.exit_code, Some(130));
    assert_eq!(run(&session, "echo $x").await.stdout, "1\n");
}

async fn variables_arguments_and_input_arrive(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_value(json!({ "language": "bash", "env": { "COLOUR": "red" } }))
            .expect("request");
    let session = super::harness::open(&engine, request).await;
    let code = CodeRequest {
        globals: serde_json::from_value(json!({ "name": "a b", "list": [1, { "c": 2 }] }))
            .expect("globals"),
        args: vec!["one".into(), "$(two)".into()],
        stdin: Some(Content::Text("first\nsecond".into())),
        ..CodeRequest::new(
            "read line; rest=$(cat); printf '%s|' \"$line\" \"$rest\" \"$name\" \"$list\" \"$1\" \"$2\" \"$COLOUR\" \"$HOME\"",
        )
    };
    let result = run_request(&session, &code).await;
    assert_eq!(
        result.stdout,
        "first|second|a b|[1,{\"c\":2}]|one|$(two)|red|/tmp|"
    );
    // The next run has no input, and does not wait for any.
    let result = run(&session, "read line; echo $?").await;
    assert_eq!(result.stdout, "1\n");
}

async fn what_it_cannot_do_is_refused(engine: Engine) {
    let session = speaking(&engine, "bash").await;
    let refusal = async |request: CodeRequest| {
        let mut silent = |_: RunEvent| {};
        let error = session
            .run(&request, &mut silent)
            .await
            .expect_err("refused");
        error.to_string()
    };
    let tool = Tool {
        name: "add".into(),
        ..Tool::default()
    };
    let message = refusal(CodeRequest {
        tools: Some(vec![tool]),
        ..CodeRequest::new("add")
    });
    assert!(message.await.contains("tools"));
    let message = refusal(CodeRequest {
        stdin: Some(Content::Bytes(vec![b'a', 0, 0xff])),
        ..CodeRequest::new("cat")
    });
    assert!(message.await.contains("binary input"));
    let message = refusal(CodeRequest {
        globals: serde_json::from_value(json!({ "größe": 1 })).expect("globals"),
        ..CodeRequest::new(":")
    });
    assert!(message.await.contains("globals"));
    assert_eq!(run(&session, "echo on").await.stdout, "on\n");
    let request: SandboxRequest =
        serde_json::from_value(json!({ "language": "bash", "imports": ["json"] }))
            .expect("request");
    let toolchain = super::harness::toolchain(Some("bash"));
    let opened = belljar::Session::open(&engine, toolchain, request).await;
    let error = opened.err().expect("refused").to_string();
    assert!(error.contains("imports"), "{error}");
}

async fn forged_messages_end_the_interpreter(engine: Engine) {
    let session = speaking(&engine, "bash").await;
    for forged in [
        "printf 'done\\0other\\0000\\0000\\0\\0\\0' >&121; while :; do :; done",
        "printf 'ready\\0ready\\0' >&121; while :; do :; done",
        "head -c 100000 /dev/zero | tr '\\0' x >&121; while :; do :; done",
    ] {
        let result = run_request(&session, &limited(forged, 5_000)).await;
        assert_eq!(
            (result.status, result.state),
            (Status::Killed, State::Lost),
            "{forged}"
        );
        assert_eq!(result.error.expect("error").kind, "ProtocolViolation");
        assert_eq!(run(&session, "echo on").await.stdout, "on\n");
    }
    // A shell without a channel may have become another program, which has the time that the run has.
    for (ending, status) in [
        ("exec 121>&-; while :; do :; done", Status::TimedOut),
        ("exec 121>&-", Status::Failed),
        ("kill -9 $$", Status::Failed),
        ("exec false", Status::Failed),
        ("exec true", Status::Ok),
    ] {
        let result = run_request(&session, &limited(ending, 3_000)).await;
        assert_eq!(
            (result.status, result.state),
            (status, State::Lost),
            "{ending}"
        );
        assert_eq!(run(&session, "echo on").await.stdout, "on\n");
    }
}

async fn ready_shells_wait_in_a_pool(engine: Engine) {
    let request = SandboxRequest {
        language: Some("bash".into()),
        ..SandboxRequest::default()
    };
    let config = PoolConfig {
        ready: 2,
        ..PoolConfig::default()
    };
    let pool = pool_of(&engine, request.clone(), config).await;
    fills_to(&pool, 2).await;
    assert_eq!(pool.trouble(), None);
    let with_env = SandboxRequest {
        env: [("COLOUR".into(), "red".into())].into(),
        ..request.clone()
    };
    let first = pool.take(with_env).await.expect("session");
    let second = pool.take(request).await.expect("session");
    let result = run(&first, "x=1; echo $COLOUR $USER; id -u").await;
    assert_eq!(result.stdout, "red sandbox\n1000\n");
    assert!(result.report.no_new_privs);
    let result = run(&second, "echo ${x-none} ${COLOUR-none}").await;
    assert_eq!(result.stdout, "none none\n");
    fills_to(&pool, 2).await;
}
