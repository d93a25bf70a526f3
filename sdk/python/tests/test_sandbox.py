"""Sandboxes that are kept."""

from __future__ import annotations

import asyncio
import io
import pathlib
import tarfile
import threading
import time
from collections.abc import Iterator

import pytest

import belljar
from belljar.events import DisplayEvent, ResultEvent, StdoutEvent, ToolCallEvent


def test_variables_and_files_are_kept() -> None:
    with belljar.Sandbox(memory="256m", timeout=10) as sandbox:
        sandbox.run("x = 41")
        assert sandbox.run("x + 1").value == 42
        assert sandbox.run("x + y", globals={"y": 2}).value == 43
        sandbox.run("open('a.txt', 'w').write('hello')")
        assert sandbox.shell("cat a.txt").stdout == "hello"
        assert sandbox.exec(["sh", "-c", "exit 4"]).exit_code == 4
        assert sandbox.shell("cat; echo $A; pwd", stdin="in\n", env={"A": "b"}, cwd="/tmp").stdout == "in\nb\n/tmp\n"
        assert sandbox.info().limits.memory_bytes == 256 << 20
        sandbox.reset()
        assert "NameError" in sandbox.run("x").stderr
        assert sandbox.files.list() == []
        id = sandbox.id
    with pytest.raises(belljar.NotFound):
        belljar.Client().attach(id).info()
    with pytest.raises(belljar.BelljarError, match="closed"):
        sandbox.run("1")


def test_values_are_what_they_were() -> None:
    code = (
        "{'b': b'\\xff', 'n': 2**70, 'f': float('inf'), 'd': {(1, 2): 3}, 's': 'x', 'l': [1, None, True], 'o': object}"
    )
    with belljar.Sandbox() as sandbox:
        sandbox.run("v = " + code.replace(", 'o': object", ""))
        assert sandbox.run("v").value == {
            "b": b"\xff",
            "n": 2**70,
            "f": float("inf"),
            "d": {(1, 2): 3},
            "s": "x",
            "l": [1, None, True],
        }
        nothing = sandbox.run("object")
        assert nothing.value is None and nothing.value_text == "<class 'object'>"


GIVEN = {
    "bytes": b"\xff\x00",
    "large": 2**70,
    "small": -(2**64),
    "infinite": [float("inf"), float("-inf")],
    "keys": {1: "a", (1, (2,)): b"x", None: [1.5, b""]},
    "marked": {"$bytes": "text"},
    "plain": {"a": [1, None, True, "é", {"b": {}}]},
}


def test_values_of_ours_arrive_as_what_they_are() -> None:
    def echo(value: object) -> object:
        return value

    with belljar.Sandbox(tools=[echo]) as sandbox:
        checks = (
            "assert bytes_ == b'\\xff\\x00' and keys[(1, (2,))] == b'x' and keys[None] == [1.5, b''] and 1 in keys\n"
        )
        result = sandbox.run(
            f"{checks}[large, small, infinite, marked, nothing != nothing]",
            globals={"bytes_": GIVEN["bytes"], "nothing": float("nan"), **{k: GIVEN[k] for k in GIVEN if k != "bytes"}},
            check=True,
        )
        assert result.value == [2**70, -(2**64), GIVEN["infinite"], GIVEN["marked"], True]
        # The same through a tool, there and back.
        for value in GIVEN.values():
            assert sandbox.run("echo(value) == value", globals={"value": value}, check=True).value is True
            assert sandbox.run("echo(value)", globals={"value": value}).value == value
        lists = sandbox.run("value", globals={"value": ((1, 2), {3}, range(2), bytearray(b"a"))}).value
        assert lists == [[1, 2], [3], [0, 1], b"a"]
    assert belljar.run("print(data)", globals={"data": b"\x00"}).stdout == "b'\\x00'\n"
    with belljar.Sandbox(language="javascript") as sandbox:
        code = "[Buffer.isBuffer(b), b, n, m.get(1)]"
        assert sandbox.run(code, globals={"b": b"\xff", "n": 2**70, "m": {1: "a"}}).value == [True, b"\xff", 2**70, "a"]


def test_errors_say_where() -> None:
    with belljar.Sandbox() as sandbox:
        result = sandbox.run("def f():\n    raise KeyError('k')\n\nf()")
        assert result.error is not None
        assert (result.error.type, result.error.line) == ("KeyError", 2)
        assert str(result.error).startswith("Traceback")
        with pytest.raises(belljar.RunFailed, match="KeyError") as caught:
            result.check()
        assert '  File "main.py", line 2, in f' in str(caught.value)
        assert sandbox.run("1").success


