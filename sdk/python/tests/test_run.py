"""Code in a sandbox of its own."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import pathlib
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

import belljar
from belljar.events import ResultEvent, StdoutEvent


def test_a_program() -> None:
    result = belljar.run("print(6 * 7)")
    assert (result.stdout, result.status, result.success, result.exit_code) == ("42\n", "ok", True, 0)
    assert result.usage.wall_ms > 0 and result.usage.memory_peak_bytes > 0
    assert result.limits.timeout_ms > 0 and result.report["no_new_privs"] is True
    assert repr(result).startswith("<Result ok stdout='42\\n' ")


def test_other_languages_and_what_a_program_gets() -> None:
    result = belljar.run(
        'read line; echo "$line $1 $WHO $(cat in.txt)"; echo done >out.txt; exit 3',
        language="bash",
        stdin="hello\n",
        args=["there"],
        env={"WHO": "you"},
        files={"in.txt": b"file"},
    )
    assert result.stdout == "hello there you file\n"
    assert (result.exit_code, result.success, result.status) == (3, False, "failed")
    assert "out.txt" in [file.path for file in result.files]


def test_files_of_ours_by_their_path(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"\x00\xff")
    result = belljar.run("print(open('d', 'rb').read())", files={"d": tmp_path / "data.bin"})
    assert result.stdout == "b'\\x00\\xff'\n"


def test_bytes_that_are_no_text() -> None:
    result = belljar.run("import sys; sys.stdout.buffer.write(b'a\\xff')")
    assert result.stdout_bytes == b"a\xff" and result.stdout == "a\ufffd"


def test_a_failed_program_is_a_result_and_an_exception_for_those_who_ask() -> None:
    code = "def f():\n    1 / 0\nf()"
    result = belljar.run(code)
    assert result.status == "failed" and "ZeroDivisionError" in result.stderr
    with pytest.raises(belljar.RunFailed) as caught:
        belljar.run(code, check=True)
    assert caught.value.result is not None and caught.value.result.status == "failed"
    story = str(caught.value)
    assert "ZeroDivisionError: division by zero" in story and "line 2, in f" in story
    assert result.check is not None
    with pytest.raises(belljar.RunFailed):
        result.check()


def test_the_time_is_up() -> None:
    result = belljar.run("while True: pass", timeout=0.3)
    assert result.timed_out and result.status == "timed_out"
    with pytest.raises(belljar.SandboxTimeout, match="the time was up after 300 ms") as caught:
        belljar.run("while True: pass", timeout="300ms", check=True)
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, belljar.BelljarError)


def test_out_of_memory() -> None:
    with pytest.raises(belljar.OutOfMemory, match="more than 64 MiB") as caught:
        belljar.run("x = b'x' * (1 << 30)", memory="64m", check=True)
    assert isinstance(caught.value, MemoryError)


def test_what_is_not_accepted() -> None:
    with pytest.raises(belljar.InvalidRequest, match="timeout_ms") as caught:
        belljar.run("1", timeout=0)
    assert caught.value.code == "invalid_limit" and caught.value.request_id
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(belljar.InvalidRequest):
            belljar.run("1", timeout=wrong)
    with pytest.raises(belljar.InvalidRequest, match="did you mean python"):
        belljar.run("1", language="pyton")
    with pytest.raises(belljar.InvalidRequest, match="no JSON form"):
        belljar.run("1", globals={"x": object()})


def test_exceptions_survive_pickling() -> None:
    with pytest.raises(belljar.SandboxTimeout) as caught:
        belljar.run("while True: pass", timeout=0.2, check=True)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is belljar.SandboxTimeout and str(again) == str(caught.value)
    assert again.result == caught.value.result


def test_events() -> None:
    # What is printed within a moment may come as one.
    stream = belljar.stream("import time\nprint(0, flush=True)\ntime.sleep(2)\nprint(1, flush=True)\nprint(2)")
    events = list(stream)
    printed = "".join(event.text for event in events if isinstance(event, StdoutEvent))
    assert printed == "0\n1\n2\n" and len([e for e in events if isinstance(e, StdoutEvent)]) > 1
    last = events[-1]
    assert isinstance(last, ResultEvent) and last.result.stdout == printed and stream.result == last.result


def test_a_stream_that_is_left_ends_its_run() -> None:
    with belljar.stream("import time\nprint(1, flush=True)\ntime.sleep(600)", labels={"left": "yes"}) as stream:
        next(stream)
    for _ in range(200):
        left = belljar.history(label="left=yes")
        if left:
            break

        time.sleep(0.05)
    assert [run.status for run in left] == ["killed"]


def test_tools_of_a_single_run() -> None:
    def double(x: int) -> int:
        return 2 * x

    assert belljar.run("double(4) + n", tools=[double], globals={"n": 1}).value == 9


def test_the_same_for_code_that_awaits() -> None:
    async def main() -> None:
        results = await asyncio.gather(*[belljar.arun(f"print({n})") for n in range(5)])
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]
        async with belljar.AsyncClient() as client:
            async for event in client.stream("print(1)"):
                last = event
            assert isinstance(last, ResultEvent) and last.result.stdout == "1\n"
            with pytest.raises(belljar.SandboxTimeout):
                await client.run("while True: pass", timeout=0.2, check=True)

    asyncio.run(main())


def test_one_client_in_one_loop_after_the_other() -> None:
    client = belljar.AsyncClient()
    for n in range(3):
        assert asyncio.run(client.run(f"print({n})")).stdout == f"{n}\n"


def test_history_stats_and_what_went_wrong() -> None:
    result = belljar.run("def f(x):\n    return x['b']\nf({'a': 1})", labels={"about": "keys"})
    (summary,) = belljar.history(label="about=keys", since=datetime.timedelta(minutes=5))
    assert (summary.id, summary.status) == (result.id, "failed") and "KeyError" in str(summary.error)
    client = belljar.Client()
    record = client.record(result)
    assert record.code is not None and record.result is not None and record.result.stderr == result.stderr
    report = belljar.debug(result)
    assert report.error is not None and report.error.type == "KeyError" and report.error.line == 2
    assert [line.text for line in report.source if line.failing] == ["    return x['b']"]
    assert "KeyError" in str(report) and report.summary in str(report)
    stats = belljar.stats(label="about=keys")
    assert stats.runs == 1 and stats.by_status == {"failed": 1} and stats.wall_ms.p50 is not None
    assert len(client.history(limit=3)) == 3
    with pytest.raises(belljar.NotFound):
        client.record("run_" + "a" * 26)


def test_what_the_daemon_knows() -> None:
    assert any(runtime["name"] == "python" for runtime in belljar.runtimes())
    assert belljar.doctor()["ok"] is True


def test_no_daemon_where_one_is_said_to_be() -> None:
    with pytest.raises(belljar.Unavailable, match="cannot be reached"):
        belljar.Client("unix:///nowhere/belljar.sock").run("1")
    with pytest.raises(belljar.InvalidRequest, match="is not accepted"):
        belljar.Client("ftp://example.org")


@contextlib.contextmanager
def daemon_with(settings: str, state: str) -> Iterator[str]:
    """A daemon of its own; where it is."""
    with open(f"{state}/settings.toml", "w") as file:
        file.write(settings)
    serve = [os.environ["BELLJAR_BIN"], "serve", "--listen", "", "--unix", f"{state}/belljar.sock"]
    environment = {**os.environ, "BELLJAR_STATE_DIR": state, "BELLJAR_CONFIG": f"{state}/settings.toml"}
    own = subprocess.Popen(serve, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not os.path.exists(f"{state}/belljar.sock"):
            assert own.poll() is None, "the daemon did not start"
            time.sleep(0.02)
        yield f"unix://{state}/belljar.sock"
    finally:
        own.send_signal(signal.SIGTERM)
        own.wait(30)


def test_what_there_is_no_room_for_is_tried_again(state: str) -> None:
    with daemon_with("[sandboxes]\nmaximum = 1\n", state) as url:
        hasty, patient = belljar.Client(url, patience=0), belljar.Client(url)
        first = hasty.sandbox().start()
        with pytest.raises(belljar.Unavailable, match="in use") as caught:
            hasty.sandbox().start()
        assert caught.value.code == "overloaded" and caught.value.retry_after

        threading.Timer(0.5, first.close).start()
        with patient.sandbox() as second:
            assert second.run("1").value == 1


def test_patience_lasts_as_long_as_others_get_in(state: str) -> None:
    """One core, a line that is left at once, runs that take longer than anybody would wait: with tools and without."""

    async def slow(n: int) -> int:
        await asyncio.sleep(1)
        return n * n

    async def main(url: str) -> None:
        client = belljar.AsyncClient(url, patience=6)

        async def one(n: int, code: str) -> object:
            async with client.sandbox(memory="48m", cpus=1, tools=[slow] if "slow" in code else None) as sandbox:
                return (await sandbox.run(code)).value

        codes = [f"await slow({n})" if n % 2 else f"import time; time.sleep(1); {n} ** 2" for n in range(10)]
        answers = await asyncio.gather(*[one(n, code) for n, code in enumerate(codes)])
        assert answers == [n * n for n in range(10)]

        # With nobody else getting in, it ends.
        async with client.sandbox(memory="48m", cpus=1) as busy, client.sandbox(memory="48m", tools=[slow]) as other:
            going = busy.stream("print(1, flush=True)\nimport time\ntime.sleep(60)")
            assert (await going.__anext__()).type == "stdout"
            with pytest.raises(belljar.Unavailable) as caught:
                await other.run("await slow(1)")
            assert caught.value.code == "overloaded" and "takes all processors" in str(caught.value)
            await going.aclose()

    with daemon_with('[budget]\ncpus = 1\nqueue_timeout = "100ms"\n', state) as url:
        asyncio.run(asyncio.wait_for(main(url), 180))


def test_files_that_come_back_with_the_result() -> None:
    code = "open('a.txt', 'w').write('text'); open('b.bin', 'wb').write(b'\\xff'); open('c.log', 'w').write('no')"
    result = belljar.run(code, collect=["*.txt", "*.bin"])
    assert {file.path: file.content for file in result.files} == {"a.txt": b"text", "b.bin": b"\xff", "c.log": None}
    with_tools = belljar.run(code + "\nf()", collect=["*.txt"], tools={"f": lambda: 1})
    assert [file.text for file in with_tools.files if file.content is not None] == ["text"] and with_tools.value == 1


def test_what_the_code_tried_to_reach() -> None:
    code = "import socket\nsocket.create_connection(('example.invalid', 80))"
    result = belljar.run(code, network=["example.org"])
    assert not result.success
    assert [(each.host, each.allowed) for each in result.connections] == [("example.invalid", False)]
