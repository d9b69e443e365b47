"""A thread for what takes the disk's time and must hold up neither the loop nor the committer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """Calls what it is given, one after the other. The thread starts with the first of them.

    What it calls raises nothing, and posts to the loop what it has to say.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def began(self) -> bool:
        """Whether it was ever given something."""
        return self._thread is not None

    def call(self, work: Callable[[], None]) -> None:
        """From any thread. Cost: some 10 us, waking the thread included."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Does what it was given, then ends the thread. Nothing is given to it afterwards."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # who asked for it is not kept until the next
