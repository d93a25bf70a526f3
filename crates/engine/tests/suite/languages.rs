//! Kernels of other languages, through the engine.

use belljar::Engine;
use belljar_spec::{CodeRequest, RunEvent, SandboxRequest, State, Status, Tool, ToolAnswer};
use serde_json::json;

use super::harness::{open, python, run, run_request, speaking};
use super::tests;

tests!["languages":
    javascript_keeps_state,
    a_byte_order_mark_is_no_code,
    what_is_no_program_does_not_compile,
    tools_are_called_and_answered,
    globals_environment_and_input_arrive,
    imports_are_restricted,
    displays_are_heard,
];

async fn javascript_keeps_state(engine: Engine) {
    let request = SandboxRequest {
        language: Some("javascript".into()),
        ..SandboxRequest::default()
    };
    let session = open(&engine, request).await;
    let result = run(&session, "const x = 41; console.log('hi')").await;
    assert_eq!(
        (result.stdout.as_str(), result.state),
        ("hi\n", State::Kept),
        "{:?}",
        result.error
    );
    let result = run(&session, "const x = await Promise.resolve(41); x + 1").await;
    assert_eq!(result.value, Some(42.into()), "{:?}", result.error);
    let result = run(&session, "null.foo").await;
    assert_eq!(result.status, Status::Failed);
    assert_eq!(result.error.expect("error").kind, "TypeError");
    let endless = CodeRequest {
        limits: serde_json::from_value(json!({ "timeout_ms": 500 })).expect("limits"),
        ..CodeRequest::new("while (true) {}")
    };
    let result = run_request(&session, &endless).await;
    assert_eq!(result.status, Status::TimedOut);
    assert_eq!(run(&session, "6 * 7").await.value, Some(42.into()));
}

async fn a_byte_order_mark_is_no_code(engine: Engine) {
    for (language, code) in [
        ("python", "print(1)"),
        ("javascript", "console.log(1)"),
        ("bash", "echo 1"),
        ("perl", "print \"1\\n\""),
    ] {
        let session = speaking(&engine, language).await;
        let result = run(&session, &format!("\u{feff}{code}")).await;
        assert_eq!(result.stdout, "1\n", "{language}: {:?}", result.error);
    }
    let session = python(&engine).await;
    let error = run(&session, "\u{feff}1 / 0").await.error.expect("error");
    assert_eq!((error.line, error.column), (Some(1), Some(1)));
}

/// Also where an earlier run has left a program.
async fn what_is_no_program_does_not_compile(engine: Engine) {
    let session = speaking(&engine, "go").await;
    let fine = run(&session, "package main\nfunc main() { println(1) }").await;
    assert_eq!(fine.stderr, "1\n", "{:?}", fine.error);
    for code in ["package foo\nfunc F() {}", "package main_test"] {
        let result = run(&session, code).await;
        assert_eq!(result.status, Status::CompileFailed, "{code}");
        assert_eq!(result.stderr, "", "{code}");
        let error = result.error.expect("error");
        assert!(error.message.starts_with("this is no program"), "{error:?}");
        assert_eq!(error.line, Some(1), "{error:?}");
    }
}

async fn tools_are_called_and_answered(engine: Engine) {
    let session = std::sync::Arc::new(python(&engine).await);
    let request = CodeRequest {
        tools: Some(vec![Tool {
            name: "add".into(),
            doc: "Adds.".into(),
            parameters: vec!["a: int".into(), "b: int = 1".into()],
            ..Tool::default()
        }]),
        ..CodeRequest::new("try:\n    add('x')\nexcept ValueError as e:\n    print(e)\nadd(1, b=2)")
    };
    let answering = std::sync::Arc::clone(&session);
    let mut observer = move |event: RunEvent| {
        if let RunEvent::ToolCall(call) = event {
            assert_eq!(call.tool, "add");
            let answer = match (
                call.args.first().and_then(serde_json::Value::as_i64),
                call.kwargs.get("b"),
            ) {
                (Some(a), Some(b)) => ToolAnswer::Value(json!(a + b.as_i64().expect("a number"))),
                _ => ToolAnswer::Error {
                    kind: "ValueError".into(),
                    message: "not a number".into(),
                },
            };
            answering.answer(call.call, answer);
        }
    };
    let result = session.run(&request, &mut observer).await.expect("result");
    assert_eq!(
        (result.value, result.stdout.as_str()),
        (Some(3.into()), "not a number\n"),
        "{:?}",
        result.error
    );
}

async fn globals_environment_and_input_arrive(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_value(json!({ "env": { "COLOUR": "red" } })).expect("request");
    let session = open(&engine, request).await;
    let code = CodeRequest {
        globals: json!({ "data": [1, { "a": 2 }] })
            .as_object()
            .expect("object")
            .clone(),
        stdin: Some(belljar_spec::Content::Text("first\nsecond\n".into())),
        args: vec!["one".into()],
        ..CodeRequest::new(
            "import os, sys; [data, input(), sys.stdin.read(), os.environ['COLOUR'], os.environ['HOME'], sys.argv[1:]]",
        )
    };
    let result = run_request(&session, &code).await;
    let expected = json!([[1, { "a": 2 }], "first", "second\n", "red", "/tmp", ["one"]]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
}

async fn imports_are_restricted(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_value(json!({ "imports": ["safe"] })).expect("request");
    let session = open(&engine, request).await;
    assert_eq!(
        run(&session, "import json, math; math.floor(2.5)")
            .await
            .value,
        Some(2.into())
    );
    let result = run(&session, "import os").await;
    let error = result.error.expect("error");
    assert_eq!(
        (error.kind.as_str(), error.message.as_str()),
        ("ImportError", "Import 'os' not allowed")
    );
}

async fn displays_are_heard(engine: Engine) {
    let session = python(&engine).await;
    let code = "class C:\n    def _repr_html_(self): return '<b>x</b>'\ndisplay(C())";
    let result = run(&session, code).await;
    assert_eq!(result.displays.len(), 1, "{:?}", result.error);
    assert_eq!(result.displays[0].mime, "text/html");
    assert_eq!(result.displays[0].data, "PGI+eDwvYj4=");
}
