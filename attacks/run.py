#!/usr/bin/env python3
"""Attack Belljar with every case, judged by canaries on this host.

Needs root, to make the ordinary user, its cgroups and the canaries. `--control` runs the payloads with nothing around
them, and so only where BELLJAR_DISPOSABLE=1 says that the machine may be lost.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import shlex
import sys
from pathlib import Path

from suite import host
from suite.cases import LAYERS, Case, load
from suite.image import Image
from suite.judge import ESCAPED, Verdict
from suite.modes import INSEPARABLE, MODES, User
from suite.pool import NotStarted, Pool
from suite.probe import probe_case, reachable
from suite.report import Progress, Report, summary
from suite.worker import Plan


ABSENT_IN_CONTAINERS = {"--weaken"}
SHARED_USERS = "an engine without userns-remap shares the host's user namespace, as docs/docker.md says"
OWN_NAMES = "a container has a host name of its own, made by the engine"
MOUNT_TABLE = "the mount table names where the image is on the host, as docs/limitations.md says"
NO_COMPILER = "the small image has no compiler"
# Cases that are none in some mode, and why.
NONE_IN = {
    "docker": {
        "X09-namespace-user": SHARED_USERS, "X09-uid-map": SHARED_USERS, "X11-machine-id": OWN_NAMES, "F37-mountinfo": MOUNT_TABLE,
        "R36-compile-include": NO_COMPILER, "R36-compile-endless": NO_COMPILER,
    },
    "image": {"F37-mountinfo": MOUNT_TABLE},
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default="target/release/belljar", help="the binary to attack")
    parser.add_argument("--modes", default="root,rootless", help="some of root, rootless, image (root, on an image) and docker (default: %(default)s)")
    parser.add_argument("--user", default="belljar-test", help="the ordinary user of rootless mode; made when absent")
    parser.add_argument("--as-user", default="", metavar="COMMAND",
                        help="a command that runs the rest of its arguments as that user with delegated cgroups; "
                             "without it the suite delegates itself")
    # They wait much of their time: more at a time than there are processors.
    parser.add_argument(
        "--jobs", type=int, default=2 * (os.cpu_count() or 1), help="cases at a time, where they are no resource bombs")
    parser.add_argument("--only", default="", help="ids, or beginnings of ids, separated by commas")
    parser.add_argument("--list", action="store_true", help="list the cases and leave")
    parser.add_argument("--control", action="store_true", help="run the payloads bare: each must trip a canary")
    parser.add_argument("--layers", action="store_true", help="take one layer away at a time: it must be noticed")
    parser.add_argument("--skip-main", action="store_true", help="only what --control and --layers ask for")
    parser.add_argument("--patience", type=float, default=1.0, help="factor on every grace time, for slow machines")
    parser.add_argument("--pace", type=float, default=1.0, help="factor on every time limit of a case, for slow machines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    return parser.parse_args()


def chosen(only: str) -> list[Case]:
    cases = load()
    wanted = [word for word in only.split(",") if word]
    return [case for case in cases if not wanted or any(case.id.startswith(word) for word in wanted)]


class Suite:
    """One call of the suite."""

    def __init__(self, given: argparse.Namespace, cases: list[Case]) -> None:
        self.given = given
        self.cases = cases
        self.report = Report(len(cases))
        self.name = f"bjattack-{secrets.token_hex(4)}"
        self.numbers = itertools.count()

    def plan(self, mode: str, user: User | None, image: Image | None = None) -> Plan:
        prefix = tuple(shlex.split(self.given.as_user)) if user else ()
        belljar = os.path.abspath(self.given.belljar)
        return Plan(belljar, mode, user, prefix, self.given.patience, self.given.pace, self.name, image)

    def run(self) -> None:
        for mode in self.given.modes.split(","):
            user = User.get(self.given.user) if mode == "rootless" else None
            image = Image.make(self.given.belljar) if mode == "image" else None
            try:
                if not self.given.skip_main:
                    self.attack(self.plan(mode, user, image))
                if self.given.layers and image is None:
                    self.take_layers_away(self.plan(mode, user))
            except NotStarted as error:
                self.report.check(False, f"no case could run as {mode}: {error}")
            finally:
                if user is not None:
                    user.drop()
                if image is not None:
                    image.drop()
        if self.given.control:
            self.control()
        self.report.count()

    def attack(self, plan: Plan) -> None:
        # What a container does not have at all is refused, and cannot be attacked.
        absent = ABSENT_IN_CONTAINERS if plan.mode == "docker" else set()
        none = NONE_IN.get(plan.mode, {})
        cases = [case for case in self.cases if case.id not in none and not set(case.args) & absent]
        progress = Progress(len(cases))
        suspects: dict[str, str] = {}
        for jobs, alone in ((self.given.jobs, False), (1, True)):
            pool = Pool(plan, jobs, self.numbers)
            tasks = [(case, ()) for case in cases if case.alone is alone]
            self.report.verdicts += pool.run(tasks, progress.tell)
            suspects |= pool.suspects
        for path in host.remaining(lambda: self.left(suspects)):
            leak = Verdict(suspects[path], plan.mode, ESCAPED, 0.0, [f"left behind: {path}"])
            progress.tell(leak)
            self.report.verdicts.append(leak)
        if not self.given.only:
            self.probe(plan)

    def left(self, suspects: dict[str, str]) -> set[str]:
        """A neighbour's running jar looks like a leak while it runs: only what stayed is one, and is nobody's."""
        others = host.neighbours(os.getpid())
        return {path for path in host.leftovers(self.name) & set(suspects) if not any(word in path for word in others)}

    def probe(self, plan: Plan) -> None:
        verdicts = Pool(plan, 1, self.numbers).run([(probe_case(), ())], lambda _: None)
        numbers = reachable("\n".join(verdicts[0].told))
        self.report.check(numbers is not None, f"the probe for reachable system calls gave no answer ({plan.mode})")
        self.report.reachable[plan.mode] = numbers or []

    def take_layers_away(self, plan: Plan) -> None:
        for layer in [layer for layer in LAYERS if layer not in INSEPARABLE.get(plan.mode, ())]:
            tasks = [(case, (layer,)) for case in self.cases if layer in case.layers]
            verdicts = Pool(plan, self.given.jobs, self.numbers).run(tasks, lambda _: None)
            name = f"{layer} ({plan.mode})"
            self.report.layers[name] = verdicts
            said = "; ".join(f"{verdict.id}: {verdict.kind} {verdict.reasons[:1]}" for verdict in verdicts)
            self.report.check(
                any(verdict.kind == ESCAPED for verdict in verdicts), f"nobody noticed that {name} was gone: {said}")

    def control(self) -> None:
        cases = [case for case in self.cases if not case.no_control]
        progress = Progress(len(cases))
        verdicts = Pool(self.plan("control", None), 1, self.numbers).run([(case, ()) for case in cases], progress.tell)
        self.report.control = verdicts
        # Of the whole suite, also where only a part of it runs.
        self.report.control_is_good(load())


def problem(given: argparse.Namespace, cases: list[Case]) -> str:
    """Why the suite cannot start, if so."""
    if not cases:
        return f"no case is called {given.only}"
    if not set(given.modes.split(",")) <= set(MODES):
        return f"--modes takes {' and '.join(MODES)}, not {given.modes}"
    if "docker" in given.modes.split(",") and not os.environ.get("BELLJAR_TEST_IMAGE"):
        return "the mode docker needs a container engine and an image: run it by scripts/test-docker"
    if os.geteuid() != 0:
        return "run the attack suite as root: it makes a user, cgroups and canaries"
    if given.control and os.environ.get("BELLJAR_DISPOSABLE") != "1":
        return "--control attacks this machine with nothing in the way; it runs only where BELLJAR_DISPOSABLE=1 is set"
    if not os.access(given.belljar, os.X_OK) and not (given.control and given.skip_main and not given.layers):
        return f"{given.belljar} is not there: build it with `cargo build --release`, or name it with --belljar"
    return ""


def main() -> int:
    given = options()
    cases = chosen(given.only)
    if given.list:
        for case in cases:
            print(f"{case.id:<34} {case.expect:<10} {case.does}")
        print(f"{len(cases)} cases")
        return 0
    if why := problem(given, cases):
        print(f"attack: {why}", file=sys.stderr)
        return 125
    suite = Suite(given, cases)
    try:
        suite.run()
    finally:
        if given.json:
            suite.report.write(given.json)
    summary(suite.report)
    return 1 if suite.report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