def test_modules_that_may_be_imported() -> None:
    with belljar.Sandbox(imports=["math"]) as sandbox:
        assert sandbox.run("import math; math.floor(2.5)").value == 2
        with pytest.raises(belljar.ImportNotAllowed, match="Import 'os' not allowed") as caught:
            sandbox.run("import os", check=True)
        assert isinstance(caught.value, ImportError)


def test_events_with_calls_and_pictures() -> None:
    png = "b'\\x89PNG\\r\\n\\x1a\\n'"
    code = f"print('a', flush=True)\nf(1, x=2)\nclass P:\n    def _repr_png_(self): return {png}\ndisplay(P())\n7"
    with belljar.Sandbox(tools={"f": lambda n, x: n}) as sandbox:
        events = list(sandbox.stream(code))
        kinds = [event.type for event in events]
        assert kinds[-1] == "result" and {"stdout", "tool_call", "display"} <= set(kinds)
        call = next(event for event in events if isinstance(event, ToolCallEvent))
        assert (call.tool, call.args, call.kwargs) == ("f", (1,), {"x": 2})
        shown = next(event for event in events if isinstance(event, DisplayEvent))
        assert shown.display.mime == "image/png" and shown.display.data.startswith(b"\x89PNG")
        last = events[-1]
        assert isinstance(last, ResultEvent) and last.result.value == 7 and last.result.png == shown.display.data
        # And without tools, over another way.
        plain = [event for event in sandbox.stream("print(1)", tools={}) if isinstance(event, StdoutEvent)]
        assert [event.text for event in plain] == ["1\n"]
        assert [e.text for e in sandbox.stream_shell("echo hi") if isinstance(e, StdoutEvent)] == ["hi\n"]


def test_a_stream_that_is_left_is_interrupted() -> None:
    for tools in ({}, {"f": lambda: 1}):
        with belljar.Sandbox(tools=tools) as sandbox:
            with sandbox.stream("import time\nprint(1, flush=True)\ntime.sleep(600)") as stream:
                assert next(stream).type == "stdout"
            begun = time.monotonic()
            assert sandbox.run("2").value == 2
            assert time.monotonic() - begun < 30


def test_interrupt_from_elsewhere() -> None:
    with belljar.Sandbox() as sandbox:
        sandbox.run("x = 1")
        with sandbox.stream("import time\nprint(1, flush=True)\ntime.sleep(600)") as stream:
            assert next(stream).type == "stdout"
            belljar.Sandbox.attach(sandbox.id).interrupt()
            result = stream.until_done()
        assert result.status == "killed" and result.state == "kept"
        assert sandbox.run("x").value == 1


def test_a_task_that_is_cancelled_stops_the_run() -> None:
    async def main() -> None:
        for tools in (None, {"f": lambda: 1}):
            async with belljar.AsyncSandbox(tools=tools) as sandbox:
                await sandbox.run("x = 1")
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(sandbox.run("import time; time.sleep(600)"), 0.3)
                assert (await asyncio.wait_for(sandbox.run("x"), 30)).value == 1

    asyncio.run(main())


def test_what_was_lost_is_told() -> None:
    with belljar.Sandbox() as sandbox:
        sandbox.run("x = 1")
        ended = sandbox.run("import os; os._exit(5)")
        assert ended.state == "lost" and not ended.success
        assert "NameError" in sandbox.run("x").stderr


def test_files() -> None:
    with belljar.Sandbox(files={"in.txt": "text"}) as sandbox:
        files = sandbox.files
        assert files.read_text("in.txt") == "text"
        assert files.write("d/ä b.bin", b"\x00\xff").bytes == 2
        assert files.read("d/ä b.bin") == b"\x00\xff"
        files.write("big", (bytes([n]) * 100_000 for n in range(30)))
        assert b"".join(files.stream("big")) == b"".join(bytes([n]) * 100_000 for n in range(30))
        files.write("from-file", io.BytesIO(b"opened"))
        assert files.read("from-file") == b"opened"
        assert files.mkdir("e/f").is_directory
        assert [entry.path for entry in files.list()] == ["big", "d", "e", "from-file", "in.txt"]
        assert "d/ä b.bin" in [entry.path for entry in files.list(depth=1) if entry.is_file]
        assert files.exists("d/ä b.bin") and not files.exists("d/none") and not files.exists("no/such")
        files.delete("d")
        with pytest.raises(belljar.NotFound):
            files.read("d/ä b.bin")
        with pytest.raises(belljar.InvalidRequest):
            files.read("../etc/passwd")


