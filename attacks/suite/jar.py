"""Run a case under `belljar run`, and under nothing at all for the control."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .canaries import PAYLOADS, Canaries
from .cases import Case
from .host import remove, unmount_below
from .image import Image
from .launch import Watched, launch

ENDINGS = {"python": ".py", "c": ".c", "bash": ".sh"}
MEMORY, PROCESSES, DISK, OUTPUT = 256 << 20, 64, 64 << 20, 100_000
DEFAULTS = {"--memory": "256m", "--processes": "64", "--disk": "64m"}
GRACE = 8.0


@dataclass
class Ran:
    """One case's run: what was seen from outside, and Belljar's own account of it."""

    watched: Watched
    result: dict[str, object] | None
    text: str
    files: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass
class Jar:
    """How to call Belljar: the binary, as whom, and with which layers taken away."""

    belljar: str
    mode: str
    canaries: Canaries
    scratch: Path
    keep: set[int]
    patience: float = 1.0
    weaken: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    prepare: Callable[[], None] | None = None
    image: Image | None = None

    def environment(self) -> dict[str, str]:
        store = {"BELLJAR_STATE_DIR": str(self.image.state)} if self.image else {}
        engine = {"DOCKER_HOST": os.environ["DOCKER_HOST"]} if self.mode == "docker" else {}
        return {
            **store,
            **engine,
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
            "HOME": str(self.scratch), "TMPDIR": str(self.scratch / "tmp"), "BELLJAR_ATTACK_SECRET": self.canaries.env,
            "BELLJAR_RESOLVER": f"127.0.0.1:{self.canaries.names.port}",
        }

    def argv(self, case: Case, program: Path, targets: Path, out: Path | None) -> list[str]:
        given = {word for word in case.args if word.startswith("--")}
        limits = [word for pair in DEFAULTS.items() if pair[0] not in given for word in pair]
        if "--timeout" not in given:
            limits += ["--timeout", f"{case.timeout:g}s"]
        words = [*self.prefix, self.belljar, "run", *self.backend(), "-l", case.language, str(program), "--json", *limits]
        if self.image:
            words += ["--image", self.image.name]
        for name in self.weaken:
            words += ["--weaken", name]
        if not case.is_one_text and case.language == "python":
            words += ["--file", f"attack.py={PAYLOADS / 'attack.py'}"]
        if not case.is_one_text:
            words += ["--file", f"targets.json={targets}"]
        words += [self.fill(word) for word in case.args]
        if out is not None:
            words += ["--output-dir", str(out)]
        return words + (["--", *case.argv] if case.argv else [])

    def start_time(self) -> float:
        """What an engine may take to make a container, which is no part of a run."""
        return 60.0 if self.mode == "docker" else 0.0

    def backend(self) -> list[str]:
        if self.mode != "docker":
            return []
        return ["--backend", "docker", "--image", os.environ["BELLJAR_TEST_IMAGE"], "--pull", "never"]

    def fill(self, word: str) -> str:
        """An argument with the places of canaries put in."""
        word = word.replace("{port}", str(self.canaries.listener.port))
        return word.replace("{file}", str(self.canaries.secret)).replace("{drop}", str(self.canaries.drop))

    def run(self, case: Case) -> Ran:
        room = Path(tempfile.mkdtemp(prefix="case-", dir=self.scratch))
        try:
            os.chmod(room, 0o755)
            program, targets = write_program(room, case, self.canaries)
            out = room / "out" if case.collect else None
            if out is not None:
                out.mkdir()
                os.chmod(out, 0o777)
            watched = launch(
                self.argv(case, program, targets, out), env=self.environment(), cwd=str(self.canaries.place),
                deadline=(case.timeout + GRACE) * self.patience + self.start_time(), keep=self.keep, stdin=stdin_of(case, self.canaries),
                pass_fds=tuple(self.canaries.targets()["fds"]), prepare=self.prepare, sample=case.alone,  # type: ignore[arg-type]
            )
            result = parse(watched.stdout)
            text = (watched.stdout + watched.stderr).decode(errors="replace")
            if result is not None:
                text += f"{result.get('stdout', '')}\n{result.get('stderr', '')}"
            return Ran(watched, result, text, collected(out))
        finally:
            remove(room)

    def normal(self) -> str:
        """An ordinary run: empty when all is well, else what is wrong."""
        words = [*self.prefix, self.belljar, "run", *self.backend(), "-l", "bash", "-c", "echo 1", "--json",
                 "--timeout", f"{10 * self.patience:g}s"]
        watched = launch(
            words, env=self.environment(), cwd=str(self.scratch), deadline=15 * self.patience + self.start_time(), keep=self.keep,
            stdin=subprocess.DEVNULL, prepare=self.prepare,
        )
        result = parse(watched.stdout)
        if result is not None and result.get("status") == "ok" and result.get("stdout") == "1\n":
            return ""
        return f"the next ordinary run: {(watched.stderr or watched.stdout)[:200].decode(errors='replace')}"


@dataclass
class Bare:
    """The control: the same payload with nothing around it, and with the naive ways of passing files."""

    canaries: Canaries
    scratch: Path
    keep: set[int]
    patience: float = 1.0
    mode: str = "control"

    def run(self, case: Case) -> Ran:
        room = Path(tempfile.mkdtemp(prefix="bare-", dir=self.scratch))
        workspace = room / "workspace"
        workspace.mkdir()
        program, _ = write_program(workspace, case, self.canaries)
        shutil.copy(PAYLOADS / "attack.py", workspace)
        notes = place_files(case, workspace, self.canaries)
        # The shell stands in for a runner: parent of the payload, ending as it ends.
        argv = ["/bin/sh", "-c", '"$@"; exit $?', "runner", *command(case, program), *case.argv]
        env = {**os.environ, "BELLJAR_ATTACK_SECRET": self.canaries.env}
        watched = launch(
            argv, env=env, cwd=str(workspace), deadline=(case.timeout + 1.5) * self.patience, keep=self.keep,
            stdin=stdin_of(case, self.canaries), sample=case.alone, last_words=0.6,
            pass_fds=tuple(self.canaries.targets()["fds"]),  # type: ignore[arg-type]
        )
        text = (watched.stdout + watched.stderr).decode(errors="replace")
        if watched.code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV) and not watched.hung:
            notes.append("the payload's runner was killed")
        files = naive_collect(workspace) if case.collect else ""
        unmount_below(room)
        try:
            shutil.rmtree(room)
        except (OSError, RecursionError) as error:
            notes.append(f"the workspace could not be removed: {type(error).__name__}")
            remove(room)
        return Ran(watched, None, text, files, notes)


def write_program(room: Path, case: Case, canaries: Canaries) -> tuple[Path, Path]:
    program = room / f"attack_main{ENDINGS[case.language]}"
    program.write_text(one_text(case, canaries) if case.is_one_text else case.code)
    targets = room / "targets.json"
    targets.write_text(json.dumps(canaries.targets()))
    for path in (program, targets):
        os.chmod(path, 0o644)
    return program, targets


def one_text(case: Case, canaries: Canaries) -> str:
    """The payload with what it shares with others, and the canaries' places, inside of it."""
    shared = (PAYLOADS / "attack.py").read_text()
    reading = 'json.loads(Path("targets.json").read_text())'
    assert reading in shared
    return shared.replace(reading, repr(canaries.targets())) + case.code.removeprefix("from attack import *\n")


