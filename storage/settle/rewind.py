"""Settled messages of a log become live again, where they stand: all of them or none, whatever happens meanwhile.

Four steps, of which the second is the one that counts:

    file       what is to be taken back is written to the file `rewind` (rewind_file.py), in the committer's thread
    synced     with its name. From here on a crash ends with all of it live: recovery does what the file says
    settled    the segments know it, and their `.settled` files are written anew (settled_files.py), which takes a job
    gone       those files have their names, synced; then `rewind` goes, synced too

The owner gives nothing of it to anybody before the last step: so nothing in the file can have been settled once more
while it is there. A log that fails on the way is left to the next start, which finds the file and does it.

What has left the log meanwhile is not taken back; `taken` says what is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from amqpd.storage.commit.committer import Task
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.segment import Segment
from amqpd.storage.queue_log import LogFailed
from amqpd.storage.settle import rewind_file
from amqpd.storage.settle.settled import SettledSet

logger = logging.getLogger(__name__)

_WRITING: Final = 0
_WRITTEN: Final = 1
_SETTLED: Final = 2
_REMOVING: Final = 3
_OVER: Final = 4


class Rewind:
    """One of them, of one log: what is to be taken back is added, it begins, and `go_on` is called until `over`.

    taken: by base offset of the segment, those that are taken back; at the end, that were. body_bytes: of each
    segment's. count, size_bytes: how many were, and of their bodies. error: why nothing was taken back; None: it was.
    """

    def __init__(
        self, store: LocalLog, submit: Callable[[Task], None], gather: Callable[[LocalLog], None]
    ) -> None:
        self.taken: dict[int, SettledSet] = {}
        self.body_bytes: dict[int, int] = {}
        self.count = 0
        self.size_bytes = 0
        self.error: Exception | None = None
        self._store = store
        self._submit = submit
        self._gather = gather
        self._path = f"{store.log.directory}/{rewind_file.NAME}"
        self._step = _WRITING
        self._segment: Segment | None = None  # of what was added last

    def add(self, offset: int, body_size_bytes: int) -> None:
        """A message that is settled and still in the log. Ascending offsets cost least: 0.5 us."""
        segment = self._segment
        if segment is None or not segment.base <= offset < segment.end:
            segment = self._segment = self._store.log.segment_of(offset)
            if segment is None:
                return  # it has left the log
            if segment.base not in self.taken:
                self.taken[segment.base] = SettledSet(segment.base)
                self.body_bytes[segment.base] = 0
        self.taken[segment.base].add(offset, offset)
        self.body_bytes[segment.base] += body_size_bytes

    def ranges(self) -> list[tuple[int, int]]:
        """What is, or was, taken back: ascending, ends included. Cost: a step per range, or per offset of many."""
        return [each for base in sorted(self.taken) for each in self.taken[base].ranges()]

    @property
    def over(self) -> bool:
        """Whether it is done, or has come to nothing."""
        return self._step == _OVER

    def begin(self) -> None:
        """Nothing is added any more. Raises nothing."""
        store = self._store
        log = store.log
        store.flush_batches()
        try:
            if store.failed or store.deleted:
                raise LogFailed(store.name)
            if not log.begun:
                log.begin()
        except (OSError, LogFailed) as error:
            self._end(error)
            return
        data = rewind_file.encode_rewind(self.taken, self.body_bytes, log.epoch)
        self._gather(store)
        self._submit(Task(lambda: self._write(data), self._written))

    def _write(self, data: bytes) -> None:
        """In the committer's thread."""
        filesystem = self._store.log.filesystem
        filesystem.replace_file(self._path, data, sync=True)
        filesystem.fsync_dir(self._store.log.directory)

    def _written(self, error: OSError | None) -> None:
        self._step = _WRITTEN
        if error is not None:
            # It may be there all the same, with or without its name.
            self._remove(error)

    def go_on(self) -> None:
        """Does what can be done now. Raises nothing."""
        store = self._store
        if self._step not in (_WRITTEN, _SETTLED):
            return
        if store.failed or store.deleted:
            self._end(LogFailed(store.name))  # the next start does it
        elif self._step == _WRITTEN:
            self._take_back()
        elif not any(segment.swapping for segment in self._segments()):
            self._remove(None)

    def _segments(self) -> list[Segment]:
        """Those that are still there."""
        there = {segment.base: segment for segment in self._store.log.segments}
        found = [there[base] for base in self.taken if base in there]
        return [segment for segment in found if not segment.gone and not segment.removing]

    def _take_back(self) -> None:
        store = self._store
        log = store.log
        store.write_late()  # nothing may be told behind the new files that was true before
        segments = self._segments()
        if any(segment.swapping for segment in segments):
            self._gather(store)
            return
        if log.settled_files.pending or not segments:
            self._remove(log.error if log.settled_files.pending and log.error is not None else LogFailed(store.name))
            return
        self.taken = {segment.base: self.taken[segment.base] for segment in segments}
        last = -1
        for segment in segments:
            offsets = self.taken[segment.base]
            self.count += segment.settled.take_out(offsets)
            size = min(self.body_bytes[segment.base], segment.settled_body_bytes)
            segment.settled_body_bytes -= size
            self.size_bytes += self.body_bytes[segment.base]
            last = max(last, offsets.highest)
        store.recount(last + 1)
        log.settled_files.rewrite_all(segments, log.delivered_mark, store.returned)
        if not all(segment.swapping for segment in segments):  # no room: as if nothing had been asked
            for segment in segments:
                for first, end in self.taken[segment.base].ranges():
                    log.settle(first, end, 0)
            store.recount()
            self.count = self.size_bytes = 0
            self._remove(log.error or OSError("the settlements could not be written"))
            return
        self._step = _SETTLED
        self._gather(store)

    def _remove(self, why: Exception | None) -> None:
        """The file goes. why: what has come in between; None: all is done."""
        self._step = _REMOVING
        self._submit(Task(self._unlink, lambda error: self._removed(why, error)))

    def _unlink(self) -> None:
        """In the committer's thread. The names of the new files are on the medium before it goes."""
        log = self._store.log
        log.filesystem.fsync_dir(log.directory)
        log.filesystem.unlink(self._path)
        log.filesystem.fsync_dir(log.directory)

    def _removed(self, why: Exception | None, error: OSError | None) -> None:
        if error is not None:
            logger.error("%s: %s; after a crash what was rewound may come back once more", self._path, error)
        self._end(why)

    def _end(self, error: Exception | None) -> None:
        self.error = error
        self._step = _OVER
