"""Top-level `await`: one event loop for the whole session.

It turns only while a run is going on: tasks that a run leaves behind go on when a later one awaits, and get one turn at the end of
every run. `asyncio` is loaded by the first run that needs it.
"""

from .private import BUILTINS as __builtins__  # noqa: F401, I001

# What asks for a loop that is running, and what runs one by itself and so must not find itself inside of one.
_ASKING = frozenset(("create_task", "current_task", "ensure_future", "gather", "get_running_loop"))
_RUNNING = frozenset(("run", "run_forever", "run_until_complete", "Runner"))


def asks_for_loop(code):
    """Whether code without `await` is to be run inside of the loop: it uses `asyncio` like that itself, outside of functions."""
    names = code.co_names
    return "asyncio" in names and not _ASKING.isdisjoint(names) and _RUNNING.isdisjoint(names)


async def inside(code, names):
    """Code without `await`, as a coroutine."""
    exec(code, names)


class Tasks:
    """Runs coroutines of the code to their end, in the loop of the session."""

    def __init__(self, interrupts):
        self._interrupts = interrupts
        self._loop = None
        self._inner = ()  # how the names of the loop's own files begin

    def run(self, coroutine):
        """The exception that ended the coroutine, or None."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            directory = asyncio.__file__.rpartition("/")[0]
            self._inner = (f"{directory}/", f"{directory.rpartition('/')[0]}/selectors.py")
        loop = self._loop
        asyncio.set_event_loop(loop)
        main = loop.create_task(coroutine)
        main.add_done_callback(lambda _: loop.stop())
        stopped = None
        cancelled = []

        def divert(frame):
            """An interrupt inside the loop's own code would lose what it was about to do: the task is cancelled instead."""
            if main.done() or cancelled or not self._is_inside(frame):
                return False
            cancelled.append(True)
            main.cancel()
            loop.call_soon_threadsafe(lambda: None)
            return True

        self._interrupts.divert = divert
        try:
            while not main.done():
                try:
                    loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as exception:
                    if main.done() or stopped is not None:
                        break
                    # It came out of another task: this one gets the chance to clean up.
                    stopped = exception
                    main.cancel()
        finally:
            self._interrupts.divert = None
        if not main.done():
            return stopped
        if main.cancelled():
            try:
                main.result()
            except asyncio.CancelledError as exception:
                while isinstance(exception.__context__, asyncio.CancelledError):
                    exception = exception.__context__  # before Python 3.11 the place is known to this one only
                if cancelled:
                    return KeyboardInterrupt().with_traceback(exception.__traceback__)
                return stopped or exception
        return stopped or main.exception()

    def _is_inside(self, frame):
        """Whether the frame belongs to the loop and not to the code it runs."""
        return frame.f_code.co_filename.startswith(self._inner)

    def turn(self):
        """One turn for whoever is ready."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return
        loop.call_soon(loop.stop)
        loop.run_forever()

    def close(self):
        """Before the process ends like a script: cancels what is left, as `asyncio.run` does."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed() or loop.is_running():
            return
        import asyncio

        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
