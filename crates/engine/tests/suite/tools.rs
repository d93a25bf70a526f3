//! Functions of the caller, and how long and how often code may run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar::{Engine, Session};
use belljar_spec::{
    CodeRequest, LimitsPatch, RunEvent, RunResult, SandboxRequest, State, Status, Tool, ToolAnswer,
    ToolCall,
};
use serde_json::{Value, json};

use super::harness::{open, python, run, speaking};
use super::tests;

tests!["tools":
    several_calls_are_open_at_once,
    a_tool_that_never_answers_is_ended_by_the_deadline,
    the_number_of_calls_is_limited,
    arguments_and_answers_are_bounded,
    failures_have_the_name_of_their_type,
    absent_tools_stay_as_they_are,
    no_two_have_one_name,
    a_fresh_interpreter_has_the_tools_too,
    what_is_no_tool_is_not_called,
    javascript_calls_tools,
    an_interpreter_serves_so_many_runs,
];

fn tool(name: &str, awaited: bool) -> Tool {
    Tool {
        name: name.into(),
        r#async: awaited,
        ..Tool::default()
    }
}

fn calling(code: &str, tools: &[Tool]) -> CodeRequest {
    CodeRequest {
        tools: Some(tools.to_vec()),
        ..CodeRequest::new(code)
    }
}

/// Runs with someone who answers what `answer` gives, and counts what was heard.
async fn answered(
    session: &Arc<Session>,
    request: &CodeRequest,
    mut answer: impl FnMut(&ToolCall) -> Vec<(u64, ToolAnswer)> + Send,
) -> (RunResult, usize) {
    let mut calls = 0;
    let caller = Arc::clone(session);
    let mut observer = |event: RunEvent| {
        if let RunEvent::ToolCall(call) = event {
            calls += 1;
            for (number, answer) in answer(&call) {
                caller.answer(number, answer);
            }
        }
    };
    let result = session.run(request, &mut observer).await.expect("result");
    (result, calls)
}

fn value(call: &ToolCall, value: Value) -> Vec<(u64, ToolAnswer)> {
    vec![(call.call, ToolAnswer::Value(value))]
}

