#!/usr/bin/env python3
"""Which functions `belljar run` goes through, and then a daemon's runs, in the order in which they first run.

The linker lays these close together (see crates/cli/build.rs). The program has some thirteen megabytes of code, of which a run
needs one: where they are scattered, a run has a hundred page faults more, in each of its processes, and a daemon's finds less of it in
the processor's caches.

Every function gets a breakpoint, which goes away when it is met, in the traced program and in all that it forks.

    bench/order.py [--belljar PROGRAM]              writes crates/cli/link-order.txt
    bench/order.py [--belljar PROGRAM] --check      whether the program still has the functions that are named there

The compiler's names change with its version and with what is depended on: then they have to be found again.
"""

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ORDER = HERE.parent / "crates/cli/link-order.txt"
COMPILED_BY = "# "
ENOUGH = 0.75
TRACEME, CONT, DETACH, GETREGS, SETREGS, SETOPTIONS = 0, 7, 17, 12, 13, 0x4200
FOLLOW = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 20  # forks, vforks, clones, exec; nobody outlives us
EVENT_EXEC = 4
ALL_CHILDREN = 0x40000000
BREAKPOINT = b"\xcc"
RIP = 16 * 8
REGISTERS = 27 * 8

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long

RUNS = [
    ["run", "-c", "pass"],
    ["run", "-l", "bash", "-c", ":"],
    ["run", "-l", "c", "-c", "int main(void) { return 0; }"],
    ["run", "--json", "-c", "print(1)"],
]
TOKEN = "token-of-the-order"
PATIENCE = 120


def functions(program: str) -> dict[int, str]:
    listed = subprocess.run(["nm", "--defined-only", program], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in listed.splitlines())
    return {int(row[0], 16): row[2] for row in rows if len(row) == 3 and row[1] in "tTwW"}


class Trace:
    """The functions that a command and what it forks have entered."""

    def __init__(self, program: str, names: dict[int, str], text: bytes, start: int) -> None:
        self.program, self.names, self.text, self.start = program, names, text, start
        self.met: dict[int, None] = {}

    def run(self, argv: list[str], env: dict[str, str] | None = None, client: int | None = None) -> None:
        first = os.fork()
        if first == 0:
            libc.ptrace(TRACEME, 0, None, None)
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.execve(self.program, [self.program, *argv], os.environ | (env or {}))
        os.waitpid(first, 0)
        libc.ptrace(SETOPTIONS, first, None, FOLLOW)
        self.arm(first)
        libc.ptrace(CONT, first, None, None)
        while True:
            try:
                pid, status = os.waitpid(-1, ALL_CHILDREN)
            except ChildProcessError:
                return
            if os.WIFSTOPPED(status):
                self.stopped(pid, os.WSTOPSIG(status), status >> 16)
            elif pid in (first, client) and status != 0:
                who = f"belljar {' '.join(argv)}" if pid == first else "its client"
                sys.exit(f"{who} ended with {os.waitstatus_to_exitcode(status)}")

    def arm(self, pid: int) -> None:
        armed = bytearray(self.text)
        for address in self.names:
            armed[address - self.start : address - self.start + 1] = BREAKPOINT
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(self.start)
            memory.write(armed)

    def stopped(self, pid: int, number: int, event: int) -> None:
        if event == EVENT_EXEC:
            libc.ptrace(DETACH, pid, None, None)
            return
        deliver = number
        if event or number == signal.SIGSTOP:
            deliver = 0
        elif number == signal.SIGTRAP:
            self.meet(pid)
            deliver = 0
        libc.ptrace(CONT, pid, None, deliver)

    def meet(self, pid: int) -> None:
        registers = ctypes.create_string_buffer(REGISTERS)
        if libc.ptrace(GETREGS, pid, None, registers) != 0:
            return
        at = int.from_bytes(registers.raw[RIP : RIP + 8], "little") - 1
        if at not in self.names:
            return
        self.met.setdefault(at)
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(at)
            memory.write(self.text[at - self.start : at - self.start + 1])
        registers[RIP : RIP + 8] = at.to_bytes(8, "little")
        libc.ptrace(SETREGS, pid, None, registers)


def serve(trace: Trace) -> None:
    """A daemon, and a client that ends it when it has had its answers."""
    with tempfile.TemporaryDirectory() as state:
        path = f"{state}/socket"
        client = os.fork()
        if client == 0:
            try:
                ask(path)
                os._exit(0)
            except BaseException as problem:
                print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
                os._exit(1)
        env = {"BELLJAR_STATE_DIR": state, "BELLJAR_TOKEN": TOKEN}
        trace.run(["serve", "--listen", "127.0.0.1:0", "--unix", path], env, client)


def ask(path: str) -> None:
    until = time.monotonic() + PATIENCE
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.1)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(path)
    daemon = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
    try:
        for _ in range(3):
            post(connection, "/v1/runs", {"code": "print(1)"})
            time.sleep(1)  # until the next one waits
        sandbox = post(connection, "/v1/sandboxes", {})["id"]
        for _ in range(3):
            post(connection, f"/v1/sandboxes/{sandbox}/runs", {"code": "print(1)\n1 + 1"})
    finally:
        os.kill(daemon, signal.SIGTERM)


def post(connection: socket.socket, path: str, body: dict) -> dict:
    text = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 20"):
        raise SystemExit(f"{path}: {answer[:500]!r}")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return json.loads(body)


def text_section(program: str) -> tuple[int, bytes]:
    listed = subprocess.run(["readelf", "-SW", program], check=True, capture_output=True, text=True).stdout
    row = next(line for line in listed.splitlines() if " .text " in line).split("]")[1].split()
    address, offset, size = (int(word, 16) for word in row[2:5])
    with open(program, "rb") as file:
        file.seek(offset)
        return address, file.read(size)


def find(program: str) -> None:
    start, text = text_section(program)
    names = {at: name for at, name in functions(program).items() if start <= at < start + len(text)}
    trace = Trace(program, names, text, start)
    for argv in RUNS:
        trace.run(argv)
    serve(trace)
    lines = [f"{COMPILED_BY}{compiler()}", *(names[at] for at in trace.met)]
    ORDER.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(trace.met)} of {len(names)} functions: {ORDER}")


def check(program: str) -> None:
    """Another compiler gives other names, which is nobody's fault; with the same one most have to be there."""
    lines = ORDER.read_text().splitlines()
    if lines[0] != f"{COMPILED_BY}{compiler()}":
        print(f"{ORDER.name} is for another compiler: {lines[0].removeprefix(COMPILED_BY)}")
        return
    there = set(functions(program).values())
    share = sum(name in there for name in lines[1:]) / len(lines[1:])
    print(f"{share:.0%} of the functions in {ORDER.name} are in the program")
    if share < ENOUGH:
        sys.exit(f"{ORDER.name} is out of date, and every run slower than it need be: bench/order.py finds it again; then build once more")


def compiler() -> str:
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent / "target/release/belljar"))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    (check if args.check else find)(args.belljar)


if __name__ == "__main__":
    main()
