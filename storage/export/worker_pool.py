"""Worker processes that write an export's files, beside the driver, which writes some, too.

Each worker has one connection to the driver, which sends it a task and gets messages back. Workers are new programs,
not forks, because Arrow has threads. They do not import the driver's main module, as multiprocessing's workers would:
the command line costs time and memory in each of them. A worker ignores SIGINT and SIGTERM, which a terminal or a
service manager sends to all processes. It ends when its connection is closed, so it does not outlive a killed driver
by more than one group of rows.

The task of a worker that was killed runs again in another worker, never in the driver. It uses other file names, and
only the names in a task's result count.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final, NamedTuple

import pyarrow as pa

from amqpd.storage.export.file_writer import FileLayout, WrittenFile, write_task
from amqpd.storage.export.files import SourceError
from amqpd.storage.export.options import ReadOptions
from amqpd.storage.export.plan import DataLoss, LogPartition

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 4
"""Attempts of a task whose worker is killed."""
_ADVANCED, _DONE, _FAILED = range(3)
_PROGRAM: Final = """\
import sys
number, *sys.path[:] = sys.argv[1:]
from multiprocessing.connection import Connection
from amqpd.storage.export.worker_pool import work
work(Connection(int(number)))
"""


class WorkerFailed(Exception):
    """A worker process was killed too often, or met an unexpected error; the text says which."""


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


class WorkerPool:
    """Processes for tasks: this one and workers. These are started when they are first needed, and stay until `close`.

    Args:
        size: Number of processes, with this one.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, int]] = {}

    def run(
        self,
        options: ReadOptions,
        layout: FileLayout,
        tasks: Sequence[Sequence[LogPartition]],
        advance: Callable[[int, int], None],
    ) -> list[WrittenFile]:
        """Run `write_task` for each task. Return the files of all tasks.

        Raises: DataLoss, SourceError, OSError, WorkerFailed. Afterwards the other tasks are stopped.
        """
        waiting = deque(enumerate(tasks))
        attempts = [0] * len(tasks)
        found: list[WrittenFile] = []

        def step(timeout_s: float | None) -> None:
            """Give tasks to workers without one, and handle the messages of the others."""
            while waiting and len(self._busy) < self.size - 1:
                number, parts = waiting.popleft()
                attempts[number] += 1
                self._send(number, (options, layout, (number, parts)))
            for connection in wait(list(self._busy), timeout_s):
                assert isinstance(connection, Connection)
                worker, number = self._busy[connection]
                try:
                    kind, *values = connection.recv()
                except (EOFError, OSError):
                    del self._busy[connection]
                    self._check_attempts(worker, attempts[number])
                    waiting.append((number, tasks[number]))
                    continue
                if kind == _ADVANCED:
                    advance(*values)
                elif kind == _FAILED:
                    raise values[0]
                else:
                    del self._busy[connection]
                    self._idle.append(worker)
                    found.extend(values[0])

        def own_advance(rows: int, size_bytes: int) -> None:
            advance(rows, size_bytes)
            step(0)

        try:
            step(0)
            while waiting or self._busy:
                if waiting and not attempts[waiting[0][0]]:
                    found += write_task(options, layout, waiting.popleft(), own_advance)
                else:
                    step(None)
        except BaseException:
            self.close()
            raise
        return found

    def _check_attempts(self, worker: _Worker, attempts: int) -> None:
        worker.connection.close()
        code = worker.process.wait()
        if code >= 0:
            raise WorkerFailed("a worker process met an unexpected error; standard error has its traceback")
        if attempts >= ATTEMPTS_MAX:
            raise WorkerFailed(f"a worker process was ended by signal {-code}, {attempts} times in one task")
        logger.warning("a worker process was ended by signal %d; its task runs again", -code)

    def _send(self, number: int, task: tuple[Any, ...]) -> None:
        while True:
            worker = self._idle.pop() if self._idle else _start()
            try:
                worker.connection.send(task)
            except OSError:  # it was killed while it was idle
                worker.connection.close()
                worker.process.wait()
                continue
            self._busy[worker.connection] = worker, number
            return

    def close(self) -> None:
        """End all processes: idle ones at once, others by SIGKILL."""
        for worker, _ in self._busy.values():
            worker.process.kill()
        for worker in (*self._idle, *(worker for worker, _ in self._busy.values())):
            worker.connection.close()
            worker.process.wait()
        self._idle.clear()
        self._busy.clear()


def _start() -> _Worker:
    ours, theirs = Pipe()
    program = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
    # The new process inherits the mask, and never unblocks it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process = subprocess.Popen(program, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return _Worker(process, ours)


def work(connection: Connection) -> None:
    """Run tasks until the driver closes the connection."""
    use_system_allocator()

    def advance(rows: int, size_bytes: int) -> None:
        connection.send((_ADVANCED, rows, size_bytes))

    try:
        while True:
            options, layout, numbered = connection.recv()
            try:
                answer: tuple[Any, ...] = _DONE, write_task(options, layout, numbered, advance)
            except BrokenPipeError:
                raise
            except (DataLoss, SourceError, OSError) as error:
                answer = _FAILED, error
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the driver has ended


def use_system_allocator() -> None:
    """Use glibc's allocator for Arrow in this process.

    Each group of rows needs as much memory as the last one, which was freed. Arrow's own allocators return it to
    the kernel, which clears each page again; glibc keeps it (arrow.py).
    """
    pa.set_memory_pool(pa.system_memory_pool())
