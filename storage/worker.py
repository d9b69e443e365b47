"""`WorkerThread` for slow file work, and `ReadAhead`, which loads logs into the page cache.

The loop itself reads what is in the page cache: that costs less than another thread. A read from the disk would
block every queue for milliseconds. So a reader of a cold log asks for the next range (`LogReader.is_cached`), the
thread makes the kernel read it, and then notifies the loop, which continues with the queue. While one range is
delivered, the next is fetched, so the disk is busy and reads in order.

No bytes are kept or copied in this process: a range is sent to /dev/null. If the kernel drops it again before the
read, the loop waits for the disk. One thread serves all logs, in the order of the requests.
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
    """Runs functions one after another in a thread that starts with the first one.

    The functions must not raise; they post results to the loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread. Callable from any thread. Cost: about 10 us with the wake-up."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Complete all work, then end the thread. No `call` may follow."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # release its objects while the thread waits


logger = logging.getLogger(__name__)

RANGE_SIZE: Final = 4 << 20


class ReadAheadRange:
    """A range of a file to load.

    `arrived` is called on the loop at the end or after a disk error; None after a cancel.
    """

    def __init__(self, file: OpenFile, position: int, end: int, arrived: Callable[[ReadAheadRange], None]) -> None:
        self.file = file
        self.position = position
        self.end = end
        self.arrived: Callable[[ReadAheadRange], None] | None = arrived


class ReadAhead:
    """Loads ranges of logs into the page cache.

    Args:
        post: calls a function on the loop, from any thread.

    Attributes:
        count: ranges fetched.
    """

    def __init__(self, filesystem: FileSystem, post: Callable[..., object]) -> None:
        self.count = 0
        self.worker = WorkerThread("amqpd-readahead")
        self._filesystem = filesystem
        self._post = post

    def request(
        self, file: OpenFile, position: int, end: int, arrived: Callable[[ReadAheadRange], None]
    ) -> ReadAheadRange:
        """Request a range of a file. Loop thread only. Raises nothing. Cost: about 10 us."""
        asked = ReadAheadRange(file, position, end, arrived)
        file.pins += 1
        self.worker.call(partial(self._fetch, asked))
        return asked

    def _fetch(self, asked: ReadAheadRange) -> None:
        if asked.arrived is not None:
            try:
                self._filesystem.read_into_cache(asked.file.fd, asked.end - asked.position, asked.position)
            except OSError as error:
                # The loop meets the same error when it reads, and raises it.
                logger.warning("read-ahead in %s failed: %s", asked.file.path, error)
        self._post(self._arrived, asked)

    def _arrived(self, asked: ReadAheadRange) -> None:
        asked.file.unpin()
        self.count += 1
        if asked.arrived is not None:
            asked.arrived(asked)
