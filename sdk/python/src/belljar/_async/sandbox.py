"""A sandbox that is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _leftovers, errors, events, records, results
from .._io import asynchronous as io
from ..errors import BelljarError, NotFound
from ..events import Event, ResultEvent
from ..records import SandboxInfo, SandboxUsage
from ..requests import CodeOptions, CommandOptions, SandboxOptions, Time, Unpack, body, encode, spelled_out, text, texts
from ..results import Result
from ..tools import Toolbox, Tools, is_serving, toolbox
from .channel import AsyncChannel, home
from .files import AsyncFiles
from .terminal import AsyncTerminal
from .wire import AsyncWire, default_wire, part

if TYPE_CHECKING:
    from .client import AsyncClient


_ATTENDED = {"attended": "true"}
"""Who stops waiting hangs up, and the daemon ends what was asked for: that, and no other run of the sandbox."""

_WORKSPACE = "/workspace"
_WORDS = "a list of words like ['ls', '-l'], or a line of shell to shell()"


class AsyncStream:
    """What happens in a run, as it happens: iterate over it. Left early, the run is ended.

    ``result`` is there when the last event has been.
    """

    def __init__(self, happening: AsyncGenerator[Event, None]) -> None:
        self._happening = happening
        self.result: Result | None = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Event:
        happened = await self._happening.__anext__()
        if isinstance(happened, ResultEvent):
            self.result = happened.result
        return happened

    async def until_done(self) -> Result:
        """Goes on to the end."""
        async for _ in self:
            pass
        if self.result is None:
            raise BelljarError("the run had no result")
        return self.result

    async def aclose(self) -> None:
        """Ends the run if it has not ended."""
        await self._happening.aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncSandbox:
    """A sandbox that is kept: its interpreter keeps variables from run to run, its workspace keeps files.

    It is made when it is first needed, or entered with ``async with``, which also deletes it at the end. One that nobody refers to
    any more is deleted too, and so is one that is left when the program ends.
    ``tools`` are functions that code inside may call, by name or as they are called.
    The other options are the place's: limits (``timeout``, ``memory``, ``cpus``, …), ``files``, ``env``, ``imports``, ``template``, ….
    """

    @spelled_out(SandboxOptions)
    def __init__(
        self,
        *,
        tools: Tools | None = None,
        client: AsyncClient | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        self._wire: AsyncWire = client.wire if client is not None else default_wire()
        self._request = body(SandboxOptions, "AsyncSandbox", options)
        self._toolbox: Toolbox | None = toolbox(tools)
        self._id: str | None = None
        self._owned = True
        self._closed = False
        self._making = io.Lock()
        self._channel: AsyncChannel | None = None

    @classmethod
    def attach(cls, id: str, *, tools: Tools | None = None, client: AsyncClient | None = None) -> AsyncSandbox:
        """One that is there already, by its id. It is not deleted when this is closed."""
        sandbox = cls(tools=tools, client=client)
        sandbox._id = text("id", id)
        sandbox._owned = False
        return sandbox

    @property
    def id(self) -> str:
        """Its id, once it has been made."""
        if self._id is None:
            raise BelljarError("the sandbox has not been made yet: enter it, or call start()")
        return self._id

    @property
    def files(self) -> AsyncFiles:
        """Its workspace."""
        # Not kept: it holds the sandbox, and in a circle both would stay longer than anybody needs them.
        # Of one that was made elsewhere, only its maker knows where the workspace is.
        workdir = self._request.get("workdir", _WORKSPACE) if self._owned else None
        return AsyncFiles(self._wire, self._made, workdir)

    @property
    def closed(self) -> bool:
        return self._closed

    async def start(self) -> AsyncSandbox:
        """Makes it, if it has not been made."""
        await self._made()
        return self

    async def _made(self) -> str:
        if self._closed:
            raise BelljarError("the sandbox has been closed")
        if self._id is None:
            # Or who is cancelled when the answer is on its way would leave one behind that nobody knows of.
            await io.unhurried(self._make)
        return self.id

    async def _make(self) -> None:
        async with self._making:
            if self._id is None:
                address = await self._wire.address()
                answer = await self._wire.json("POST", "/v1/sandboxes", encode(self._request))
                self._id = str(answer["id"])
                _leftovers.add(self, self._id, address, self._wire.authorization())
                if self._closed:
                    await self.delete()  # its user did not wait for it

    async def _path(self, rest: str = "") -> str:
        return f"/v1/sandboxes/{part(await self._made())}{rest}"

    @spelled_out(CodeOptions)
    async def run(
        self,
        code: str,
        *,
        tools: Tools | None = None,
        check: bool = False,
        **options: Unpack[CodeOptions],
    ) -> Result:
        """Runs code, after what runs already. The last expression, or a ``return``, gives the result's ``value``.

        A failed program is a result too; with ``check`` it is raised instead.
        """
        request, box = self._code(code, tools, options)
        if box:
            result = await self._happening(request, box).until_done()
        else:
            result = results.result(await self._ended("/runs", request))
        return result.check() if check else result

    @spelled_out(CodeOptions)
    def stream(self, code: str, *, tools: Tools | None = None, **options: Unpack[CodeOptions]) -> AsyncStream:
        """Runs code and gives what happens as it happens; the last event has the result."""
        request, box = self._code(code, tools, options)
        return self._happening(request, box)

    def _code(self, code: str, tools: Tools | None, options: Any) -> tuple[dict[str, Any], Toolbox | None]:
        if is_serving(self._id):
            raise BelljarError(
                "the code that called this tool runs in this sandbox until the tool answers, and other code would wait for that; "
                "use shell(), files, or another sandbox"
            )
        request = body(CodeOptions, "run", options)
        request["code"] = text("code", code)
        box = self._toolbox if tools is None else Toolbox(tools)
        if box is not None:
            request["tools"] = box.specs
        return request, box

    @spelled_out(CommandOptions)
    async def shell(self, line: str, *, check: bool = False, **options: Unpack[CommandOptions]) -> Result:
        """Runs a line of shell, beside what runs already."""
        request = body(CommandOptions, "shell", options)
        result = results.result(await self._ended("/commands", {**request, "shell": text("line", line)}))
        return result.check() if check else result

    @spelled_out(CommandOptions)
    async def exec(self, argv: Sequence[str], *, check: bool = False, **options: Unpack[CommandOptions]) -> Result:
        """Runs a command given as words, beside what runs already. A line of shell is for :meth:`shell`."""
        request = {**body(CommandOptions, "exec", options), "argv": texts("argv", argv, _WORDS)}
        result = results.result(await self._ended("/commands", request))
        return result.check() if check else result

    @spelled_out(CommandOptions)
    def stream_shell(self, line: str, **options: Unpack[CommandOptions]) -> AsyncStream:
        """Runs a line of shell and gives what happens as it happens."""
        request = body(CommandOptions, "stream_shell", options)
        return AsyncStream(self._events("/commands", {**request, "shell": text("line", line)}, None))

    def _happening(self, request: dict[str, Any], box: Toolbox | None) -> AsyncStream:
        return AsyncStream(self._events("/runs", request, box))

    async def _ended(self, where: str, request: dict[str, Any]) -> Any:
        return await self._wire.json("POST", await self._path(where), encode(request), query=_ATTENDED)

    async def _events(self, where: str, request: dict[str, Any], box: Toolbox | None) -> AsyncGenerator[Event, None]:
        """From the channel if calls have to be answered, else from a request of its own."""
        if box:
            channel = await self._connected()
            happening = channel.run(request, box)
            try:
                async for happened in happening:
                    yield happened
            finally:
                await happening.aclose()
            return
        said = self._wire.events(await self._path(where), encode(request), query=_ATTENDED)
        try:
            async for name, data in said:
                if name == "error":
                    raise errors.from_answer(data)
                known = events.event(name, data)
                if known is not None:
                    yield known
        finally:
            await said.aclose()

    async def _connected(self) -> AsyncChannel:
        id = await self._made()
        async with self._making:
            # One for all: of two, the second would take over from the first.
            if self._channel is None or self._channel.home != home():
                self._channel = AsyncChannel(self._wire, id)
            return self._channel

    async def interrupt(self) -> None:
        """Asks the run that is going on to stop. It ends with the status ``killed``, and keeps its state if the code yields in time."""
        await self._wire.json("POST", await self._path("/interrupt"))

    async def reset(self) -> None:
        """Makes it as it was when it was new."""
        await self._wire.json("POST", await self._path("/reset"))

    async def usage(self) -> SandboxUsage:
        """What it uses now, and did over the last minutes."""
        return records.usage(await self._wire.json("GET", await self._path("/usage")))

    async def info(self) -> SandboxInfo:
        """What the daemon knows of it."""
        return records.sandbox(await self._wire.json("GET", await self._path()))

    async def renew(self, *, idle_timeout: Time | None = None, lifetime: Time | None = None) -> SandboxInfo:
        """Gives it more time."""
        options = {"idle_timeout": idle_timeout, "lifetime": lifetime}
        request = body(SandboxOptions, "renew", options)
        return records.sandbox(await self._wire.json("POST", await self._path("/renew"), encode(request)))

    async def history(self) -> list[records.RunSummary]:
        """The runs that have ended in it, newest first."""
        query = {"sandbox": await self._made()}
        answer = await self._wire.json("GET", "/v1/runs", query=query)
        return [records.summary(each) for each in answer["runs"]]

    def terminal(
        self,
        shell: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        cwd: str | None = None,
        term: str | None = None,
        rows: int | None = None,
        cols: int | None = None,
    ) -> AsyncTerminal:
        """A terminal in it: enter it, send and receive bytes. A shell runs there, or the line ``shell``, or the words ``argv``."""
        words = json.dumps(texts("argv", argv, _WORDS)) if argv is not None else None
        options = {"shell": shell, "argv": words, "cwd": cwd, "term": term, "rows": rows, "cols": cols}
        return AsyncTerminal(self._wire, self._made, options)

    async def delete(self) -> None:
        """Ends everything in it, and forgets its files."""
        await self._leave()
        if self._id is not None:
            _leftovers.discard(self._id)
            try:
                await self._wire.json("DELETE", f"/v1/sandboxes/{part(self._id)}")
            except NotFound:
                pass  # idle for too long, or somebody else was quicker

    async def _leave(self) -> None:
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

    async def aclose(self) -> None:
        """Deletes it, if it was made here."""
        if self._closed:
            return
        if self._owned and _leftovers.is_own(self._id):
            await self.delete()
        else:
            await self._leave()

    async def __aenter__(self) -> AsyncSandbox:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await io.shielded(self.aclose)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<AsyncSandbox {self._id or 'not made yet'}{state}>"
