"""The user's own daemon: started once, replaced when it has to be, gone when nobody needs it."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

import belljar
from belljar import daemon

SOURCE = pathlib.Path(belljar.__file__).parent.parent


def run_python(code: str, **environment: str) -> str:
    """What another process prints, which has the package but has not used it yet."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_until(holds: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


PEER = "import belljar.daemon as d; print(d._peer(d.ensure()))"


def test_racing_processes_get_one_daemon(state: str) -> None:
    code = (
        "import belljar, belljar.daemon as d; r = belljar.run('print(7)'); print(r.stdout.strip(), d._peer(d.ensure()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "BELLJAR_STATE_DIR": state}
    racing = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    told = [process.communicate(timeout=120)[0].split() for process in racing]
    assert len({pid for _, pid in told}) == 1 and all(answer == "7" for answer, _ in told), told
    listening = pathlib.Path(f"/proc/{told[0][1]}/cmdline").read_bytes().split(b"\0")
    assert b"serve" in listening and b"--idle-exit" in listening


def test_it_outlives_the_process_that_started_it_and_leaves_when_idle(state: str) -> None:
    first = run_python(PEER, BELLJAR_STATE_DIR=state, BELLJAR_IDLE_EXIT="10s")
    assert run_python(PEER, BELLJAR_STATE_DIR=state) == first
    wait_until(lambda: not pathlib.Path(f"{state}/belljar.sock").exists())
    wait_until(lambda: not pathlib.Path(f"/proc/{first}").exists())
    assert run_python("import belljar; print(belljar.run('print(1)').stdout)", BELLJAR_STATE_DIR=state) == "1"


def test_a_stale_socket_is_replaced(state: str) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{state}/belljar.sock")
    assert run_python("import belljar; print(belljar.run('print(1)').stdout)", BELLJAR_STATE_DIR=state) == "1"


def test_one_that_crashed_is_replaced_also_for_those_who_knew_it(state: str) -> None:
    code = """
import belljar, belljar.daemon as d, os, signal, time
assert belljar.run("print(1)").success
first = d._peer(d.ensure())
os.kill(first, signal.SIGKILL)
while d._peer(str(d.state_directory() / "belljar.sock")) is not None: time.sleep(0.01)
assert belljar.run("print(2)").stdout == "2\\n"
print(first != d._peer(d.ensure()))
"""
    assert run_python(code, BELLJAR_STATE_DIR=state) == "True"


def test_an_older_one_of_ours_is_replaced_and_a_newer_one_used(state: str) -> None:
    first = run_python(PEER, BELLJAR_STATE_DIR=state)
    same = "import belljar.daemon as d; d.VERSION = '0.0.1'; print(d._peer(d.ensure()))"
    assert run_python(same, BELLJAR_STATE_DIR=state) == first
    newer = (
        "import belljar.daemon as d; d.VERSION = '99.0.0'; a = d._peer(d.ensure()); print(a, a == d._peer(d.ensure()))"
    )
    second, again = run_python(newer, BELLJAR_STATE_DIR=state).split()
    assert second != first and again == "True"
    # Its program is still older than that package, and so would be any other that it could start.
    assert run_python(newer, BELLJAR_STATE_DIR=state).split() == [second, "True"]
    newest = newer.replace("99.0.0", "99.0.1")
    third, _ = run_python(newest, BELLJAR_STATE_DIR=state).split()
    assert third != second
    # Of those that were started before packages said which they are, the program's version counts alone.
    pathlib.Path(state, "embedded.version").unlink()
    assert run_python(newest, BELLJAR_STATE_DIR=state).split()[0] != third
    wait_until(lambda: not pathlib.Path(f"/proc/{first}").exists())


def test_one_that_somebody_else_started_is_left_alone(state: str) -> None:
    serve = [os.environ["BELLJAR_BIN"], "serve", "--listen", "", "--unix", f"{state}/belljar.sock"]
    own = subprocess.Popen(serve, env={**os.environ, "BELLJAR_STATE_DIR": state}, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: daemon._peer(f"{state}/belljar.sock") is not None)
        newer = "import belljar.daemon as d; d.VERSION = '99.0.0'; print(d._peer(d.ensure()))"
        assert run_python(newer, BELLJAR_STATE_DIR=state) == str(own.pid)
    finally:
        own.send_signal(signal.SIGTERM)
        own.wait(30)


def test_a_daemon_that_cannot_start_says_why(state: str) -> None:
    pathlib.Path(state, "settings.toml").write_text("nonesuch = 1\n")
    code = "import belljar\ntry:\n    belljar.run('1')\nexcept belljar.Unavailable as e:\n    print(e)"
    told = run_python(code, BELLJAR_STATE_DIR=state, BELLJAR_CONFIG=f"{state}/settings.toml")
    assert "did not start" in told and "nonesuch" in told


def test_paths_may_be_relative(state: str, tmp_path: pathlib.Path) -> None:
    pathlib.Path(state, "settings.toml").write_text("")
    program = os.path.relpath(os.environ["BELLJAR_BIN"], os.path.dirname(state))
    name = os.path.basename(state)
    code = f"""
import os; os.chdir({os.path.dirname(state)!r})
import belljar, belljar.daemon as d
print(belljar.run('print(1)').stdout.strip(), d.ensure())
os.chdir({str(tmp_path)!r})
with belljar.Sandbox(tools=[len]) as sandbox:
    print(sandbox.run("len('ab')").value)
"""
    config = f"{name}/settings.toml"
    told = run_python(code, BELLJAR_STATE_DIR=name, BELLJAR_CONFIG=config, BELLJAR_BIN=program)
    assert told == f"1 {state}/belljar.sock\n2"
    assert list(tmp_path.iterdir()) == []


def test_one_that_does_not_listen_in_time_is_ended(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = pathlib.Path(state, "belljar")
    mute.write_text(f"#!/bin/sh\necho $$ >{state}/pid\necho waits for something >&2\nexec sleep 600\n")
    mute.chmod(0o755)
    monkeypatch.setenv("BELLJAR_STATE_DIR", state)
    monkeypatch.setattr(daemon, "binary", lambda: str(mute))
    monkeypatch.setattr(daemon, "_PATIENCE", 0.5)
    with pytest.raises(belljar.Unavailable, match="waits for something"):
        daemon.ensure()
    pid = pathlib.Path(state, "pid").read_text().strip()
    wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists())


def test_paths_may_have_signs_that_addresses_have(state: str) -> None:
    code = """
import belljar, os
print(belljar.run("print(1)").stdout.strip())
with belljar.Sandbox(tools={"f": lambda: 2}) as sandbox:
    print(sandbox.run("f()").value)
print(len(belljar.Client(f"unix://{os.environ['BELLJAR_STATE_DIR']}/belljar.sock").sandboxes()))
"""
    place = f"{state}/a #b?c%41;é"
    try:
        assert run_python(code, BELLJAR_STATE_DIR=place).split() == ["1", "2", "0"]
    finally:
        peer = daemon._peer(f"{place}/belljar.sock")
        if peer is not None:
            os.kill(peer, signal.SIGTERM)
            wait_until(lambda: daemon._peer(f"{place}/belljar.sock") is None)


@pytest.mark.parametrize("path", ["/proc/nonesuch", "/dev/null/state"])
def test_a_state_directory_that_cannot_be(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_STATE_DIR", path)
    with pytest.raises(belljar.Unavailable, match="set BELLJAR_STATE_DIR"):
        daemon.ensure()


def test_where_the_program_is(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(directory: str) -> str:
        (tmp_path / directory).mkdir()
        path = tmp_path / directory / "belljar"
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(empty))
    monkeypatch.delenv("BELLJAR_BIN")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(belljar.Unavailable, match="was not found"):
        daemon.binary()
    on_path = program("path")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert daemon.binary() == on_path
    named = program("named")
    monkeypatch.setenv("BELLJAR_BIN", named)
    assert daemon.binary() == named
    packaged = program("scripts")
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path / "scripts"))
    assert daemon.binary() == packaged
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(empty))
    for none in (tmp_path / "none", tmp_path):
        monkeypatch.setenv("BELLJAR_BIN", str(none))
        with pytest.raises(belljar.Unavailable, match="which is no program"):
            daemon.binary()


