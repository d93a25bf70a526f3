"""Hand cases to worker processes; a worker that dies under a case is an escape of that case."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait

from .cases import Case
from .judge import ESCAPED, Verdict
from .worker import Plan, Worker, could_not

Task = tuple[Case, tuple[str, ...]]
SPAWN = multiprocessing.get_context("fork")


def serve(plan: Plan, number: int, link: Connection) -> None:
    """A worker's life: a case comes in, a verdict goes out; at the end what it suspects of being left over."""
    try:
        worker = Worker(plan, number)
    except Exception as error:
        link.send(f"worker {number} could not start: {type(error).__name__}: {error}")
        return
    while (task := link.recv()) is not None:
        case, weaken = task
        try:
            verdict = worker.control(case) if plan.mode == "control" else worker.attack(case, weaken)
        except Exception as error:
            verdict = could_not(case, plan.mode, error)
        link.send(verdict)
    link.send(worker.suspects)
    worker.close()


class NotStarted(Exception):
    """A worker could not put up its canaries, or Belljar does not run at all."""


class Pool:
    """Some workers over a list of tasks."""

    def __init__(self, plan: Plan, jobs: int, numbers: Iterator[int]) -> None:
        self.plan = plan
        self.jobs = jobs
        self.numbers = numbers
        self.suspects: dict[str, str] = {}

    def run(self, tasks: list[Task], tell: Callable[[Verdict], None]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        waiting = list(reversed(tasks))
        busy: dict[Connection, tuple[multiprocessing.process.BaseProcess, Task | None]] = {}

        def feed(link: Connection, process: multiprocessing.process.BaseProcess) -> None:
            task = waiting.pop() if waiting else None
            link.send(task)
            busy[link] = (process, task)

        for _ in range(min(self.jobs, len(tasks))):
            feed(*self._start())
        while busy:
            for link in wait(list(busy)):
                assert isinstance(link, Connection)
                process, task = busy.pop(link)
                try:
                    answer = link.recv()
                except (EOFError, ConnectionError):
                    if task is not None:
                        answer = Verdict(task[0].id, self.plan.mode, ESCAPED, 0.0, ["the suite's own worker was killed"])
                        feed(*self._start())
                if isinstance(answer, str):
                    raise NotStarted(answer)
                if isinstance(answer, Verdict):
                    verdicts.append(answer)
                    tell(answer)
                    if process.is_alive():
                        feed(link, process)
                else:
                    self.suspects.update(answer)
                    process.join()
        return verdicts

    def _start(self) -> tuple[Connection, multiprocessing.process.BaseProcess]:
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=serve, args=(self.plan, next(self.numbers), there), daemon=False)
        process.start()
        there.close()
        return here, process