async fn several_calls_are_open_at_once(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let code = "import asyncio\nawait asyncio.gather(*(ask(n) for n in range(3)))";
    let mut asked: Vec<ToolCall> = Vec::new();
    // The first ones are answered last.
    let (result, calls) = answered(&session, &calling(code, &[tool("ask", true)]), |call| {
        asked.push(call.clone());
        if asked.len() < 3 {
            return Vec::new();
        }
        let answers = asked.iter().rev();
        answers
            .flat_map(|call| value(call, json!([call.args[0], "answered"])))
            .collect()
    })
    .await;
    assert_eq!(calls, 3);
    let expected = json!([[0, "answered"], [1, "answered"], [2, "answered"]]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
}

async fn a_tool_that_never_answers_is_ended_by_the_deadline(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    run(&session, "x = 1").await;
    for (code, awaited) in [("ask()", false), ("await ask()", true)] {
        let limits: LimitsPatch =
            serde_json::from_value(json!({ "timeout_ms": 3_000 })).expect("limits");
        let request = CodeRequest {
            limits,
            ..calling(code, &[tool("ask", awaited)])
        };
        let began = Instant::now();
        let (result, calls) = answered(&session, &request, |_| Vec::new()).await;
        assert_eq!(calls, 1);
        assert_eq!(
            (result.status, result.state),
            (Status::TimedOut, State::Kept),
            "{code}"
        );
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(run(&session, "x").await.value, Some(1.into()));
}

async fn the_number_of_calls_is_limited(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_value(json!({ "max_tool_calls": 3 })).expect("request");
    let session = Arc::new(open(&engine, request).await);
    let code = "done = []\ntry:\n    while True: done.append(ask())\nexcept RuntimeError as error:\n    print(error)\nlen(done)";
    for _ in 0..2 {
        let request = calling(code, &[tool("ask", false)]);
        let (result, calls) = answered(&session, &request, |call| value(call, json!(1))).await;
        assert_eq!((calls, result.value), (3, Some(3.into())));
        assert_eq!(result.stdout, "the limit of 3 tool calls is reached\n");
    }
}

async fn arguments_and_answers_are_bounded(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let code = "def of(action):\n    try:\n        return len(action())\n    except Exception as error:\n        return type(error).__name__\n\
                [of(lambda: ask('x' * (17 << 20))), of(lambda: ask(object())), of(lambda: ask('large')), of(lambda: ask('small')), of(lambda: ask(ask))]";
    let request = calling(code, &[tool("ask", false)]);
    let (result, calls) = answered(&session, &request, |call| {
        let large = call.args[0] == "large";
        value(
            call,
            json!("y".repeat(if large { 17 << 20 } else { 1 << 20 })),
        )
    })
    .await;
    assert_eq!(calls, 2);
    let expected = json!([
        "ValueError",
        "TypeError",
        "ValueError",
        1 << 20,
        "TypeError"
    ]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
}

async fn failures_have_the_name_of_their_type(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let code = "seen = []\nfor name in ('KeyError', 'RateLimited', 'SystemExit', '__import__'):\n    try:\n        ask(name)\n    except Exception as error:\n        seen.append([type(error).__name__, isinstance(error, ToolError), str(error)])\nseen";
    let request = calling(code, &[tool("ask", false)]);
    let (result, _) = answered(&session, &request, |call| {
        let kind = call.args[0].as_str().expect("a name").to_owned();
        let message = "why".to_owned();
        vec![(call.call, ToolAnswer::Error { kind, message })]
    })
    .await;
    let expected = json!([
        ["KeyError", false, "'why'"],
        ["RateLimited", true, "why"],
        ["SystemExit", true, "why"],
        ["__import__", true, "why"]
    ]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    let (result, _) = answered(
        &session,
        &calling("ask(1)", &[tool("ask", false)]),
        |call| {
            let (kind, message) = ("RateLimited".to_owned(), "slow down".to_owned());
            vec![(call.call, ToolAnswer::Error { kind, message })]
        },
    )
    .await;
    let error = result.error.expect("an error");
    assert_eq!(
        (error.kind.as_str(), error.message.as_str()),
        ("RateLimited", "slow down")
    );
}

async fn absent_tools_stay_as_they_are(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let request = calling("ask()", &[tool("ask", false), tool("other", false)]);
    let (result, _) = answered(&session, &request, |call| value(call, json!(1))).await;
    assert_eq!(result.value, Some(1.into()), "{:?}", result.error);
    let request = CodeRequest::new("[ask(), other()]");
    let (result, _) = answered(&session, &request, |call| value(call, json!(2))).await;
    assert_eq!(result.value, Some(json!([2, 2])), "{:?}", result.error);
    // A list replaces what was there, an empty one too.
    let request = calling("'ask' in globals() or 'other' in globals()", &[]);
    let (result, _) = answered(&session, &request, |_| Vec::new()).await;
    assert_eq!(result.value, Some(false.into()));
}

/// The code would find one of two, so neither is put in.
async fn no_two_have_one_name(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let (result, _) = answered(&session, &calling("1", &[tool("ask", false)]), |_| {
        Vec::new()
    })
    .await;
    assert_eq!(result.value, Some(1.into()), "{:?}", result.error);
    for (tools, global, told) in [
        (Some(&["f", "f"][..]), "x", "tools: \"f\" is not accepted"),
        (Some(&["fi", "\u{fb01}"]), "x", "tools: \"\u{fb01}\" is not"),
        (Some(&["f"]), "f", "globals: \"f\" is not accepted"),
        (Some(&["fi"]), "\u{fb01}", "globals: \"\u{fb01}\" is not"),
        // Of the run before.
        (None, "ask", "globals: \"ask\" is not accepted"),
    ] {
        let mut request = CodeRequest::new("1");
        let named = |names: &[&str]| names.iter().map(|name| tool(name, false)).collect();
        request.tools = tools.map(named);
        request.globals.insert(global.into(), json!(1));
        let refused = session.run(&request, &mut ()).await.expect_err(told);
        assert_eq!(refused.code(), "invalid_request", "{refused}");
        assert!(refused.to_string().starts_with(told), "{refused}");
    }
}

async fn a_fresh_interpreter_has_the_tools_too(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let request = calling("import os; os._exit(1)", &[tool("ask", false)]);
    let (result, _) = answered(&session, &request, |_| Vec::new()).await;
    assert_eq!(result.state, State::Lost);
    let request = CodeRequest::new("ask()");
    let (result, _) = answered(&session, &request, |call| value(call, json!(3))).await;
    assert_eq!(result.value, Some(3.into()), "{:?}", result.error);
}

/// Frames that the code itself writes: an unknown tool is answered for the caller, a number twice ends the interpreter.
async fn what_is_no_tool_is_not_called(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let forge = |calls: &str| {
        format!(
            "import json, os, struct, sys\nframe, run = sys._getframe(), None\n\
             while frame is not None and run is None:\n    run = next((v for v in frame.f_locals.values() if isinstance(v, str) and v.startswith('run_')), None)\n    frame = frame.f_back\n\
             for call, tool in {calls}:\n    frame = json.dumps({{'op': 'call', 'id': run, 'call': call, 'tool': tool}}).encode()\n    os.write(3, struct.pack('<I', len(frame)) + frame)\n5"
        )
    };
    let request = calling(&forge("[(900, 'rm'), (901, '')]"), &[tool("ask", false)]);
    let (result, calls) = answered(&session, &request, |_| Vec::new()).await;
    assert_eq!(
        (calls, result.value),
        (0, Some(5.into())),
        "{:?}",
        result.error
    );
    let code = forge("[(900, 'ask'), (900, 'ask')]") + "\nwhile True: pass";
    let (result, calls) = answered(&session, &calling(&code, &[tool("ask", false)]), |_| {
        Vec::new()
    })
    .await;
    assert_eq!(
        (calls, result.status, result.state),
        (1, Status::Killed, State::Lost),
        "{:?}",
        result.error
    );
    assert_eq!(run(&session, "1").await.value, Some(1.into()));
}

async fn javascript_calls_tools(engine: Engine) {
    let session = Arc::new(speaking(&engine, "javascript").await);
    let code = "const [a, b] = await Promise.all([ask(1), ask(2)]); let seen;\n\
                try { await ask('fail') } catch (error) { seen = [error.name, error.message] }\n[a, b, seen]";
    let (result, calls) = answered(&session, &calling(code, &[tool("ask", true)]), |call| {
        if call.args[0] == "fail" {
            let (kind, message) = ("RateLimited".to_owned(), "slow down".to_owned());
            return vec![(call.call, ToolAnswer::Error { kind, message })];
        }
        value(call, json!({ "got": call.args[0] }))
    })
    .await;
    assert_eq!(calls, 3);
    let expected = json!([{ "got": 1 }, { "got": 2 }, ["RateLimited", "slow down"]]);
    assert_eq!(result.value, Some(expected), "{:?}", result.error);
    let request = CodeRequest::new("await ask(3)");
    let (result, _) = answered(&session, &request, |call| value(call, json!(4))).await;
    assert_eq!(result.value, Some(4.into()), "{:?}", result.error);
}

async fn an_interpreter_serves_so_many_runs(engine: Engine) {
    let request: SandboxRequest =
        serde_json::from_value(json!({ "max_runs": 2 })).expect("request");
    let session = open(&engine, request).await;
    for _ in 0..2 {
        let result = run(&session, "x = 1; import os; open('kept', 'w').close()").await;
        assert_eq!(result.state, State::Kept, "{:?}", result.error);
        let result = run(&session, "x").await;
        assert_eq!((result.value, result.state), (Some(1.into()), State::Lost));
        let result = run(
            &session,
            "['x' in globals(), os.path.exists('kept') if 'os' in globals() else None]",
        )
        .await;
        assert_eq!(
            result.value,
            Some(json!([false, null])),
            "{:?}",
            result.error
        );
        let result = run(&session, "import os; os.path.exists('kept')").await;
        assert_eq!(
            (result.value, result.state),
            (Some(true.into()), State::Lost)
        );
    }
}
