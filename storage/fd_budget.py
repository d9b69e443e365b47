"""Limited resources shared by all logs: descriptors, and the last space on a full disk.

**Descriptors.** Logs keep their files open, because opening costs more than a write. The number of open files is
limited. After each commit, the logs written least recently close theirs. A turn that writes to thousands of logs
closes the excess at once (group_commit.py). If other code used up the descriptors of the process, logs close files
before an append fails.

**Reserve.** A file of zeros is deleted when the disk is full. Then settled offsets can still be written, which
frees segments. The reserve is created again when there is space.
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
OPEN_FILE_COUNT_MAX = 4096  # or three quarters of the process limit, if that is less
CLOSE_PAUSE_S = 0.2  # between two searches for files to close


class FdBudget:
    """Limits the open files and keeps the reserve. Loop thread only.

    Args:
        stores: the logs in use; the collection changes.
        open_file_count_max: None for 3/4 of the process limit, at most 4,096.
        reserve_path: the path of the file that `take_reserve` creates.
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
        filesystem.open_file_count_max = _default_limit() if open_file_count_max is None else open_file_count_max
        filesystem.make_room = self._make_room

    # -- reserve

    def take_reserve(self) -> None:
        """Create the reserve at the start. The broker also works without it."""
        self._reserve_tried_s = self._clock.monotonic()
        try:
            self.reserve.take()
        except OSError as error:
            logger.warning("no disk space for the reserve: %s", error)

    def restore_reserve(self) -> None:
        """Create a released reserve again, trying once per second. Called after each commit."""
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
                logger.warning("cannot create the reserve again: %s", error)

    # -- descriptors

    def close_some_files(self) -> None:
        """Close the files of the logs written least recently, so that writers need not close theirs at once.

        Cost: nothing below 7/8 of the limit, else a sort of all logs.
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
        counts.sort(key=_last_turn)
        for _, count, store in counts:
            if count and store.release_files():
                total -= count
                if total <= bound * 3 // 4:
                    return

    def _make_room(self) -> bool:
        """Close every file without a running sync, because no descriptor is free. Return whether any was closed."""
        before = self._filesystem.open_file_count
        for store in self._stores:
            if store.log.open_file_count():
                store.close_unsynced_files()
        return self._filesystem.open_file_count < before


def _default_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILE_COUNT_MAX if soft == resource.RLIM_INFINITY else min(OPEN_FILE_COUNT_MAX, soft * 3 // 4)


def _last_turn(entry: tuple[int, int, LocalLog]) -> int:
    return entry[0]