def stdin_of(case: Case, canaries: Canaries) -> int:
    return canaries.tty if case.stdin == "tty" else subprocess.DEVNULL


def command(case: Case, program: Path) -> list[str]:
    if case.language == "python":
        return [sys.executable, str(program)]
    if case.language == "bash":
        return ["/bin/bash", str(program)]
    return ["/bin/sh", "-c", f"gcc -o program {program.name} && exec ./program"]


def parse(stdout: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(stdout)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "status" in value else None


def collected(out: Path | None) -> str:
    """Names and beginnings of what Belljar gave back, links not followed; anything but files is told as such."""
    if out is None:
        return ""
    found = []
    for top, directories, names in os.walk(out):
        for name in directories + names:
            path = os.path.join(top, name)
            if os.path.islink(path):
                found.append(f"@special link {os.readlink(path)}")
            elif os.path.isfile(path):
                mode = os.stat(path).st_mode
                found.append(f"@special mode {mode:o}" if mode & 0o7000 else "")
                with open(path, "rb") as file:
                    found.append(file.read(1 << 16).decode(errors="replace"))
            elif not os.path.isdir(path):
                found.append(f"@special {name!r}")
            if any(not character.isprintable() for character in name):
                found.append(f"@special name {name!r}")
    return "\n".join(found)


def place_files(case: Case, workspace: Path, canaries: Canaries) -> list[str]:
    """`--file DEST=SRC` as a careless program would do it."""
    notes = []
    for flag, value in zip(case.args, case.args[1:]):
        if flag == "--file":
            dest, _, source = value.replace("{file}", str(canaries.secret)).replace(
                "{drop}", str(canaries.drop)).rpartition("=")
            try:
                shutil.copy(source, os.path.join(workspace, dest))
            except (OSError, ValueError) as error:
                notes.append(f"note: {error}")
    return notes


def naive_collect(workspace: Path) -> str:
    """What a careless program would give back: it follows links, opens whatever is there, and hangs on a fifo."""
    script = (
        "import os,sys\nfor top, d, names in os.walk(sys.argv[1], followlinks=True):\n"
        " for name in d + names:\n  path = os.path.join(top, name)\n"
        "  if os.path.islink(path): print('@special link')\n"
        "  if os.path.exists(path) and os.stat(path).st_mode & 0o7000: print('@special mode')\n"
        "  if not name.isprintable(): print('@special name')\n"
        "  if os.path.isfile(path) and os.stat(path).st_size > 1 << 30: print('@special size')\n"
        "  if not os.path.isdir(path): print(open(path, 'rb').read(1 << 20))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(workspace)], capture_output=True, timeout=3, check=False, text=True,
        )
    except subprocess.TimeoutExpired:
        return "@special: collecting hung"
    return done.stdout if done.returncode == 0 else f"{done.stdout}\n@special: collecting failed"
