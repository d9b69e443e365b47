"""Logs of an earlier life come into use: read on the loop, made whole by a thread, given to their queues.

A log is opened by its first use (`recover`), which waits for the disk, or ahead of it (`open_soon`), which does not:
the file work of recovery (log/recovery.py) then stands with another thread and whoever asked is called when it is done.

After a power cut clean marks are not to be trusted with what was delivered. Only when every log that is open has taken
note of that does the data directory name the present boot of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from amqpd.storage.data_directory import DataDirectory
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log import recovery
from amqpd.storage.worker import Worker


class Openings:
    """The logs that are being opened. Loop thread only, but for the writing.

    post: calls a function with arguments on the loop, from any thread. strict: see `recovery.begin`. inline: no
    thread, for simulations. cut_noted: no log is left that has yet to take note of a power cut.
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
        self._read: dict[LocalLog, recovery.Opening] = {}  # read, and not in use yet
        self._uncut: set[LocalLog] = set()  # logs that have not taken note of the power cut

    def expect(self, store: LocalLog) -> None:
        """The store has a log of an earlier life, which has to take note of a power cut if there was one."""
        if not self.cut_noted:
            self._uncut.add(store)

    def recover(self, store: LocalLog) -> None:
        """Opens the store's log now. Waits for the disk, or for the thread that is at it. Raises: as `recovery.begin`
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
            opening = self._begin(store)
            self._read[store] = opening
            if self._thread is None or not opening.waits:
                store.recover()
                return True
            self._thread.call(partial(self._write, opening))
        elif opening.told:  # whoever asks again behind `done` is not called a second time
            store.recover()
            return True
        opening.waiting.append(done)
        return False

    def _begin(self, store: LocalLog) -> recovery.Opening:
        try:
            return self._begin_once(store)
        except OSError as error:
            if not self._filesystem.room_after(error):
                raise
            return self._begin_once(store)

    def _begin_once(self, store: LocalLog) -> recovery.Opening:
        place = self._place
        return recovery.begin(store, place.boot, self._clock, power_cut=place.power_cut, strict=self._strict)

    def _write(self, opening: recovery.Opening) -> None:
        """In the thread."""
        opening.write()
        self._post(self._written, opening)

    def _written(self, opening: recovery.Opening) -> None:
        opening.told = True
        waiting, opening.waiting = opening.waiting, []
        for done in waiting:
            done()

    def drop(self, store: LocalLog) -> None:
        """The store is being deleted."""
        self._uncut.discard(store)
        opening = self._read.pop(store, None)
        if opening is not None:
            opening.drop()  # or it goes on, and finds its files or not: nobody will look

    def close(self) -> None:
        """Logs that nobody has waited for are not made whole any more. Blocks for the one that is being written."""
        for opening in self._read.values():
            opening.drop()
        if self._thread is not None:
            self._thread.close()
