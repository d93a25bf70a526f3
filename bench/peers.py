"""Other ways to run the same Python program in isolation.

Each is given as much of Belljar's isolation as it can have, and nothing that would make it slow for no reason. None of them has all
of it: bwrap has no limits, no system call filter of its own and no Landlock; the OCI runtimes have no Landlock. All see
the host's `/usr` read-only, so that the interpreter and its files are the very same.
"""

import functools
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from languages import PYTHON, Absent
from measure import ENVIRONMENT, Candidate, Failed, captured

LINKS = {name: os.readlink(f"/{name}") for name in ("bin", "lib", "lib32", "lib64") if os.path.islink(f"/{name}")}
MEMORY, PROCESSES = 512 << 20, 128

# What to try, best first, or why there is nothing to try.
Made = list[Candidate] | Absent


def peers(work: Path, image: str | None) -> tuple[list[Candidate], list[Absent]]:
    found, absent = [], []
    for make in (bwrap, crun, runc, docker_run, docker_exec):
        made = attempt(make, work, image)
        if isinstance(made, Absent):
            absent.append(made)
            continue
        troubles = []
        for candidate in made:
            if not (reason := trouble(candidate)):
                found.append(candidate)
                break
            troubles.append(reason)
        else:
            absent.append(Absent(made[0].name, f"it does not work on this host: {troubles[-1]}", "see its own documentation"))
    return found, absent


def attempt(make: Callable[[Path, str | None], Made], work: Path, image: str | None) -> Made:
    try:
        return make(work, image)
    except Failed as error:
        return Absent(make.__name__.replace("_", " "), str(error), "see its own documentation")


def trouble(candidate: Candidate) -> str:
    """Runs it once with its words kept: what does not work here is told, not dropped."""
    for argv in candidate.commands:
        status, text, _ = captured(argv, candidate.env)
        if status != 0:
            return last_line(text) or f"it ended with {status}"
    return ""


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""


def program(name: str, package: str) -> str | Absent:
    found = shutil.which(name, path=ENVIRONMENT["PATH"])
    return found or Absent(name, f"{name} is not installed", f"apt-get install {package}")


def bwrap(_work: Path, _image: str | None) -> Made:
    tool = program("bwrap", "bubblewrap")
    if isinstance(tool, Absent):
        return tool
    links = [word for name, to in LINKS.items() for word in ("--symlink", to, f"/{name}")]
    argv = [tool, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    argv += ["--uid", "1000", "--gid", "1000", "--hostname", "jar", "--ro-bind", "/usr", "/usr", *links]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--chdir", "/workspace"]
    return [Candidate("bwrap", [[*argv, PYTHON, "-c", "pass"]])]


def crun(work: Path, _image: str | None) -> Made:
    # It does not take cgroup v1 beside a v2 tree; without limits it then has less to do than the others.
    return oci("crun", "crun", work, {"crun": ["--cgroup-manager=cgroupfs"], "crun (no limits)": ["--cgroup-manager=disabled"]})


def runc(work: Path, _image: str | None) -> Made:
    return oci("runc", "runc", work, {"runc": []})


def oci(name: str, package: str, work: Path, variants: dict[str, list[str]]) -> Made:
    tool = program(name, package)
    if isinstance(tool, Absent):
        return tool
    made = []
    for number, (variant, options) in enumerate(variants.items()):
        bundle = work / f"{name}-{number}"
        make_root(bundle / "rootfs")
        container = f"belljar-bench-{name}-{os.getpid()}"
        config = oci_config(container, limits=os.geteuid() == 0 and "disabled" not in " ".join(options))
        (bundle / "config.json").write_text(json.dumps(config, indent=1))
        argv = [tool, "--root", str(bundle / "state"), *options, "run", "--bundle", str(bundle), container]
        made.append(Candidate(variant, [argv]))
    return made


def make_root(root: Path) -> None:
    root.mkdir(parents=True)
    for name in ("usr", "proc", "dev", "tmp", "workspace", "etc"):
        (root / name).mkdir()
    for name, to in LINKS.items():
        (root / name).symlink_to(to)


def oci_config(cgroup: str, limits: bool) -> dict:
    as_root = os.geteuid() == 0
    # An ordinary user can map only themselves; root gives the container users that nobody else is.
    inside = 1000 if as_root else 0
    uids = [{"containerID": 0, "hostID": 1 << 30, "size": 65536}] if as_root else mapped(os.getuid())
    gids = [{"containerID": 0, "hostID": 1 << 30, "size": 65536}] if as_root else mapped(os.getgid())
    tmpfs = {"type": "tmpfs", "source": "tmpfs"}
    locked = ["nosuid", "nodev"]
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": inside, "gid": inside},
            "args": [PYTHON, "-c", "pass"],
            "env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "cwd": "/workspace",
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "jar",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": [*locked, "noexec"]},
            {"destination": "/dev", **tmpfs, "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/tmp", **tmpfs, "options": [*locked, "mode=1777", "size=128m"]},
            {"destination": "/workspace", **tmpfs, "options": [*locked, "mode=1777", "size=128m"]},
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro", *locked]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("user", "pid", "network", "ipc", "uts", "mount", "cgroup")],
            "uidMappings": uids,
            "gidMappings": gids,
            "seccomp": SECCOMP,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
        },
    }
    if limits:
        resources = {"memory": {"limit": MEMORY}, "pids": {"limit": PROCESSES}, "cpu": {"quota": 100_000, "period": 100_000}}
        config["linux"] |= {"resources": resources, "cgroupsPath": f"/{cgroup}"}
    return config


