"""A one-line program in each language, by `belljar run` and by the bare toolchain that makes the same of it.

The flags are those of `runtimes/*.toml` that decide what comes out; those that are only there to be faster (`-pipe` of C and C++)
nobody would type. Where a stage is more than one command there (Java looks for the class to start), the bare side does the least
that a person would have to.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measure import Argv, Candidate, Failed, captured

PYTHON = "/usr/bin/python3"
BASE = Candidate("python, bare", [[PYTHON, "-c", "pass"]])

# Ending and text. Each does nothing, or next to nothing: what is timed is everything around it.
PROGRAMS = {
    "python": ("py", "pass\n"),
    "javascript": ("js", "0;\n"),
    "typescript": ("ts", "const zero: number = 0;\n"),
    "bash": ("sh", ":\n"),
    "ruby": ("rb", "nil\n"),
    "go": ("go", "package main\nfunc main() {}\n"),
    "rust": ("rs", "fn main() {}\n"),
    "c": ("c", "int main(void) { return 0; }\n"),
    "cpp": ("cpp", "int main() { return 0; }\n"),
    "java": ("java", "class Main { public static void main(String[] args) {} }\n"),
    "php": ("php", "<?php\n"),
    "perl": ("pl", "1;\n"),
    "lua": ("lua", "return\n"),
    "r": ("r", "invisible(0)\n"),
}


@dataclass
class Pair:
    language: str
    version: str
    belljar: Candidate
    bare: Candidate


@dataclass
class Absent:
    name: str
    reason: str
    install: str


def runtimes(belljar: str) -> dict[str, dict]:
    status, text, _ = captured([belljar, "runtimes", "--json"])
    if status != 0:
        raise Failed(f"belljar runtimes ended with {status}: {text.strip()}")
    return {row["name"]: row for row in json.loads(text)}


def pairs(belljar: str, work: Path, wanted: list[str]) -> tuple[list[Pair], list[Absent]]:
    found, absent = [], []
    known = runtimes(belljar)
    for language in wanted:
        row = known[language]
        if not row["ok"]:
            absent.append(Absent(language, row["missing"] or "missing", row["install"] or ""))
            continue
        ending, text = PROGRAMS[language]
        place = work / language
        place.mkdir()
        main = place / ("Main.java" if language == "java" else f"main.{ending}")
        main.write_text(text)
        inside = Candidate(f"{language}, belljar", [[belljar, "run", str(main)]])
        # The ratio that counts is against this very command, so both sides get their code the same way.
        if language == "python":
            inside.commands, bare = [[belljar, "run", "-c", "pass"]], BASE
        else:
            bare = bare_candidate(language, row["program"], main, place / "out")
        found.append(Pair(language, row["version"], inside, bare))
    return found, absent


def bare_candidate(language: str, program: str, main: Path, out: Path) -> Candidate:
    out.mkdir()
    commands, env, prepare = BARE[language](program, str(main), out)
    return Candidate(f"{language}, bare", commands, env, prepare)


Bare = tuple[list[Argv], dict[str, str], Callable[[], None] | None]


def interpreter(*options: str) -> Callable[[str, str, Path], Bare]:
    return lambda program, main, _out: ([[program, *options, main]], {}, None)


def compiler(*options: str) -> Callable[[str, str, Path], Bare]:
    def bare(program: str, main: str, out: Path) -> Bare:
        made = str(out / "program")
        words = [word.format(main=main, made=made) for word in options]
        return [[program, *words], [made]], {}, None

    return bare


def go(program: str, main: str, out: Path) -> Bare:
    """From nothing each time, as in a fresh sandbox: `go build` does little where its output already exists."""
    made, cache = out / "program", out / "cache"

    def forget() -> None:
        made.unlink(missing_ok=True)
        shutil.rmtree(cache, ignore_errors=True)

    env = {
        "CGO_ENABLED": "0",
        "GO111MODULE": "auto",
        "GOCACHE": str(cache),
        "GOFLAGS": "-mod=mod",
        "GOPATH": str(out / "path"),
        "GOPROXY": "off",
        "GOTELEMETRY": "off",
        "GOTOOLCHAIN": "local",
    }
    return [[program, "build", "-o", str(made), main], [str(made)]], env, forget


def java(program: str, main: str, out: Path) -> Bare:
    javac = str(Path(program).with_name("javac"))
    quick = ["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-J-Xshare:auto", "-J-XX:-UsePerfData"]
    build = [javac, *quick, "-proc:none", "-encoding", "UTF-8", "-d", str(out), main]
    run = [program, "-Xshare:auto", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx768m", "-cp", str(out), "Main"]
    return [build, run], {}, None


def typescript(program: str, main: str, out: Path) -> Bare:
    """With esbuild; the manifest's other way, TypeScript's own compiler, has no command line that does the same."""
    if Path(program).name != "esbuild":
        raise Failed("typescript: the bare side is written for esbuild (apt-get install esbuild)")
    made = str(out / "main.mjs")
    build = [program, main, "--bundle", "--platform=node", "--format=esm", "--target=node18", "--packages=external"]
    build += [f"--outfile={made}", "--sourcemap=inline", "--log-level=warning", "--color=false"]
    node = shutil.which("node") or shutil.which("nodejs") or "node"
    return [build, [node, "--enable-source-maps", "--max-old-space-size=1024", made]], {}, None


BARE: dict[str, Callable[[str, str, Path], Bare]] = {
    "javascript": interpreter("--max-old-space-size=1024"),
    "typescript": typescript,
    "bash": interpreter(),
    "ruby": interpreter(),
    "go": go,
    "rust": compiler(
        "--edition=2021", "--crate-name=main", "-Copt-level=2", "-Cdebuginfo=0", "--color=never", "-o", "{made}", "{main}"
    ),
    "c": compiler("-O2", "-std=gnu17", "-fdiagnostics-color=never", "-o", "{made}", "{main}", "-lm"),
    "cpp": compiler("-O2", "-std=gnu++20", "-fdiagnostics-color=never", "-o", "{made}", "{main}"),
    "java": java,
    "php": interpreter("-d", "display_errors=stderr", "-d", "log_errors=0", "-d", "html_errors=0"),
    "perl": interpreter(),
    "lua": interpreter(),
    "r": interpreter("--vanilla"),
}