@pytest.mark.parametrize("workdir", [None, "/srv/data"])
def test_paths_as_code_inside_has_them(workdir: str | None) -> None:
    with belljar.Sandbox(workdir=workdir) as sandbox:  # type: ignore[arg-type]
        top = sandbox.run("import os; os.getcwd()").value
        assert top == (workdir or "/workspace")
        files = sandbox.files
        files.write(f"{top}/d/a", "1")
        assert files.read("d/a") == files.read(f"{top}/d/a") == files.read(pathlib.PurePosixPath(top, "d", "a")) == b"1"
        assert files.exists(f"{top}/d/a") and not files.exists(f"{top}/a")
        assert [entry.path for entry in files.list(top)] == ["d"]
        assert [entry.path for entry in files.list(f"{top}/d")] == ["d/a"]
        files.unpack(files.archive(f"{top}/d"), f"{top}/e")
        files.delete(f"{top}/d")
        assert [entry.path for entry in files.list(f"{top}/")] == ["e"]
        for path in (f"{top}/../etc/passwd", f"{top}2/x", "/etc/passwd"):
            with pytest.raises(belljar.InvalidRequest):
                files.read(path)
        with pytest.raises(belljar.InvalidRequest, match="path: int is not accepted"):
            files.read(5)  # type: ignore[arg-type]


def test_archives_both_ways(tmp_path: object) -> None:
    with belljar.Sandbox(files={"a/x": "1", "a/y": "2", "b": "3"}) as sandbox:
        packed = sandbox.files.archive("a")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            assert sorted(archive.getnames()) == ["a/x", "a/y"] or sorted(archive.getnames()) == ["x", "y"]
        sandbox.files.unpack(packed, "c")
        assert {"c"} <= {entry.path for entry in sandbox.files.list()}
        assert any(entry.path.endswith("/x") for entry in sandbox.files.list("c", depth=3))
        assert b"".join(sandbox.files.archive_stream()) != b""


def test_download_and_upload(tmp_path: object) -> None:
    place = pathlib.Path(str(tmp_path))
    (place / "up").write_bytes(b"u" * 1_000_000)
    with belljar.Sandbox() as sandbox:
        sandbox.files.upload(place / "up", "there")
        sandbox.files.download("there", place / "down")
    assert (place / "down").read_bytes() == b"u" * 1_000_000


class Pieces:
    def __init__(self, *pieces: object) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[object]:
        return iter(self.pieces)