def test_python_m_belljar_is_the_command() -> None:
    command = [sys.executable, "-m", "belljar", "run", "-c", "import sys; print('out'); sys.exit(3)"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert (done.stdout, done.returncode) == ("out\n", 3), done.stderr


def test_a_daemon_elsewhere_with_a_key(state: str) -> None:
    serve = [os.environ["BELLJAR_BIN"], "serve", "--listen", "127.0.0.1:0", "--unix", ""]
    environment = {**os.environ, "BELLJAR_STATE_DIR": state, "BELLJAR_TOKEN": "bj_a_secret_that_is_long_enough"}
    own = subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert own.stdout is not None
        url = own.stdout.readline().split()[3]
        client = belljar.Client(url, token="bj_a_secret_that_is_long_enough")
        assert client.run("print(1)").stdout == "1\n"
        with client.sandbox(tools={"f": lambda: 5}) as sandbox:
            assert sandbox.run("f()").value == 5
        with pytest.raises(belljar.BelljarError, match="not known here"):
            belljar.Client(url, token="wrong").run("1")
        code = "import belljar; print(belljar.run('print(2)').stdout)"
        assert run_python(code, BELLJAR_URL=url, BELLJAR_TOKEN="bj_a_secret_that_is_long_enough") == "2"
    finally:
        own.send_signal(signal.SIGTERM)
        own.wait(30)


def test_what_a_program_forgot_is_deleted_when_it_ends() -> None:
    code = """
import belljar, asyncio
sandbox = belljar.Sandbox(name="forgotten"); sandbox.start()
async def main():
    global other
    other = await belljar.AsyncSandbox(name="forgotten").start()
asyncio.run(main())
"""
    run_python(code)
    # It does not wait for an answer for long.
    wait_until(lambda: belljar.Client().sandboxes(name="forgotten") == [])


FORGETTING = """
import asyncio, belljar, gc, os, time
client = belljar.Client()

def gone(name):
    end = time.monotonic() + 30
    while client.sandboxes(name=name):
        assert time.monotonic() < end, name
        time.sleep(0.02)

def blocking():
    for tools in (None, [len]):
        sandbox = belljar.Sandbox(name="dropped", tools=tools)
        assert sandbox.run("1").value == 1
    # Attached ones are somebody else's, and what is used is there.
    belljar.Sandbox.attach(sandbox.id).run("1")
    files = belljar.Sandbox(name="dropped").files
    gc.collect()
    files.write("a", "b")
    assert files.read("a") == b"b"
    assert [event.type for event in belljar.Sandbox(name="dropped").stream("1")] == ["result"]

async def waiting():
    for tools in (None, [len]):
        sandbox = belljar.AsyncSandbox(name="dropped", tools=tools)
        assert (await sandbox.run("1")).value == 1

blocking()
gone("dropped")
asyncio.run(waiting())  # its event loop is closed
gone("dropped")

kept = belljar.Sandbox(name="kept").start()
belljar.Sandbox.attach(kept.id).run("1")
child = os.fork()
if child == 0:
    del kept
    gc.collect()
    belljar.Sandbox(name="of the child").start()
    gone("of the child")
    time.sleep(0.3)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert kept.run("1").value == 1
with belljar.Sandbox(name="closed") as closed:
    pass
del closed
gc.collect()
import belljar._leftovers as leftovers
assert leftovers._forgotten.empty() and list(leftovers._left) == [kept.id]
circle = [belljar.Sandbox(name="at the end").start()]
circle.append(circle)
print("done")
"""


def test_what_nobody_refers_to_is_deleted() -> None:
    assert run_python(FORGETTING) == "done"
    for name in ("kept", "at the end"):
        wait_until(lambda name=name: belljar.Client().sandboxes(name=name) == [])  # type: ignore[misc]


def test_a_forked_process_may_use_tools_too() -> None:
    with belljar.Sandbox(tools={"f": lambda n: n + 1}) as sandbox:
        assert sandbox.run("f(1)").value == 2
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                right = [sandbox.run(f"f({n})").value for n in range(3)] == [1, 2, 3]
                sandbox.close()  # it is its parent's
                os._exit(0 if right else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [sandbox.run(f"f({n})").value for n in range(3)] == [1, 2, 3]


def test_a_forked_process_has_connections_of_its_own() -> None:
    with belljar.Sandbox() as sandbox:
        sandbox.run("x = 5")
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if sandbox.run("x + 1").value == 6 and belljar.run("print(1)").success else 1)
            except BaseException:
                os._exit(2)
        assert sandbox.run("x").value == 5
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sandbox.run("x").value == 5
