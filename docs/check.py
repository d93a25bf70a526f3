#!/usr/bin/env python3
"""Runs the examples of the documentation and compares what they print with what is written there.

A fenced block whose first line is "```console check" is a session: lines that begin with `$ ` are commands (`> ` continues
one), the lines below are what they print, standard output and error together. `…` stands for any text within a line, and
alone on a line for any number of lines. A block that begins with "```LANGUAGE file=PATH" is written to that path first.
The blocks of one document run in order, in one empty directory in which `examples` is the repository's, with the given
program as `belljar` on PATH. Links to other files of the repository must lead somewhere. Where a session is marked "daemon", one
runs for the document, and BELLJAR_URL and BELLJAR_TOKEN say how to reach it. Sessions marked "docker" run where scripts/test-docker
has started a container engine, and are left out elsewhere.
"""

import argparse
import difflib
import os
import re
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(.*)$")
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
PATIENCE = 120


@dataclass
class Command:
    line: int
    text: str
    output: list[str] = field(default_factory=list)


@dataclass
class Block:
    line: int
    words: list[str]
    lines: list[str]

    def target(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)

    def is_session(self) -> bool:
        has_engine = "BELLJAR_TEST_IMAGE" in os.environ
        return self.words[:1] == ["console"] and "check" in self.words and (has_engine or "docker" not in self.words)

    def needs_daemon(self) -> bool:
        return self.is_session() and "daemon" in self.words

    def commands(self) -> list[Command]:
        commands: list[Command] = []
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("$ "):
                commands.append(Command(number, line[2:]))
            elif line.startswith("> ") and commands and not commands[-1].output:
                commands[-1].text += "\n" + line[2:]
            elif commands:
                commands[-1].output.append(line)
        return commands


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    inside: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if not fence:
            if inside:
                inside.lines.append(line)
        elif inside:
            found.append(inside)
            inside = None
        else:
            inside = Block(number, fence.group(1).split(), [])
    return found


def matches(wanted: list[str], found: list[str]) -> bool:
    """Line by line; `…` alone takes as many lines as it can give back."""
    if not wanted:
        return not found
    if wanted[0].strip() == "…":
        return any(matches(wanted[1:], found[skip:]) for skip in range(len(found) + 1))
    pattern = ".*".join(re.escape(part) for part in wanted[0].split("…"))
    return bool(found) and re.fullmatch(pattern, found[0]) is not None and matches(wanted[1:], found[1:])


def strip_blank(lines: list[str]) -> list[str]:
    """Without blank lines at the end: in a document they only part one command from the next."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return [line.rstrip() for line in lines]


def run(command: Command, cwd: Path, env: dict[str, str], previous: int) -> tuple[int, list[str]]:
    # So that `echo $?` on the next line means what it says.
    script = f"(exit {previous})\n{command.text}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(errors="replace").splitlines()


def environment(programs: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
    return env | {"PATH": f"{programs}:{env.get('PATH', '/usr/bin:/bin')}", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


class Daemon:
    """One for a document, on a port that is free."""

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        self.env = {"BELLJAR_STATE_DIR": str(place), "BELLJAR_TOKEN": secrets.token_hex(16)}
        self.log = (place.parent / "daemon.log").open("wb")
        self.process = subprocess.Popen(
            ["belljar", "serve", "--listen", "127.0.0.1:0"], env=env | self.env, stdout=subprocess.PIPE, stderr=self.log, text=True
        )  # fmt: skip
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            raise SystemExit(f"docs: the daemon did not start: {line!r} {(place.parent / 'daemon.log').read_text()}")
        self.env["BELLJAR_URL"] = found.group()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        self.log.close()


def check_links(document: Path, text: str) -> list[str]:
    broken = (target for target in LINK.findall(text) if not (document.parent / target).exists())
    return [f"{document.relative_to(ROOT)}: the link to {target} leads nowhere" for target in broken]


def check_document(document: Path, belljar: Path) -> tuple[int, list[str]]:
    text = document.read_text()
    failures = check_links(document, text)
    count = 0
    with tempfile.TemporaryDirectory(prefix="belljar-docs-") as place:
        cwd, programs = Path(place, "here"), Path(place, "bin")
        cwd.mkdir()
        programs.mkdir()
        (programs / "belljar").symlink_to(belljar)
        (cwd / "examples").symlink_to(ROOT / "examples")
        env = environment(programs)
        parts = blocks(text)
        daemon = Daemon(Path(place, "state"), env) if any(block.needs_daemon() for block in parts) else None
        if daemon:
            env |= daemon.env
        for block in parts:
            if target := block.target():
                path = cwd / target
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(block.lines) + "\n")
            previous = 0
            for command in block.commands() if block.is_session() else []:
                count += 1
                try:
                    previous, found = run(command, cwd, env, previous)
                except subprocess.TimeoutExpired:
                    previous, found = 124, [f"(it took more than {PATIENCE} s)"]
                wanted, found = strip_blank(command.output), strip_blank(found)
                if not matches(wanted, found):
                    place_of = f"{document.relative_to(ROOT)}:{command.line}: $ {command.text}"
                    failures.append("\n".join([place_of, *difflib.unified_diff(wanted, found, "written", "printed", lineterm="")]))
        if daemon:
            daemon.stop()
    return count, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", type=Path, default=ROOT / "target/release/belljar", help="default: %(default)s")
    parser.add_argument("documents", nargs="*", type=Path, help="default: README.md and docs/*.md")
    args = parser.parse_args()
    belljar = args.belljar.resolve()
    if not belljar.is_file():
        parser.error(f"{belljar} is not there: cargo build --release")
    documents = [path.resolve() for path in args.documents] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    total, failures = 0, []
    for document in documents:
        count, failed = check_document(document, belljar)
        total += count
        failures += failed
    for failure in failures:
        print(failure, end="\n\n", file=sys.stderr)
    if total == 0:
        print("docs: no examples were found", file=sys.stderr)
    print(f"docs: {total} commands in {len(documents)} documents, {len(failures)} failed")
    return int(bool(failures) or total == 0)


if __name__ == "__main__":
    sys.exit(main())
