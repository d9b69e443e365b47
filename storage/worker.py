"""A thread for what takes the disk's time and must hold up neither the loop nor the committer.

Brings logs back into the page cache, on a thread of its own, before they are read.

What is in the page cache is read by the loop itself: that costs less than having it read by somebody else. A read from
the disk would hold every queue for milliseconds. So whoever goes through a cold log asks for the range that comes
next (`LogReader.at_hand`); the thread has the kernel read it and tells the loop, and the queue is pumped again then.
While one range is delivered the next one is fetched: the disk always has something to do, and reads in order.

Nothing is held in this process, and nothing is copied here: a range is sent to /dev/null. Should memory be so short
that it is gone again before it was read, the loop waits for the disk, as it would have without all this.

One thread for all logs: ranges are fetched one after the other, as they were asked for.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from amqpd.storage.filesystem import FileSystem, OpenFile


class WorkerThread:
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


logger = logging.getLogger(__name__)

RANGE_SIZE: Final = 4 << 20


class ReadAheadRange:
    """The bytes of a log from `position` to `end`. arrived: called on the loop when they are in the page cache, or the
    disk has failed; None when nobody wants to know any more.
    """

    def __init__(self, file: OpenFile, position: int, end: int, arrived: Callable[[ReadAheadRange], None]) -> None:
        self.file = file
        self.position = position
        self.end = end
        self.arrived: Callable[[ReadAheadRange], None] | None = arrived


class ReadAhead:
    """The thread that brings ranges of logs into the page cache.

    post: calls a function on the loop, from any thread.
    """

    def __init__(self, filesystem: FileSystem, post: Callable[..., object]) -> None:
        self.count = 0  # of ranges fetched
        self.worker = WorkerThread("amqpd-readahead")
        self._filesystem = filesystem
        self._post = post

    def ask(self, file: OpenFile, position: int, end: int, arrived: Callable[[ReadAheadRange], None]) -> ReadAheadRange:
        """Begins to fetch a range of a file. Loop thread. Raises nothing. Cost: some 10 us."""
        asked = ReadAheadRange(file, position, end, arrived)
        file.pins += 1
        self.worker.call(partial(self._fetch, asked))
        return asked

    def _fetch(self, asked: ReadAheadRange) -> None:
        if asked.arrived is not None:
            try:
                self._filesystem.fetch(asked.file.fd, asked.end - asked.position, asked.position)
            except OSError as error:  # the loop meets it too, and raises what comes of it
                logger.warning("reading ahead in %s: %s", asked.file.path, error)
        self._post(self._arrived, asked)

    def _arrived(self, asked: ReadAheadRange) -> None:
        asked.file.unpin()
        self.count += 1
        if asked.arrived is not None:
            asked.arrived(asked)
