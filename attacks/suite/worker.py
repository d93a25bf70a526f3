"""One worker: a process with canaries of its own that runs cases one after another and checks the host after each."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import host
from .canaries import Canaries
from .cases import Case
from .image import Image
from .jar import Bare, Jar, Ran
from .judge import NOT_RUN, Verdict, judge, judge_control
from .modes import Delegation, User, stand_apart

# How long the processes of a run may be seen after its end: what is meant to survive it does so for much longer.
LAST_BREATH = 5.0
# In a container and on a slow machine an ordinary run costs as much as a case. There it comes after so many of them, which are runs themselves, and after
# each that had the machine for itself or did not go well; the probe is the last one.
ORDINARY_EVERY = 10
# How often a case that did not come as far as its attempt gets another chance, and how much more time each time.
CHANCES, MORE_TIME = 2, 4
NEIGHBOUR = """
import os, sys, time
open("neighbour.txt", "w").write(os.environ["NEIGHBOUR"])
open("/tmp/neighbour.txt", "w").write(os.environ["NEIGHBOUR"])
print("up", flush=True)
time.sleep(60)
"""


@dataclass(frozen=True)
class Plan:
    """What the workers are to do, the same for each."""

    belljar: str
    mode: str
    user: User | None
    prefix: tuple[str, ...]
    patience: float
    pace: float
    name: str
    image: Image | None = None


class Worker:
    """Runs cases and judges them. Everything below this process that is not its victim belongs to the case."""

    def __init__(self, plan: Plan, number: int) -> None:
        stand_apart()
        self.plan = plan
        name = f"{plan.name}-{number}"
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/var/tmp"))
        (self.scratch / "tmp").mkdir()
        owner = (plan.user.uid, plan.user.gid) if plan.user else None
        self.canaries = Canaries(name, owner, (plan.belljar,) if plan.mode != "control" else ())
        if owner:
            for path in (self.scratch, self.scratch / "tmp"):
                os.chown(path, *owner)
        os.chmod(self.scratch, 0o755)
        self.delegation = Delegation(name, plan.user) if plan.user and not plan.prefix else None
        self.suspects: dict[str, str] = {}
        self.unproved: list[str] = []
        self.known = host.leftovers(plan.name)
        if plan.mode != "control" and (wrong := self.jar().normal()):
            self.close()
            raise RuntimeError(f"Belljar does not run at all as {plan.mode}: {wrong}")

    @property
    def keep(self) -> set[int]:
        return {self.canaries.victim.process.pid}

    def jar(self, weaken: tuple[str, ...] = ()) -> Jar:
        return Jar(
            belljar=self.plan.belljar, mode=self.plan.mode, canaries=self.canaries, scratch=self.scratch,
            keep=self.keep, patience=self.plan.patience, weaken=weaken, prefix=self.plan.prefix,
            prepare=self.delegation.enter if self.delegation else None, image=self.plan.image,
        )

    def attack(self, case: Case, weaken: tuple[str, ...] = ()) -> Verdict:
        """One case. Where the time was up before the program had tried anything nothing was shown: it gets more."""
        case = replace(case, timeout=case.timeout * self.plan.pace)
        verdict = self.attack_once(case, weaken)
        for _ in range(CHANCES):
            if verdict.kind != NOT_RUN or verdict.status != "timed_out":
                break
            case = replace(case, timeout=case.timeout * MORE_TIME)
            verdict = self.attack_once(case, weaken)
        return verdict

    def attack_once(self, case: Case, weaken: tuple[str, ...]) -> Verdict:
        jar = self.jar(weaken)
        with self.neighbour(jar) if case.neighbour else nothing():
            ran = jar.run(case)
            first = drawn(ran)
            if case.twice:
                ran = jar.run(case)
        twins = drawn(ran) & first if case.twice else set()
        found = [f"both runs drew {word}" for word in twins] + self.canaries.found_in(ran.text + ran.files) + self.canaries.trips()
        leaks = self.leaks(case)
        self.unproved.append(case.id)
        if not weaken and self.must_prove(case, ran, found + leaks):
            if wrong := jar.normal():
                leaks.append(f"{wrong} (after {', '.join(self.unproved)})")
            self.unproved.clear()
        verdict = judge(case, ran, found, leaks, self.plan.patience, self.plan.mode)
        self.settle(verdict.kind != "held")
        return verdict

    def must_prove(self, case: Case, ran: Ran, found: list[str]) -> bool:
        """Whether an ordinary run has to show now that Belljar still works."""
        well = not case.alone and not found and not ran.watched.hung
        dear = self.plan.mode == "docker" or self.plan.patience > 1
        return not dear or not well or len(self.unproved) >= ORDINARY_EVERY

    def control(self, case: Case) -> Verdict:
        bare = Bare(self.canaries, self.scratch, self.keep, self.plan.patience)
        with self.bare_neighbour() if case.neighbour else nothing():
            ran = bare.run(case)
            if case.twice:
                ran = bare.run(case)
        # The survivors of a run that nothing ends are what the control is to show.
        alive = host.survivors(os.getpid(), self.keep)
        if alive:
            host.end_tree(os.getpid(), self.keep)
            host.reap(self.keep)
        found = self.canaries.found_in(ran.text + ran.files) + self.canaries.trips()
        found += [f"{len(alive)} processes survived"] if alive and not ran.watched.hung else []
        found += self.left_in_tmp()
        verdict = judge_control(case, ran, found, self.plan.patience)
        self.settle(True)
        return verdict

    def leaks(self, case: Case) -> list[str]:
        """Processes, delegated cgroups and temporary files that outlived the run."""
        limit = time.monotonic() + max(LAST_BREATH, 0.3 * self.plan.patience)
        while alive := host.survivors(os.getpid(), self.keep):
            if time.monotonic() > limit:
                break
            time.sleep(0.02)
        found = [f"process {pid} survived: {host.read(f'/proc/{pid}/cmdline')[:80]!r}" for pid in alive]
        if alive:
            host.end_tree(os.getpid(), self.keep)
            host.reap(self.keep)
        if self.delegation:
            found += self.delegation.clear()
        found += self.left_in_tmp()
        for path in host.leftovers(self.plan.name) - self.known:
            self.suspects.setdefault(path, case.id)
        return found

    def left_in_tmp(self) -> list[str]:
        room = self.scratch / "tmp"
        left = os.listdir(room)
        host.remove(*room.iterdir())
        return [f"left in TMPDIR: {name}" for name in left]

    def settle(self, shaken: bool) -> None:
        """After an escape the host is put back, and then taken as it is, so that later cases do not tell of it again."""
        if shaken:
            self.canaries.host.restore()
            self.canaries.trips()
            self.canaries.host = host.HostState.take(self.canaries.host.guarded[len(host.GUARDED):])

    @contextmanager
    def neighbour(self, jar: Jar) -> Iterator[None]:
        """Another tenant at the same time, with a secret in its files, arguments and environment."""
        token = self.canaries.token("neighbour")
        argv = [*jar.prefix, jar.belljar, "run", *jar.backend(), "-c", NEIGHBOUR, "--timeout", f"{4 * self.plan.patience:g}s",
                "--env", f"NEIGHBOUR={token}", "--", token]
        with self.beside(argv, jar):
            yield

    @contextmanager
    def bare_neighbour(self) -> Iterator[None]:
        token = self.canaries.token("neighbour")
        with tempfile.TemporaryDirectory(dir=self.scratch) as room, self.beside(
            ["/usr/bin/env", f"NEIGHBOUR={token}", "/usr/bin/timeout", "4", "/usr/bin/python3", "-c", NEIGHBOUR, token],
            None, room,
        ):
            yield
        Path("/tmp/neighbour.txt").unlink(missing_ok=True)

    @contextmanager
    def beside(self, argv: list[str], jar: Jar | None, room: str | None = None) -> Iterator[None]:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=room or str(self.scratch),
            env=jar.environment() if jar else None, preexec_fn=jar.prepare if jar else None,
        )
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"up\n":
                raise RuntimeError("the neighbour did not start")
            yield
        finally:
            process.wait()
            process.stdout.close()

    def close(self) -> None:
        if self.delegation:
            self.delegation.clear()
        self.canaries.close()
        host.remove(self.scratch)


@contextmanager
def nothing() -> Iterator[None]:
    yield


def drawn(ran: Ran) -> set[str]:
    """The random words a payload says it drew."""
    return {word for line in re.findall(r"^@drawn (.*)$", ran.text, re.MULTILINE) for word in line.split()}


def could_not(case: Case, mode: str, error: Exception) -> Verdict:
    return Verdict(case.id, mode, "could not run", 0.0, [f"{type(error).__name__}: {error}"])
