"""What is raised. A program that fails is a result, not an exception: these are for what the caller or Belljar did wrong,
and for those who ask for them with ``check``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Result


class BelljarError(Exception):
    """Everything that Belljar raises.

    ``code`` is the daemon's stable name for it, ``request_id`` what its log has it under, ``result`` that of the run it is about.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        request_id: str | None = None,
        result: Result | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id
        self.result = result

    @property
    def message(self) -> str:
        """The sentence."""
        return str(self)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments do not survive pickling by themselves.
        return _again, (type(self), str(self), self.__dict__)


def _again(kind: type[BelljarError], message: str, state: dict[str, object]) -> BelljarError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class InvalidRequest(BelljarError):
    """What was asked for is not accepted; the message says what is."""


class NotFound(BelljarError):
    """It is not there, or it is somebody else's."""


class Unavailable(BelljarError):
    """It could not be done now: there is no daemon, no room, or no such runtime on its host.

    ``retry_after`` has the seconds after which it is worth trying again, if the daemon said so.
    """

    retry_after: float | None = None


class RunFailed(BelljarError):
    """The code failed, and the caller had asked to be told so with ``check``. ``result`` has everything about it."""


class SandboxTimeout(RunFailed, TimeoutError):
    """The time was up."""


class OutOfMemory(RunFailed, MemoryError):
    """More memory was needed than the limit allows."""


class ImportNotAllowed(RunFailed, ImportError):
    """The code imported a module that ``imports`` does not list."""


# The daemon's codes that are not plain errors; `crates/spec/src/error.rs` has the table.
_KINDS: dict[str, type[BelljarError]] = {
    "invalid_id": NotFound,
    "not_found": NotFound,
    "too_slow": Unavailable,
    "invalid_manifest": Unavailable,
    "overloaded": Unavailable,
    "pull_failed": Unavailable,
    "runtime_missing": Unavailable,
    "unsupported_host": Unavailable,
    "unavailable": Unavailable,
    "unauthorized": BelljarError,
    "forbidden": BelljarError,
    "conflict": BelljarError,
    "internal": BelljarError,
}


def from_answer(body: object, status: int = 0, retry_after: str | None = None) -> BelljarError:
    """The exception for an answer that is no success."""
    detail = body.get("error") if isinstance(body, dict) else None
    if not isinstance(detail, dict):
        return Unavailable(f"the daemon answered with the status {status}, and not as Belljar does")
    code = str(detail.get("code"))
    kind = _KINDS.get(code, InvalidRequest)
    error = kind(str(detail.get("message")), code=code, request_id=detail.get("request_id") or None)
    if isinstance(error, Unavailable) and retry_after is not None and retry_after.isdigit():
        error.retry_after = float(retry_after)
    return error


def from_result(result: Result) -> RunFailed | None:
    """The exception for a run that failed; None if it did not."""
    if result.success:
        return None
    kind: type[RunFailed] = RunFailed
    if result.status == "timed_out":
        kind = SandboxTimeout
    elif result.status == "out_of_memory":
        kind = OutOfMemory
    elif (
        result.error is not None
        and result.error.type == "ImportError"
        and result.error.message.endswith(" not allowed")
    ):
        kind = ImportNotAllowed
    return kind(_story(result), code=result.status, result=result)


def _story(result: Result) -> str:
    """How it ended, and below it what the code itself said."""
    limits = result.limits
    if result.status == "timed_out":
        lines = [f"the time was up after {limits.timeout_ms} ms"]
    elif result.status == "out_of_memory":
        lines = [f"out of memory: more than {limits.memory_bytes // (1 << 20)} MiB were needed"]
    elif result.status == "killed":
        lines = ["the run was ended from outside"]
    elif result.status == "compile_failed":
        lines = ["the code did not compile"]
    elif result.error is not None:
        lines = [f"{result.error.type}: {result.error.message}" if result.error.message else result.error.type]
    elif result.signal is not None:
        lines = [f"the code was ended by signal {result.signal}"]
    else:
        lines = [f"the code exited with {result.exit_code}"]
    told = result.error.traceback if result.error is not None else ""
    if result.compile is not None and result.status == "compile_failed":
        told = result.compile.stderr or result.compile.stdout
    told = (told or result.stderr).rstrip()
    if told:
        lines += ["", "The code's own report:"]
        lines += [f"  {line}" for line in told[-_TOLD:].splitlines()]
    if result.error is not None and result.error.hint:
        lines += ["", f"Hint: {result.error.hint}"]
    return "\n".join(lines)


_TOLD = 20_000
