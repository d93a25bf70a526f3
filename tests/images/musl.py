#!/usr/bin/python3
"""Python from an image with musl in place of glibc: single runs, sessions, and copies of a warm interpreter.

Debian has no Python for musl, so one is built from Debian's source package with musl's compiler, in about two minutes, and kept in the
build directory.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median

LOADER = "/lib/ld-musl-x86_64.so.1"
SOURCE = "python3.11"
# Not needed to run programs, and most of the size.
LEFT_OUT = ["test", "idlelib", "tkinter", "lib2to3", "ensurepip", "turtledemo"]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def fetch(*command, **options):
    """`run`, for what comes from elsewhere: that may fail once."""
    for _ in range(2):
        try:
            return run(*command, **options)
        except SystemExit:
            time.sleep(5)
    return run(*command, **options)


def download(build: Path) -> Path:
    """The source, from where this machine has its packages."""
    def repositories():
        known = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages", "Origin: Debian")
        # The release itself will do: its updates are elsewhere, and not everywhere.
        return sorted({f"deb-src {line}\n" for line in known.splitlines() if "-" not in line.split()[1]})

    lines = repositories()
    if not lines:
        # A machine that has never looked does not know whose packages they are.
        fetch("apt-get", "-qq", "update")
        lines = repositories()
    if not lines:
        sys.exit("apt has no packages of a release of Debian's; add its repository to the sources of apt")
    (build / "sources.list").write_text("".join(lines))
    for name in ("lists/partial", "cache/archives/partial"):
        (build / name).mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={build}/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
           "-o", f"Dir::State::lists={build}/lists", "-o", f"Dir::Cache={build}/cache", "-o", "APT::Sandbox::User=root"]
    fetch(*apt, "update")
    fetch(*apt, "source", "--download-only", SOURCE, cwd=build)
    [archive] = build.glob("*.orig.tar.*")
    return archive


def compile_python(build: Path) -> Path:
    """The directory of a finished build."""
    finished = build / "finished"
    if finished.exists():
        return build / finished.read_text()
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    archive = download(build)
    run("tar", "-xf", archive, "-C", build)
    [source] = build.glob("Python-*")
    # The kernel's headers, which musl has none of; nothing else of the host's.
    headers = build / "headers"
    headers.mkdir()
    for name, place in {"linux": "/usr/include/linux", "asm-generic": "/usr/include/asm-generic", "asm": "/usr/include/x86_64-linux-gnu/asm"}.items():
        (headers / name).symlink_to(place)
    compiler = build / "cc"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *--print-multiarch*) echo x86_64-linux-musl; exit ;; esac\nexec musl-gcc -idirafter {headers} "$@"\n')
    compiler.chmod(0o755)
    setup = source / "setup.py"
    setup.write_text(setup.read_text().replace("    def add_multiarch_paths(self):", "    def add_multiarch_paths(self):\n        return", 1))
    run("./configure", "-q", f"CC={compiler}", "CFLAGS=-O0", "--disable-test-modules", "--without-ensurepip", "--without-static-libpython", cwd=source)
    makefile = source / "Makefile"
    lines = makefile.read_text().splitlines(keepends=True)
    makefile.write_text("".join(f"{line.split('=')[0]}=\n" if line.startswith(("MODULE_BINASCII_CFLAGS", "MODULE_BINASCII_LDFLAGS")) else line for line in lines))
    run("make", "-s", f"-j{os.cpu_count()}", cwd=source)
    finished.write_text(source.name)
    return source


def pack(source: Path, tar_path: Path) -> None:
    version = SOURCE.removeprefix("python")
    library = f"usr/local/lib/python{version}"
    [built] = source.glob("build/lib.linux-*")
    with tarfile.open(tar_path, "w") as tar:
        for directory in ("bin", "dev", "etc", "lib", "proc", "tmp", "usr/local/bin"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            tar.addfile(entry)
        tar.add("/usr/lib/x86_64-linux-musl/libc.so", LOADER.lstrip("/"))
        for name in (f"python{version}", "python3"):
            tar.add(source / "python", f"usr/local/bin/{name}")
        for path in sorted((source / "Lib").iterdir()):
            if path.name not in LEFT_OUT:
                tar.add(path, f"{library}/{path.name}", filter=lambda entry: None if "__pycache__" in entry.name else entry)
        for path in sorted(built.iterdir()):
            place = library if path.suffix == ".py" else f"{library}/lib-dynload"
            if path.is_file():
                tar.add(path, f"{place}/{path.name}")


class Tried:
    def __init__(self, belljar: str, state: str):
        self.belljar, self.env, self.count = belljar, {**os.environ, "BELLJAR_STATE_DIR": state}, 0

    def call(self, *arguments, stdin=""):
        return subprocess.run([self.belljar, *arguments], env=self.env, input=stdin, capture_output=True, text=True, timeout=120)

    def code(self, code, *options):
        done = self.call("run", "--json", "--image", "musl", *options, "-c", code)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def is_so(self, what, actual, expected):
        if actual != expected:
            sys.exit(f"{what}: {actual!r}, where {expected!r} was to come")
        self.count += 1


def single_runs(tried: Tried) -> None:
    result = tried.code("import sysconfig; print(sysconfig.get_config_var('MULTIARCH')); print('ld-musl' in open('/proc/self/maps').read())")
    tried.is_so("the C library", result["stdout"], "x86_64-linux-musl\nTrue\n")
    tried.is_so("status", result["status"], "ok")
    tried.is_so("no other root", tried.code("import os; print(os.path.exists('/usr/lib/x86_64-linux-gnu'))")["stdout"], "False\n")
    tried.is_so("memory", tried.code("b'x' * (256 << 20)", "--memory", "64m")["status"], "out_of_memory")
    tried.is_so("time", tried.code("while True: pass", "--timeout", "500ms")["status"], "timed_out")
    threads = "import threading\nt = threading.Thread(target=print, args=('from a thread',)); t.start(); t.join()"
    tried.is_so("threads", tried.code(threads)["stdout"], "from a thread\n")
    child = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout)"
    tried.is_so("processes", tried.code(child)["stdout"], "42\n\n")
    tried.is_so("the network", "PermissionError" in tried.code("import socket; socket.create_connection(('1.1.1.1', 53), 2)")["stderr"], True)
    refused = tried.code("import os", "--imports", "math")
    tried.is_so("imports", "Import 'os' not allowed" in json.dumps(refused), True)


def sessions(tried: Tried) -> None:
    lines = "x = 40\nx + 2\nimport asyncio\nawait asyncio.sleep(0.01, 'waited')\n1 / 0\n'kept', x\n"
    done = tried.call("repl", "--image", "musl", stdin=lines)
    for expected in ("42", "'waited'", "ZeroDivisionError", "('kept', 40)"):
        tried.is_so(f"{expected} in {done.stdout}{done.stderr}", expected in done.stdout + done.stderr, True)


def copies(tried: Tried, measure: str, state: str) -> None:
    """That they come from a warm interpreter shows in what they take beside one that starts: a few parts in a hundred."""
    done = subprocess.run([measure, state, "musl", "8"], env=tried.env, capture_output=True, text=True, timeout=300)
    tried.is_so(f"the sessions' end ({done.stderr})", done.returncode, 0)
    figures = json.loads(done.stdout)
    tried.is_so("trouble", figures["trouble"], [])
    times = {kind: median(figures[kind]["image"]) for kind in ("pooled", "on_demand", "cold")}
    print("sessions from the image with musl, ms: " + ", ".join(f"{kind} {time:.1f}" for kind, time in times.items()))
    tried.is_so(f"warm before cold in {times}", times["pooled"] < times["cold"] / 3 and times["on_demand"] < times["cold"], True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", help="the binary to test; without it the interpreter is built, and nothing else done")
    parser.add_argument("--sessions", help="the example image_sessions, which is needed to test")
    parser.add_argument("--build", required=True, type=Path, help="where the interpreter is built, and kept")
    args = parser.parse_args()
    if not shutil.which("musl-gcc"):
        sys.exit("musl's compiler is missing; install it with: apt-get install musl-tools")
    source = compile_python(args.build.resolve())
    if not args.belljar:
        return
    with tempfile.TemporaryDirectory(prefix="belljar-musl-") as state:
        tar = Path(state, "root.tar")
        pack(source, tar)
        tried = Tried(args.belljar, state)
        imported = tried.call("image", "import", str(tar), "--name", "musl")
        tried.is_so(f"the import's end ({imported.stderr})", imported.returncode, 0)
        single_runs(tried)
        sessions(tried)
        copies(tried, args.sessions, state)
    print(f"Python with musl: {tried.count} checks passed")


if __name__ == "__main__":
    main()
