//! Frames that code writes itself: they cost this process little, however many they are and whatever is in them.

use std::sync::Arc;

use belljar::{Engine, Session};
use belljar_spec::{CodeRequest, RunEvent, RunResult, State, Status, Tool, ToolAnswer};

use super::harness::{python, run};
use super::tests;

tests!["forged":
    refused_calls_have_an_end,
    displays_that_nobody_keeps_have_an_end,
    answers_that_nobody_reads_have_an_end,
    values_take_little_memory,
];

/// `frame(op, rest)` is one of this run; `send` writes it.
const FORGE: &str = "
import os, sys
at, run = sys._getframe(), None
while at is not None and run is None:
    run = next((v for v in at.f_locals.values() if isinstance(v, str) and v.startswith('run_')), None)
    at = at.f_back
def frame(op, rest):
    body = b'{\"op\":\"%s\",\"id\":\"%s\",%s}' % (op.encode(), run.encode(), rest)
    return len(body).to_bytes(4, 'little') + body
def send(bytes):
    os.set_blocking(3, True)
    while bytes:
        bytes = bytes[os.write(3, bytes[:1 << 16]):]
";

async fn forged(session: &Arc<Session>, code: &str, answer: &str) -> (RunResult, usize) {
    let ask = Tool {
        name: "ask".into(),
        ..Tool::default()
    };
    let request = CodeRequest {
        tools: Some(vec![ask]),
        ..CodeRequest::new(format!("{FORGE}{code}"))
    };
    let caller = Arc::clone(session);
    let mut calls = 0;
    let mut observer = |event: RunEvent| {
        if let RunEvent::ToolCall(call) = event {
            calls += 1;
            caller.answer(call.call, ToolAnswer::Value(answer.into()));
        }
    };
    let result = session.run(&request, &mut observer).await.expect("result");
    (result, calls)
}

/// It was ended as one whose channel means nothing any more, and the next run has another interpreter.
async fn ends(session: &Session, result: RunResult) {
    let error = result.error.expect("an error");
    assert_eq!(
        (result.status, result.state, error.kind.as_str()),
        (Status::Killed, State::Lost, "ProtocolViolation")
    );
    assert_eq!(run(session, "1").await.value, Some(1.into()));
}

async fn refused_calls_have_an_end(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    let code = "send(frame('call', b'\"call\":1,\"tool\":\"x\"') * 20_000)\nwhile True: pass";
    let (result, calls) = forged(&session, code, "").await;
    assert_eq!(calls, 0);
    ends(&session, result).await;
}

async fn displays_that_nobody_keeps_have_an_end(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    for data in ["{\"x\":1}", "{\"text/plain\":\"x\"}"] {
        let code = format!("send(frame('display', b'\"data\":{data}') * 5_000)\n4");
        let (result, _) = forged(&session, &code, "").await;
        assert_eq!(result.value, Some(4.into()), "{:?}", result.error);
        let code = format!("send(frame('display', b'\"data\":{data}') * 20_000)\nwhile True: pass");
        let (result, _) = forged(&session, &code, "").await;
        ends(&session, result).await;
    }
}

async fn answers_that_nobody_reads_have_an_end(engine: Engine) {
    let session = Arc::new(python(&engine).await);
    // Whoever reads for the code has been stopped with everything else.
    let code = "frames = [frame('call', b'\"call\":%d,\"tool\":\"ask\"' % n) for n in range(900, 1100)]\n\
                import ctypes\n\
                held = ctypes.PyDLL(None)\n\
                data = b''.join(frames)\n\
                held.write(3, data, len(data)), held.sleep(60)";
    let (result, _) = forged(&session, code, &"y".repeat(1 << 20)).await;
    ends(&session, result).await;
}

async fn values_take_little_memory(engine: Engine) {
    const MOST: u64 = 200 << 10;
    let session = Arc::new(python(&engine).await);
    run(&session, "1").await;
    let before = peak();
    let objects = "[{\"\":0}' + b',{\"\":0}' * (2 << 20) + b']";
    let code =
        format!("send(frame('call', b'\"call\":900,\"tool\":\"ask\",\"args\":{objects}'))\n2");
    let (result, calls) = forged(&session, &code, "").await;
    assert_eq!((calls, result.value), (0, Some(2.into())));
    let code = format!("send(frame('display', b'\"data\":{{\"text/x-json\":{objects}}}'))\n3");
    let (result, _) = forged(&session, &code, "").await;
    assert_eq!(
        (result.displays.len(), result.value),
        (0, Some(3.into())),
        "{:?}",
        result.error
    );
    let code = format!(
        "send(frame('done', b'\"ok\":true,\"value_text\":\"[...]\",\"value\":{objects}'))\nwhile True: pass"
    );
    let (result, _) = forged(&session, &code, "").await;
    assert_eq!(
        (result.value, result.value_text.as_deref()),
        (None, Some("[...]")),
        "{:?}",
        result.error
    );
    let grown = peak() - before;
    assert!(grown < MOST, "{grown} KiB");
}

/// The most memory that this process ever had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("a number").parse().expect("a number")
}
