"""As whom Belljar runs: root, an ordinary user with a delegated part of the cgroup tree, or by a container engine."""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .host import read

MODES = ("root", "rootless", "image", "docker")
# For an ordinary user every other layer rests on these, so Belljar cannot run without them.
INSEPARABLE = {"rootless": ("userns", "pidns")}
CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")
PRIVATE_PROPAGATION = 0x44000
CLONE_NEWNS, PR_SET_CHILD_SUBREAPER = 0x20000, 36


@dataclass(frozen=True)
class User:
    """The ordinary user, and whether it was made for this run."""

    name: str
    uid: int
    gid: int
    made: bool

    @classmethod
    def get(cls, name: str) -> User:
        made = False
        try:
            pwd.getpwnam(name)
        except KeyError:
            subprocess.run(["useradd", "--system", "--shell", "/bin/sh", "--no-create-home", name], check=True)
            made = True
        entry = pwd.getpwnam(name)
        return cls(name, entry.pw_uid, entry.pw_gid, made)

    def drop(self) -> None:
        if self.made:
            subprocess.run(["userdel", self.name], check=False)


def delegation_bases() -> list[tuple[Path, bool]]:
    """Where a subtree can be made in each hierarchy that matters, and whether that one is v2."""
    own = {}
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path.lstrip("/")
    bases = []
    for line in read("/proc/self/mountinfo").splitlines():
        words = line.split()
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        if kind == "cgroup2":
            top = Path(words[4])
            has_controllers = bool(read(top / "cgroup.controllers").strip())
            bases.append((top if has_controllers else top / own.get("", ""), True))
        elif kind == "cgroup" and set(options) & set(CONTROLLERS):
            path = next((path for names, path in own.items() if set(names.split(",")) & set(options)), "")
            bases.append((Path(words[4]) / path, False))
    return bases


class Delegation:
    """Subtrees handed to the user, one for each start of Belljar, as systemd would give each its own scope."""

    def __init__(self, name: str, user: User) -> None:
        self.name = name
        self.user = user
        self.bases = delegation_bases()
        for base, unified in self.bases:
            for controller in set(read(base / "cgroup.controllers").split()) & set(CONTROLLERS) if unified else ():
                (base / "cgroup.subtree_control").write_text(f"+{controller}")

    def enter(self) -> None:
        """Between fork and exec: make the subtrees, give them away, step into them, become the user."""
        for base, _ in self.bases:
            place = base / f"{self.name}-{os.getpid()}"
            place.mkdir()
            for path in (place, place / "tasks", place / "cgroup.procs", place / "cgroup.subtree_control",
                         place / "cgroup.threads"):
                if path.exists():
                    os.chown(path, self.user.uid, self.user.gid)
            (place / "cgroup.procs").write_text(str(os.getpid()))
        os.setgroups([])
        os.setgid(self.user.gid)
        os.setuid(self.user.uid)

    def clear(self) -> list[str]:
        """Remove the subtrees; what Belljar left in them, past the one it stood in itself, is told."""
        left = []
        for base, unified in self.bases:
            for place in base.glob(f"{self.name}-*"):
                inner = [Path(top) for top, _, _ in os.walk(place, topdown=False)][:-1]
                if len(inner) > (1 if unified else 0):
                    left.append(f"cgroups left below {place}: {[path.name for path in inner]}")
                for path in [*inner, place]:
                    try:
                        path.rmdir()
                    except OSError as error:
                        left.append(f"{path}: {error.strerror}")
        return left


def stand_apart() -> None:
    """Own mount namespace, so that others' mounts are not taken for leaks; orphans come to this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, PRIVATE_PROPAGATION, None):
        raise OSError(ctypes.get_errno(), "unshare of the mount namespace: the suite needs root")
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
