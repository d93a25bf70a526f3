"""Shells in a sandbox that keep their directory and variables from command to command."""

from __future__ import annotations

import re
import secrets
import shlex
from typing import Any

from .. import AsyncSandbox, Result
from ..errors import BelljarError
from . import _output


class SandboxError(Exception):
    """Something about a sandbox went wrong."""


class SandboxTimeoutError(SandboxError, TimeoutError):
    """A command took longer than it may."""


class SandboxResourceError(SandboxError):
    """A command needed more than it may have."""


_RISKY = re.compile(
    r"\brm\s+(-[a-zA-Z]+\s+)*(--no-preserve-root\s+)?/(\*|\s|;|&|\||$)"
    r"|\bmkfs(\.\w+)?\b"
    r"|\bdd\s[^\n]{0,500}?\bof=/dev/"
    r"|>\s*/dev/sd"
    r"|:\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;\s*:"
)


def check_command(command: str) -> None:
    """``ValueError`` for commands that can only be a mistake. The sandbox would confine them as any other."""
    if _RISKY.search(command):
        raise ValueError(f"the command looks risky, and was not run: {command[:200]!r}")
    if not command.strip():
        raise ValueError("the command is empty")


class AsyncDockerizedTerminal:
    """A shell in a sandbox, beside what else runs there. ``container`` is a sandbox, or its id."""

    def __init__(
        self,
        container: AsyncSandbox | str,
        working_dir: str = "/workspace",
        env_vars: dict[str, str] | None = None,
        default_timeout: int = 60,
    ) -> None:
        self.container = AsyncSandbox.attach(container) if isinstance(container, str) else container
        self.working_dir = working_dir
        self.env_vars = dict(env_vars or {})
        self.default_timeout = default_timeout
        self.session: str | None = None
        """Its name, once it is open."""
        self.last_exit_code: int | None = None
        self._open = False

    async def init(self) -> None:
        """Opens it. ``RuntimeError`` if that cannot be."""
        self.session = f"terminal-{secrets.token_hex(8)}"
        self._open = True
        await self._begin()

    async def run_command(self, cmd: str, timeout: int | None = None) -> str:
        """What the command printed, to both of its outputs, without the newline at its end.

        :class:`SandboxTimeoutError` if it took longer than ``timeout`` seconds, :class:`SandboxResourceError` if it needed
        more memory than there is. How it ended otherwise is in ``last_exit_code``.
        """
        if not self._open:
            raise RuntimeError("Terminal not initialized")
        check_command(cmd)
        seconds = self.default_timeout if timeout is None else timeout
        try:
            result = await self._send(cmd, seconds)
        except BelljarError as problem:
            raise RuntimeError(f"the command could not be run: {problem}") from problem
        self.last_exit_code = result.exit_code
        if result.timed_out:
            raise SandboxTimeoutError(f"Command timed out after {seconds} second{'' if seconds == 1 else 's'}")
        if result.status == "out_of_memory":
            raise SandboxResourceError(f"Command needed more memory than {result.limits.memory_bytes >> 20} MB")
        stdout = _output.told(result.stdout, result.stdout_truncated)
        return (stdout + _output.told(result.stderr, result.stderr_truncated)).removesuffix("\n")

    async def close(self) -> None:
        """Closes it; ``session`` still has its name."""
        self._open = False

    async def __aenter__(self) -> AsyncDockerizedTerminal:
        await self.init()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self) -> None:
        try:
            made = await self.container.exec(["mkdir", "-p", "--", self.working_dir])
        except BelljarError as problem:
            raise RuntimeError(f"the terminal cannot be opened: {problem}") from problem
        if not made.success:
            raise RuntimeError(f"the terminal cannot be opened in {self.working_dir}: {made.stderr.strip()}")

    async def _send(self, command: str, timeout: float) -> Result:
        # Each command has a shell of its own; what the last one left is read at its begin and written at its end.
        state = f"/tmp/.{self.session}"
        words = ["bash", "-c", _BESIDE, "bash", state, self.working_dir, command]
        more: Any = {"timeout": timeout, "max_output": _output.MOST}
        return await self.container.exec(words, env=self.env_vars, cwd="/", **more)


_PYTHON = """
command -v python >/dev/null || {
    mkdir -p /tmp/.bin && ln -sf "$(command -v python3)" /tmp/.bin/python && export PATH=$PATH:/tmp/.bin
}
"""

# Variables that the shell keeps for itself cannot be set, and need not be.
_BESIDE = r"""
exec 2>&1
cd -- "$2" || exit
[ -e "$1" ] && . "$1" 2>/dev/null
_state=$1
_own='^declare -[a-zA-Z]*r| (BASH|FUNCNAME|DIRSTACK|PIPESTATUS|_)'
_keep() {
    { declare -f; declare -p | grep -Ev "$_own"; printf 'cd -- %q\n' "$PWD"; } >"$_state"
}
trap _keep EXIT
eval -- "$3"
"""


class OwnTerminal(AsyncDockerizedTerminal):
    """The shell that the sandbox itself is: background jobs, aliases and options are kept too."""

    async def _begin(self) -> None:
        await self._prepare()

    async def _prepare(self) -> None:
        # Images have a `python`; hosts may not. A file, so that programs find it too.
        lines = [_PYTHON]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.env_vars.items()]
        try:
            await self.container.run("\n".join(lines))
        except BelljarError as problem:
            raise RuntimeError(f"the terminal cannot be opened: {problem}") from problem

    async def _send(self, command: str, timeout: float) -> Result:
        more: Any = {"timeout": timeout, "max_output": _output.MOST}
        # By itself, so that comments and lines that go on end where it does.
        result = await self.container.run(f"eval -- {shlex.quote(command)} 2>&1", **more)
        if result.state == "lost":
            await self._prepare()
        return result
