"""What the machine gives in bounded amounts, and all logs share: descriptors, and the last room on a full disk.

**Descriptors.** Logs open files on demand and keep them: opening one costs more than a write. The number that stay open
has a bound. After each commit those of the logs that were not written to for longest are closed; whoever writes to
thousands of logs in one turn closes at once what is beyond (storage/group_commit.py). Where somebody else has taken the
process's descriptors, ours go before an append fails.

**The reserve.** A file of zeros, given up when the disk is full so that what is settled can still be written, which
makes room; it is taken back once there is some.
"""

from __future__ import annotations

import errno
import logging
import resource
from collections.abc import Collection

from amqpd.storage.filesystem import Clock, FileSystem, Reserve
from amqpd.storage.local_log import LocalLog

logger = logging.getLogger(__name__)

RESERVE_RETRY_S = 1.0
OPEN_FILE_COUNT_MAX = 4096  # or three quarters of what the process may open, whichever is less
CLOSE_PAUSE_S = 0.2  # between two looks at all logs for files to close


class FdBudget:
    """Keeps descriptors below their bound, and the reserve in being. Loop thread only.

    stores: all that are in use, as they come and go. open_file_count_max: None: 3/4 of what the process may have, at
    most 4,096. reserve_path: of the reserve's file, which is made by `take_reserve`.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        stores: Collection[LocalLog],
        reserve_path: str,
        open_file_count_max: int | None,
    ) -> None:
        self.reserve = Reserve(filesystem, reserve_path)
        self._filesystem = filesystem
        self._clock = clock
        self._stores = stores
        self._reserve_tried_s = 0.0
        self._closed_some_s = -CLOSE_PAUSE_S
        filesystem.open_file_count_max = _own_share() if open_file_count_max is None else open_file_count_max
        filesystem.make_room = self._make_room

    # -- the reserve

    def take_reserve(self) -> None:
        """At the start. A disk without room for it serves all the same."""
        self._reserve_tried_s = self._clock.monotonic()
        try:
            self.reserve.take()
        except OSError as error:
            logger.warning("no room for the settlement reserve: %s", error)

    def take_reserve_again(self) -> None:
        """After each commit: if it was given up, it is taken again, once a second while there is no room."""
        if self.reserve.held:
            return
        now_s = self._clock.monotonic()
        if now_s < self._reserve_tried_s + RESERVE_RETRY_S:
            return
        self._reserve_tried_s = now_s
        try:
            self.reserve.take()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                logger.warning("the settlement reserve: %s", error)

    # -- descriptors

    def close_some_files(self) -> None:
        """Keeps the number of open files below its bound, where who writes would have to close at once what it opens:
        those of the stores that were not written to for longest go. Cost: nothing below 7/8 of the bound, else a sort
        of all stores.
        """
        total = self._filesystem.open_file_count
        bound = self._filesystem.open_file_count_max
        if total <= bound * 7 // 8:
            return
        now_s = self._clock.monotonic()
        if total <= bound and now_s < self._closed_some_s + CLOSE_PAUSE_S:
            return
        self._closed_some_s = now_s
        counts = [(store.last_turn, store.log.open_file_count(), store) for store in self._stores if store.log.segments]
        counts.sort(key=_turn_of)
        for _, count, store in counts:
            if count and store.release():
                total -= count
                if total <= bound * 3 // 4:
                    return

    def _make_room(self) -> bool:
        """Somebody else has taken the descriptors: all goes that no sync is at work on. Whether that was any."""
        before = self._filesystem.open_file_count
        for store in self._stores:
            if store.log.open_file_count():
                store.close_unsynced_files()
        return self._filesystem.open_file_count < before


def _own_share() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILE_COUNT_MAX if soft == resource.RLIM_INFINITY else min(OPEN_FILE_COUNT_MAX, soft * 3 // 4)


def _turn_of(entry: tuple[int, int, LocalLog]) -> int:
    return entry[0]
