"""How far a log is safe (its high watermark), and the small mapped file that tells readers outside.

What is below the watermark was synced, with all that settles it; readers outside (exports, Kafka's tools) read no
further. They may be told later than is true, never more.
"""

from __future__ import annotations

import logging
from typing import final

from mypy_extensions import i64

from amqpd.storage.filesystem import FileSystem, MappedBytes
from amqpd.storage.log import checkpoint

logger = logging.getLogger(__name__)


@final
class HighWatermark:
    """The high watermark of one log, and the mapped file that tells it. offset: the high watermark."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self.offset: i64 = 0
        self._filesystem: FileSystem = filesystem
        self._directory: str = directory
        self._published: i64 = 0
        self._file: MappedBytes | None = None

    @property
    def unpublished(self) -> bool:
        """Whether readers outside do not yet know it."""
        return self.offset > self._published

    @property
    def mapped(self) -> bool:
        """Whether the file is open, which takes a descriptor."""
        return self._file is not None

    def begin(self, offset: i64) -> None:
        """Recovery has found it; the file is as good as told."""
        self.offset = offset
        self._published = offset

    def publish(self, there: bool) -> None:
        """Tells readers outside. there: the log has files for them. Cost: a page fault and, at the next sync, a page
        and an inode more: as much as a write.
        """
        self._published = self.offset
        if not there:
            return
        try:
            file = self._file
            if file is None:
                file = self._file = self._map(f"{self._directory}/{checkpoint.HIGH_WATERMARK}")
                self._filesystem.open_file_count += 1
            file[0 : checkpoint.HIGH_WATERMARK_SIZE] = checkpoint.encode_high_watermark(self.offset)
            if self._filesystem.crowded:
                self.close()
        except OSError as error:  # readers outside then see an older end; nothing in here depends on it
            logger.warning("high watermark of %s: %s", self._directory, error)

    def _map(self, path: str) -> MappedBytes:
        try:
            return self._filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)
        except OSError as error:
            if not self._filesystem.room_after(error):
                raise
            return self._filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)

    def close(self) -> None:
        """The file is opened again on demand."""
        file = self._file
        if file is not None:
            file.close()
            self._file = None
            self._filesystem.open_file_count -= 1