def mapped(own: int) -> list[dict]:
    return [{"containerID": 0, "hostID": own, "size": 1}]


# A short list of refusals: a full one would have the runtimes compile a program on every start, which is their own choice.
SECCOMP = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": [],
    "syscalls": [
        {
            "names": ["bpf", "io_uring_setup", "keyctl", "mount", "perf_event_open", "ptrace", "unshare", "userfaultfd"],
            "action": "SCMP_ACT_ERRNO",
        }
    ],
}


def docker(name: str) -> tuple[str, Absent | None]:
    tool = program("docker", "docker.io")
    if isinstance(tool, Absent):
        return "", Absent(name, tool.reason, tool.install)
    status, text, _ = captured([tool, "version", "--format", "{{.Server.Version}}"])
    if status != 0:
        return "", Absent(name, f"no engine answers: {last_line(text)}", "apt-get install docker.io, and start dockerd")
    return tool, None


def hardened(image: str) -> list[str]:
    words = ["--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--pids-limit", str(PROCESSES), "--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--cpus", "1"]
    words += ["--user", "1000:1000", "--tmpfs", "/tmp", "--tmpfs", "/workspace", "--workdir", "/workspace"]
    return [*words, "--log-driver", "none", "--volume", "/usr:/usr:ro", image]


def docker_run(_work: Path, image: str | None) -> Made:
    tool, absent = docker("docker run")
    if absent:
        return absent
    argv = [tool, "run", "--rm", *hardened(image or docker_image(tool)), PYTHON, "-c", "pass"]
    return [Candidate("docker run", [argv])]


def docker_exec(_work: Path, image: str | None) -> Made:
    """In a container that is already there: what others do to be quick, and no isolation between two runs."""
    tool, absent = docker("docker exec")
    if absent:
        return absent
    name = container_name()
    container = ["--detach", "--rm", "--name", name, *hardened(image or docker_image(tool)), "/usr/bin/sleep", "1d"]
    status, text, _ = captured([tool, "run", *container])
    if status != 0:
        return Absent("docker exec", last_line(text), "see `docker info`")
    return [Candidate("docker exec (reused)", [[tool, "exec", name, PYTHON, "-c", "pass"]])]


def container_name() -> str:
    return f"belljar-bench-{os.getpid()}"


@functools.cache
def docker_image(tool: str) -> str:
    """An image of mount points and links only, so that nothing has to be pulled."""
    archive = Path("/tmp") / f"belljar-bench-{os.getpid()}.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("usr", "proc", "dev", "tmp", "workspace", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry, io.BytesIO())
        for name, to in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)
    try:
        status, text, _ = captured([tool, "import", str(archive), "belljar-bench:latest"])
    finally:
        archive.unlink()
    if status != 0:
        raise Failed(last_line(text))
    return "belljar-bench:latest"


def clean_up() -> None:
    tool, absent = docker("docker")
    if not absent:
        captured([tool, "rm", "--force", container_name()])
        captured([tool, "rmi", "--force", "belljar-bench:latest"])
