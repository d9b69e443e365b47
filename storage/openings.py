"""Logs of an earlier life come into use: read on the loop in slices, made whole by a thread, given to their queues.

A log is opened by its first use (`recover`), which waits for the disk, or ahead of it (`open_soon`), which does not:
it is read for SLICE_S a turn of the loop, one log after the other, the file work of recovery (log/recovery.py) then
stands with another thread, and whoever asked is called when it is done. Who cannot wait has the rest read at once.

After a power cut clean marks are not to be trusted with what was delivered. Only when every log that is open has taken
note of that does the data directory name the present boot of the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from amqpd.storage.data_directory import DataDirectory
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log import recovery
from amqpd.storage.queue_log import LogUnusable
from amqpd.storage.worker import Worker

logger = logging.getLogger(__name__)

# Of one log's reading, before the loop has its turn.
SLICE_S: Final = 0.004


class Openings:
    """The logs that are being opened. Loop thread only, but for the writing.

    post: calls a function with arguments on the loop, from any thread. strict: see `recovery.Reading`. inline: no
    thread and no slices, for simulations. cut_noted: no log is left that has yet to take note of a power cut.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        place: DataDirectory,
        clock: Clock,
        post: Callable[..., object],
        *,
        strict: bool,
        inline: bool,
    ) -> None:
        self.cut_noted = not place.power_cut
        self._filesystem = filesystem
        self._place = place
        self._clock = clock
        self._post = post
        self._strict = strict
        self._thread = None if inline else Worker("amqpd-recovery")
        self._readings: dict[LocalLog, recovery.Reading] = {}  # not read to their ends
        self._failed: set[LocalLog] = set()  # could not be read in slices: who tries again is to meet the error
        self._scheduled = False
        self._read: dict[LocalLog, recovery.Opening] = {}  # read, and not in use yet
        self._uncut: set[LocalLog] = set()  # logs that have not taken note of the power cut

    def expect(self, store: LocalLog) -> None:
        """The store has a log of an earlier life, which has to take note of a power cut if there was one."""
        if not self.cut_noted:
            self._uncut.add(store)

    def recover(self, store: LocalLog) -> None:
        """Opens the store's log now. Waits for the disk, or for the thread that is at it. Raises: as `Reading.go_on`
        and `Opening.finish`; then it may be tried again.
        """
        opening = self._read.pop(store, None)
        if opening is None:
            opening = self._begin(store)
        opening.write()  # waits for the thread that is at it
        opening.finish()
        self._uncut.discard(store)
        if not self.cut_noted and not self._uncut:
            self.cut_noted = True  # every log has taken note of the power cut, so the next start need not
            self._place.note_boot()

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        """See `Storage.open_soon`."""
        if store.ready:
            return True
        opening = self._read.get(store)
        if opening is None:
            reading = self._readings.get(store)
            if reading is None:
                if self._thread is None or store in self._failed:
                    opening = self._begin(store)
                else:
                    reading = self._reading(store)
                    try:
                        opening = reading.go_on(SLICE_S)
                    except OSError:
                        opening = self._begin(store)
            if opening is None:
                assert reading is not None  # it has just gone on, or does in another turn
                reading.waiting.append(done)
                self._readings[store] = reading
                self._go_on_soon()
                return False
            if self._is_whole(store, opening):
                store.recover()
                return True
        elif opening.told:  # whoever asks again behind `done` is not called a second time
            store.recover()
            return True
        opening.waiting.append(done)
        return False

    def _is_whole(self, store: LocalLog, opening: recovery.Opening) -> bool:
        """The log has been read. False: the thread has something to write."""
        self._read[store] = opening
        if self._thread is None or not opening.waits:
            return True
        self._thread.call(partial(self._write, opening))
        return False

    def _go_on_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._post(self._go_on)

    def _go_on(self) -> None:
        """A slice of the log that was begun first."""
        self._scheduled = False
        if not self._readings:
            return
        store, reading = next(iter(self._readings.items()))
        try:
            opening = reading.go_on(SLICE_S)
        except Exception as error:
            if not isinstance(error, OSError | LogUnusable):
                logger.exception("the log of queue '%s' cannot be read", store.name)
            del self._readings[store]
            self._failed.add(store)
            _tell(reading.waiting)  # who tries it meets the error too, and tells of it
        else:
            if opening is not None:
                del self._readings[store]
                if self._is_whole(store, opening):
                    opening.told = True
                    _tell(reading.waiting)
                else:
                    opening.waiting += reading.waiting
        if self._readings:
            self._go_on_soon()

    def _reading(self, store: LocalLog) -> recovery.Reading:
        place = self._place
        return recovery.Reading(store, place.boot, self._clock, power_cut=place.power_cut, strict=self._strict)

    def _begin(self, store: LocalLog) -> recovery.Opening:
        """Reads all of it, or what is left, at once."""
        self._failed.discard(store)
        reading = self._readings.pop(store, None)
        if reading is None:
            reading = self._reading(store)
        elif reading.waiting:
            self._post(_tell, reading.waiting)
        try:
            return reading.all()
        except OSError as error:
            if not self._filesystem.room_after(error):
                raise
            return self._reading(store).all()

    def _write(self, opening: recovery.Opening) -> None:
        """In the thread."""
        opening.write()
        self._post(self._written, opening)

    def _written(self, opening: recovery.Opening) -> None:
        opening.told = True
        waiting, opening.waiting = opening.waiting, []
        _tell(waiting)

    def drop(self, store: LocalLog) -> None:
        """The store is being deleted."""
        self._uncut.discard(store)
        self._failed.discard(store)
        reading = self._readings.pop(store, None)
        if reading is not None:
            reading.end()
        opening = self._read.pop(store, None)
        if opening is not None:
            opening.drop()  # or it goes on, and finds its files or not: nobody will look

    def close(self) -> None:
        """Logs that nobody has waited for are not made whole any more. Blocks for the one that is being written."""
        for reading in self._readings.values():
            reading.end()
        self._readings.clear()
        for opening in self._read.values():
            opening.drop()
        if self._thread is not None:
            self._thread.close()


def _tell(waiting: list[Callable[[], None]]) -> None:
    for done in waiting:
        done()
