"""Processes that were forked, at whatever moment."""

from __future__ import annotations

import pathlib

from test_daemon import run_python

# A child that hangs is ended by its alarm, and its status is not 0.
CHILD = """
import asyncio, os, signal, threading, time
import belljar
from belljar import daemon

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        work()
        os._exit(0)
    return child

def ended(child):
    return os.waitpid(child, 0)[1]
"""


def test_the_waiting_face_goes_on_in_a_child() -> None:
    code = """
def tool(x):
    return x + 1

async def main():
    assert (await belljar.arun("print(1)")).stdout == "1\\n"
    async with belljar.AsyncSandbox(tools=[tool]) as sandbox:
        assert (await sandbox.run("tool(1)")).value == 2

asyncio.run(main())
print(ended(in_child(lambda: asyncio.run(main()))))
"""
    assert run_python(CHILD + code) == "0"


def test_a_child_of_one_that_starts_the_daemon_waits_for_nobody(state: str) -> None:
    code = """
real = daemon._start
begun, go = threading.Event(), threading.Event()

def slowly(*args):
    with daemon._lock_file(daemon.state_directory() / "lock") as descriptor:
        daemon.fcntl.flock(descriptor, daemon.fcntl.LOCK_EX)
        begun.set()
        go.wait()
    return real(*args)

daemon._start = slowly
thread = threading.Thread(target=lambda: belljar.run("1", check=True))
thread.start()
begun.wait()
daemon._start = real
children = [in_child(lambda: time.sleep(15)), in_child(lambda: belljar.run("1", check=True))]
go.set()
thread.join()
print(ended(children[1]), os.waitpid(children[0], os.WNOHANG)[0])
os.kill(children[0], signal.SIGKILL)
"""
    assert run_python(CHILD + code, BELLJAR_STATE_DIR=state) == "0 0"


def test_what_is_locked_is_free_again_whoever_was_forked(tmp_path: pathlib.Path) -> None:
    code = f"""
import fcntl, pathlib
path = pathlib.Path({str(tmp_path)!r}, "lock")
with daemon._lock_file(path) as descriptor:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    daemon._locks.clear()  # as if it was forked before it was known
    child = in_child(lambda: time.sleep(30))
with path.open() as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.kill(child, signal.SIGKILL)
read, write = os.pipe()
maker = os.fork()
if maker == 0:
    with daemon._lock_file(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(write, str(in_child(lambda: time.sleep(30))).encode())
        os._exit(0)  # it ends without a word, and its child goes on
os.waitpid(maker, 0)
child = int(os.read(read, 20))
with path.open() as file:
    for _ in range(500):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("free")
            break
        except BlockingIOError:
            time.sleep(0.01)
os.kill(child, signal.SIGKILL)
"""
    assert run_python(CHILD + code) == "free"
