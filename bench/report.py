"""What was measured, as a table for people and as JSON for programs."""

import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass

from languages import BASE, Absent, Pair
from measure import Candidate, percentile

PYTHON_RATIO = 1.25
OVERHEAD_MS = 3.0
OVERHEAD_OF = ("bash", "perl", "c")
KILL_MS = 100.0


@dataclass
class Target:
    what: str
    limit: str
    found: str
    ok: bool


def host() -> dict:
    model = next((line.split(":", 1)[1].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) >> 10 for line in lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_mib": memory,
        "load": os.getloadavg()[0],
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def lines(path: str) -> list[str]:
    with open(path) as file:
        return file.read().splitlines()


def figures(candidate: Candidate) -> dict:
    samples = candidate.samples()
    return {
        "n": len(samples),
        "median_ms": round(candidate.median(), 3),
        "p95_ms": round(percentile(samples, 95), 3),
        "min_ms": round(samples[0], 3),
        "cpu_ms": round(statistics.median(candidate.cpu.values()), 3),
        "ratio": round(candidate.median() / BASE.median(), 3),
    }


def overhead(pair: Pair) -> float:
    """Over the rounds that both took part in, so that a busy minute of the host counts for both."""
    shared = pair.belljar.times.keys() & pair.bare.times.keys()
    return statistics.median(pair.belljar.times[r] for r in shared) - statistics.median(pair.bare.times[r] for r in shared)


def targets(pairs: list[Pair], peers: list[Candidate], kill: dict) -> list[Target]:
    by_name = {pair.language: pair for pair in pairs}
    found = []
    if python := by_name.get("python"):
        ratio = python.belljar.median() / BASE.median()
        found.append(Target("Python, × bare", f"≤ {PYTHON_RATIO}", f"{ratio:.2f}", ratio <= PYTHON_RATIO))
        if bwrap := next((peer for peer in peers if peer.name == "bwrap"), None):
            ours, theirs = python.belljar.median(), bwrap.median()
            shown = f"{ours / BASE.median():.2f} to {theirs / BASE.median():.2f}"
            found.append(Target("Python against bwrap", "not slower", shown, ours <= theirs))
    for language in OVERHEAD_OF:
        if language in by_name:
            over = overhead(by_name[language])
            found.append(Target(f"overhead of {language}", f"≤ {OVERHEAD_MS:.0f} ms", f"{over:.2f} ms", over <= OVERHEAD_MS))
    for what, taken in kill.items():
        worst = taken["p99_ms"]
        found.append(Target(f"deadline to return, {what}, p99", f"< {KILL_MS:.0f} ms", f"{worst:.1f} ms", worst < KILL_MS))
    return found


def table(pairs: list[Pair], peers: list[Candidate], absent: list[Absent], more: dict, met: list[Target]) -> str:
    out = [f"{host_line(more['host'])}; {more['rounds']} rounds, interleaved; times in ms", ""]
    head = f"{'':22}{'n':>4}{'best':>10}{'median':>10}{'p95':>10}{'× python':>10}{'cpu':>10}"
    out.append(head)
    for candidate in [BASE, *(pair.belljar for pair in pairs if pair.language == "python"), *peers]:
        out.append(row(candidate))
    out += ["", f"{'belljar run of':22}{'n':>4}{'best':>10}{'median':>10}{'p95':>10}{'bare':>10}{'overhead':>10}{'of cpu':>10}"]
    for pair in pairs:
        f = figures(pair.belljar)
        shared = statistics.median(pair.bare.times[r] for r in pair.belljar.times.keys() & pair.bare.times.keys())
        out.append(
            f"{pair.language:22}{f['n']:4}{f['min_ms']:10.2f}{f['median_ms']:10.2f}{f['p95_ms']:10.2f}"
            f"{shared:10.2f}{overhead(pair):+10.2f}{f['cpu_ms'] - figures(pair.bare)['cpu_ms']:+10.2f}"
        )
    start = more["start"]
    out += ["", f"start_ms (request to first instruction, {start['n']} runs): p50 {start['p50_ms']:.2f}, p99 {start['p99_ms']:.2f}"]
    for what, taken in more["kill"].items():
        out.append(
            f"deadline to return, {what} ({taken['n']} runs): p50 {taken['p50_ms']:.1f}, p99 {taken['p99_ms']:.1f}"
        )
    out += ["", f"{'runs per second':22}{'belljar':>10}{'bare':>10}{'share':>10}"]
    for entry in more["throughput"]:
        share = entry["belljar"] / entry["bare"]
        out.append(f"{str(entry['clients']) + ' at a time':22}{entry['belljar']:10.1f}{entry['bare']:10.1f}{share:10.2f}")
    if absent:
        out += ["", "Not measured here:"]
        out += [f"  {entry.name}: {entry.reason} ({entry.install})" for entry in absent]
    out += ["", "Targets:"]
    out += [f"  {'ok  ' if t.ok else 'MISS'}  {t.what}: {t.found} (target {t.limit})" for t in met]
    return "\n".join(out)


def markdown(pairs: list[Pair], peers: list[Candidate], more: dict, met: list[Target]) -> str:
    """For the README: ratios and CPU time, and the targets that were missed."""
    python = [pair.belljar for pair in pairs if pair.language == "python"]
    out = [f"`make bench` on {host_line(more['host'])}; {more['rounds']} interleaved rounds, medians:", ""]
    out += ["| `python3 -c pass` | time | × bare | CPU time |", "|---|---:|---:|---:|"]
    for candidate in [BASE, *python, *peers]:
        f = figures(candidate)
        out.append(f"| {candidate.name} | {f['median_ms']:.1f} ms | {f['ratio']:.2f} | {f['cpu_ms']:.1f} ms |")
    extra = [f"{pair.language} {figures(pair.belljar)['cpu_ms'] - figures(pair.bare)['cpu_ms']:+.1f}" for pair in pairs]
    out += ["", f"CPU time over that of the bare toolchain, in ms: {', '.join(extra)}."]
    missed = [f"{target.what} {target.found} ({target.limit})" for target in met if not target.ok]
    out += ["", "Targets missed in this run: " + ("; ".join(missed) + "." if missed else "none.")]
    return "\n".join(out)


def row(candidate: Candidate) -> str:
    f = figures(candidate)
    return f"{candidate.name:22}{f['n']:4}{f['min_ms']:10.2f}{f['median_ms']:10.2f}{f['p95_ms']:10.2f}{f['ratio']:10.2f}{f['cpu_ms']:10.2f}"


def host_line(at: dict) -> str:
    return f"{at['cpu'] or at['machine']}, {at['cpus']} cores, Linux {at['kernel']}, load {at['load']:.1f}, as {at['user']}"


def as_json(pairs: list[Pair], peers: list[Candidate], absent: list[Absent], more: dict, met: list[Target]) -> dict:
    samples = lambda c: {str(number): round(taken, 4) for number, taken in c.times.items()}  # noqa: E731
    both = lambda c: figures(c) | {"commands": c.commands, "samples_ms": samples(c)}  # noqa: E731
    return more | {
        "base": both(BASE),
        "languages": {
            pair.language: {
                "version": pair.version,
                "belljar": both(pair.belljar),
                "bare": both(pair.bare),
                "overhead_ms": round(overhead(pair), 3),
            }
            for pair in pairs
        },
        "peers": {peer.name: both(peer) for peer in peers},
        "absent": [asdict(entry) for entry in absent],
        "targets": [asdict(target) for target in met],
    }
