#!/usr/bin/env python3
"""Attack a running daemon: the families P and X through HTTP, where interpreters are copies of a warm one, and A, the API itself.

Judged like the rest of the suite: by canaries on the host, by the daemon and an ordinary run of another tenant after each case,
and by what is left when the daemon has stopped. Needs root.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from suite import host, inside
from suite.canaries import PAYLOADS, Canaries
from suite.cases import Case, load
from suite.judge import REACHED
from suite.modes import stand_apart
from suite.service import Service
from suite.worker import CHANCES, MORE_TIME, NEIGHBOUR

LIMITS = {"memory_bytes": "256m", "processes": 64, "disk_bytes": "64m"}
GRACE = 15.0
NEVER_TRIED = "the attempt was never made"


class Suite:
    """One daemon, and everything that is tried on it."""

    def __init__(self, belljar: str, only: list[str]) -> None:
        stand_apart()
        self.name = f"bjattack-{secrets.token_hex(4)}"
        self.only = only
        self.known = host.leftovers(self.name)
        self.canaries = Canaries(self.name, None, (belljar,))
        self.service = Service(belljar, self.canaries, self.name)
        self.failures: list[str] = []
        self.count = 0

    def wanted(self, name: str) -> bool:
        return not self.only or any(name.startswith(word) for word in self.only)

    def run(self) -> None:
        if wrong := self.service.wrong():
            raise SystemExit(f"attack: the daemon does not run at all: {wrong}")
        for case in load():
            if case.family in "PX" and not case.args and case.stdin != "tty" and self.wanted(case.id):
                self.judge(f"{case.id} (once)", lambda case=case: self.tried(self.once, case))
                # What namespaces and filters there are does not depend on who asked for them.
                if case.family == "P" or case.neighbour or case.twice:
                    self.judge(f"{case.id} (kept)", lambda case=case: self.tried(self.kept, case))
        for name, attack in inside.CASES.items():
            if self.wanted(name):
                self.judge(name, lambda attack=attack: list(attack(self.service)))
        if wrong := self.service.stop():
            self.failures.append(wrong)
        own = host.remaining(lambda: {path for path in host.leftovers(self.name) - self.known if self.mine(path)})
        self.failures += [f"left behind: {path}" for path in sorted(own)]

    def mine(self, path: str) -> bool:
        """Other daemons may be at work beside this one; a cgroup with nobody in it is nobody's."""
        procs = Path(path) / "cgroup.procs"
        return str(self.service.process.pid) in path or (procs.exists() and not host.read(procs).strip() and not any(Path(path).iterdir()))

    def judge(self, name: str, attack: object) -> None:
        began = time.monotonic()
        try:
            found = attack()  # type: ignore[operator]
        except (OSError, ValueError, KeyError, RuntimeError, http.client.HTTPException) as error:
            found = [f"could not run: {type(error).__name__}: {error}"]
        found += self.canaries.trips()
        if wrong := self.service.wrong():
            found.append(wrong)
        self.count += 1
        print(f"{'ESCAPED' if found else 'held':<8} {name:<34} {time.monotonic() - began:5.1f} s {'; '.join(found)[:400]}", flush=True)
        self.failures += [f"{name}: {line}" for line in found]

    def tried(self, attack: Callable[[Case], list[str]], case: Case) -> list[str]:
        """Where the time was up before the program had tried anything nothing was shown: it gets more."""
        found = attack(case)
        for _ in range(CHANCES):
            if not found or any(not line.startswith(NEVER_TRIED) for line in found):
                break
            case = replace(case, timeout=case.timeout * MORE_TIME)
            found = attack(case)
        return found

    def files(self) -> dict[str, str]:
        return {"attack.py": (PAYLOADS / "attack.py").read_text(), "targets.json": json.dumps(self.canaries.targets())}

    def request(self, case: Case) -> dict[str, object]:
        return {"code": case.code, "args": list(case.argv), "limits": {"timeout_ms": int(case.timeout * 1000)}}

    def once(self, case: Case) -> list[str]:
        """As `POST /v1/runs`: the facts of the result count too."""
        body = self.request(case) | {"language": case.language, "files": self.files()}
        body["limits"] = LIMITS | {"timeout_ms": int(case.timeout * 1000)}
        neighbour = self.neighbour() if case.neighbour else ""
        results = []
        for _ in range(2 if case.twice else 1):
            answer = self.service.ask("POST", "/v1/runs", body, timeout=case.timeout + GRACE)
            if answer.status != 200:
                return [f"no result: {answer.status} {answer.text[:200]}"]
            results.append(answer.json())
        if neighbour:
            self.service.ask("DELETE", neighbour, key=self.service.b)
        found = self.seen(case, [str(result["stdout"]) + str(result["stderr"]) for result in results])
        last = results[-1]
        if case.statuses and last["status"] not in case.statuses:
            found.append(f"the result says {last['status']}, not {' or '.join(case.statuses)}")
        if case.exit is not None and last["exit_code"] != case.exit:
            found.append(f"the result says exit code {last['exit_code']}, not {case.exit}")
        return found

    def kept(self, case: Case) -> list[str]:
        """In a session: whatever becomes of the interpreter, the next run in the same sandbox is an ordinary one."""
        neighbour = self.neighbour() if case.neighbour else ""
        said = []
        for _ in range(2 if case.twice else 1):
            sandbox = self.service.sandbox(language=case.language, files=self.files(), limits=LIMITS)
            answer = self.service.ask("POST", f"{sandbox}/runs", self.request(case), timeout=case.timeout + GRACE)
            said.append(answer.text if answer.status != 200 else str(answer.json()["stdout"]) + str(answer.json()["stderr"]))
            after = self.service.ask("POST", f"{sandbox}/commands", {"shell": "echo 1"})
            if after.status != 200 or after.json()["stdout"] != "1\n":
                said.append(f"@reached the sandbox does not work any more: {after.text[:200]}")
            self.service.ask("DELETE", sandbox)
        if neighbour:
            self.service.ask("DELETE", neighbour, key=self.service.b)
        return self.seen(case, said)

    def seen(self, case: Case, said: list[str]) -> list[str]:
        text = "\n".join(said)
        found = [f"succeeded: {match[1][:160]}" for match in REACHED.finditer(text)][:3] + self.canaries.found_in(text)
        if "@tried" not in text and case.language != "c":
            found.append(f"{NEVER_TRIED}: {text[-200:]}")
        if case.twice:
            drawn = [{word for line in one.splitlines() if line.startswith("@drawn ") for word in line.split()[1:]} for one in said[:2]]
            # Copies of one warm interpreter share its hash seed until that is replaced, as docs/limitations.md says.
            seed = {word for word in drawn[0] & drawn[-1] if word.lstrip("-").isdigit()}
            found += [f"both runs drew {word}" for word in drawn[0] & drawn[-1] - seed]
        return found

    def neighbour(self) -> str:
        """The other tenant at work, with a secret in its files, arguments and environment."""
        token = self.canaries.token("neighbour")
        sandbox = self.service.sandbox(key=self.service.b, env={"NEIGHBOUR": token}, files={"secret.txt": token})
        words = ["sh", "-c", f"/usr/bin/python3 -c '{NEIGHBOUR}' {token} >/dev/null 2>&1 & sleep .3"]
        self.service.ask("POST", f"{sandbox}/commands", {"argv": words}, key=self.service.b)
        return sandbox

    def close(self) -> None:
        self.service.close()
        self.canaries.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default="target/release/belljar", help="the binary to attack")
    parser.add_argument("--only", default="", help="ids, or beginnings of ids, separated by commas")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("attack: run this as root: it makes canaries, and becomes another user", file=sys.stderr)
        return 125
    suite = Suite(os.path.abspath(given.belljar), [word for word in given.only.split(",") if word])
    try:
        suite.run()
    finally:
        suite.close()
    for failure in suite.failures:
        print(f"attack: {failure}", file=sys.stderr)
    print(f"{suite.count} attacks on the daemon, {len(suite.failures)} failures")
    return 1 if suite.failures or not suite.count else 0


if __name__ == "__main__":
    sys.exit(main())