@pytest.mark.parametrize("face", ["blocking", "waiting"])
def test_what_a_file_may_be_made_of(face: str, tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("glass é")

    async def waiting(data: object) -> bytes:
        async with belljar.AsyncSandbox() as sandbox:
            await sandbox.files.write("a", data)  # type: ignore[arg-type]
            return await sandbox.files.read("a")

    def written(data: object) -> bytes:
        if face == "waiting":
            return asyncio.run(waiting(data))
        with belljar.Sandbox() as sandbox:
            sandbox.files.write("a", data)  # type: ignore[arg-type]
            return sandbox.files.read("a")

    with open(mine, encoding="utf-8") as opened:
        for data in (mine, opened, io.StringIO("glass é"), Pieces("glass ", "é".encode(), bytearray())):
            assert written(data).decode() == "glass é"
    for wrong in (None, 5, {"a": b""}, Pieces(b"a", 1)):
        with pytest.raises(belljar.InvalidRequest, match="give text"):
            written(wrong)


def test_a_download_that_fails_leaves_what_was_there(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "important.txt"
    mine.write_text("important")
    mine.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(mine)
    with belljar.Sandbox(files={"a": "new"}) as sandbox:
        for name in (mine, link, tmp_path / "none"):
            with pytest.raises(belljar.NotFound):
                sandbox.files.download("missing", name)
        assert mine.read_text() == "important"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["important.txt", "link"]
        sandbox.files.download("a", link)
        assert mine.read_text() == "new" and link.is_symlink() and mine.stat().st_mode & 0o777 == 0o640
        sandbox.files.download("a", "/dev/null")
        assert pathlib.Path("/dev/null").is_char_device()
        with pytest.raises(IsADirectoryError):
            sandbox.files.download("a", tmp_path)


def test_files_for_code_that_awaits() -> None:
    async def pieces() -> object:
        for n in range(3):
            yield bytes([n]) * 10

    async def main() -> None:
        async with belljar.AsyncSandbox() as sandbox:
            await sandbox.files.write("p", pieces())
            assert await sandbox.files.read("p") == b"".join([piece async for piece in pieces()])
            await sandbox.files.write("q", io.BytesIO(b"q" * 1_000_000))
            assert len(b"".join([piece async for piece in sandbox.files.stream("q")])) == 1_000_000

    asyncio.run(main())


def test_usage_more_time_and_history() -> None:
    with belljar.Sandbox(name="it", labels={"k": "v"}) as sandbox:
        sandbox.run("x = 'y' * 5_000_000", check=True)
        usage = sandbox.usage()
        assert usage.now.memory_bytes > 1_000_000 and usage.limits.cpus > 0
        assert sandbox.renew(idle_timeout="10m", lifetime=3600).idle_timeout_ms == 600_000
        assert [info.id for info in belljar.Client().sandboxes(name="it", label="k=v")] == [sandbox.id]
        assert [run.status for run in sandbox.history()] == ["ok"]
        again = belljar.Sandbox.attach(sandbox.id)
        assert again.run("len(x)").value == 5_000_000
        again.close()
        assert sandbox.run("1").value == 1


def test_other_languages_keep_state() -> None:
    with belljar.Sandbox(language="javascript", tools={"add": lambda a, b: a + b}) as sandbox:
        sandbox.run("var x = 20")
        assert sandbox.run("await add(x, 22)").value == 42


def test_a_terminal() -> None:
    with belljar.Sandbox() as sandbox, sandbox.terminal(rows=30, cols=100) as terminal:
        terminal.send("stty size; echo a$((40 + 2))b\r")
        shown = terminal.read_until("a42b", timeout=30)
        assert b"30 100" in shown
        terminal.resize(40, 120)
        terminal.send("stty size; exit 3\r")
        rest = b"".join(terminal)
        assert b"40 120" in rest and terminal.exit_code == 3


def test_a_terminal_for_code_that_awaits() -> None:
    async def main() -> None:
        async with belljar.AsyncSandbox() as sandbox, sandbox.terminal("read x; echo got $x") as terminal:
            await terminal.send("it\r")
            assert b"got it" in b"".join([piece async for piece in terminal])
            assert terminal.exit_code == 0

    asyncio.run(main())


def test_a_sandbox_that_is_gone() -> None:
    client = belljar.Client()
    with belljar.Sandbox(tools={"f": lambda: 1}) as sandbox:
        assert sandbox.run("f()").value == 1
        client.attach(sandbox.id).delete()
        with pytest.raises(belljar.BelljarError):
            sandbox.run("f()")


def test_many_threads_with_one_sandbox() -> None:
    values: list[object] = []
    with belljar.Sandbox(tools={"f": lambda n: n}) as sandbox:
        threads = [
            threading.Thread(target=lambda n=n: values.append(sandbox.run(f"f({n})").value))  # type: ignore[misc]
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(values) == list(range(8))  # type: ignore[type-var]


def test_a_connection_that_breaks_is_made_again() -> None:
    async def main() -> None:
        async def slow(n: int) -> int:
            if n == 1:
                # The answer to this call finds no connection, and the events after it come over the next one.
                sandbox._channel._websocket.transport.abort()  # type: ignore[union-attr]
            await asyncio.sleep(0.2)
            return n * 10

        async with belljar.AsyncSandbox(tools=[slow]) as sandbox:
            code = "total = 0\nfor n in range(4):\n    total += await slow(n)\n    print(n, flush=True)\ntotal"
            result = await asyncio.wait_for(sandbox.run(code), 60)
            assert (result.value, result.stdout) == (60, "0\n1\n2\n3\n")
            assert (await sandbox.run("await slow(5)")).value == 50

    asyncio.run(main())


def test_a_connection_that_breaks_between_runs() -> None:
    with belljar.Sandbox(tools={"f": lambda: 1}) as sandbox:
        assert sandbox.run("f()").value == 1
        assert sandbox._channel is not None and sandbox._channel._websocket is not None
        sandbox._channel._websocket.socket.shutdown(2)
        time.sleep(0.2)
        assert sandbox.run("f() + 1").value == 2


def test_what_the_daemon_cannot_read_is_told() -> None:
    with belljar.Sandbox(tools={"f": lambda: 1}) as sandbox:
        assert sandbox.run("f()").value == 1
        assert sandbox._toolbox is not None
        sandbox._toolbox.specs[0]["of a later version"] = 1
        with pytest.raises(belljar.InvalidRequest, match="of a later version"):
            sandbox.run("f()")
        del sandbox._toolbox.specs[0]["of a later version"]
        assert sandbox.run("f()").value == 1
