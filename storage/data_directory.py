"""The data directory: its lock, format version, boot id, and the paths of logs.

<data_dir>/format                                version of everything below: see `checkpoint.check_format`
<data_dir>/.lock                                 locked while the process runs: one process per directory
<data_dir>/boot-id                               the machine's boot id while a broker runs; a clean stop deletes it
<data_dir>/clock                                 last readings of the clocks: see clock_watch.py
<data_dir>/reserve                               disk space that is freed when the disk is full
<data_dir>/journal                               commits that touch many logs: see journal.py
<data_dir>/vhosts/<vhost id>/queues/<queue id>/  a log each (log/log.py); ids are random and never used twice
<data_dir>/vhosts/<vhost id>/delays/<id>/<bucket>/  logs of delayed messages, by exchange (broker/delayed)
<data_dir>/audit/, <data_dir>/kafka-offsets/     system logs: the audit log, committed offsets of Kafka's clients,
<data_dir>/kafka-transactions/                   and states of their transactions
<data_dir>/spill/<id>/                           logs of transient queues too large for memory; emptied at the start
<data_dir>/vhosts/<id>.deleted, .../queues/<id>.deleted   deleted: see directory_removal.py
<data_dir>/lost+found/                           directories unknown to the metadata and to their queue.json
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from itertools import pairwise

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log import checkpoint

logger = logging.getLogger(__name__)

SPILL = "spill"
BOOT_ID = "boot-id"
RESERVE = "reserve"


class DataDirectoryInUse(Exception):
    """Another process uses the data directory."""


class DataDirectory:
    """An open data directory, created if it does not exist. A directory of a newer version is not changed.

    Attributes:
        boot_id: the machine's boot id, 32 hexadecimal digits.
        boot: the same as two signed words.
        power_cut: the machine stopped while the previous process ran.
        was_unclean: the previous process did not stop cleanly: a kill or a power cut.
        lock_fd: a descriptor on this disk.

    Raises: DataDirectoryInUse; OSError; UnknownFormat.
    """

    def __init__(self, filesystem: FileSystem, path: str, boot_id: str | None) -> None:
        self.path = path
        self._filesystem = filesystem
        self._chains: dict[str, list[str]] = {}
        self._format = 0  # the version that this process wrote
        new = not checkpoint.check_format(filesystem, f"{path}/{checkpoint.FORMAT}")
        made = filesystem.mkdir(path)
        if made or not filesystem.exists(f"{path}/{BOOT_ID}"):
            try:
                filesystem.fsync_dir(os.path.dirname(path))
            except PermissionError:  # another user created the directory, and synced it
                if made:
                    raise
        self.lock_fd = self._lock()
        if new:
            self._write_format()
        self.boot_id = (boot_id if boot_id is not None else _machine_boot_id(filesystem)).replace("-", "")
        self.boot = _words(self.boot_id)
        before = self._previous_boot_id()
        self.was_unclean = before != ""
        self.power_cut = before not in {"", self.boot_id}
        if not before:
            self.write_boot_id()

    def _lock(self) -> int:
        fd = self._filesystem.open(f"{self.path}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            self._filesystem.lock(fd)
        except BlockingIOError:
            self._filesystem.close(fd)
            raise DataDirectoryInUse(f"data directory {self.path} is in use by another broker") from None
        except OSError as error:  # for example a file system without locks
            self._filesystem.close(fd)
            error.filename = f"{self.path}/.lock"
            raise
        return fd

    def is_in_place(self) -> bool:
        """Return False if the directory was removed, moved or replaced since this process locked it.

        Cost: two system calls.
        """
        return self._filesystem.is_open_at(self.lock_fd, f"{self.path}/.lock")

    def close(self) -> None:
        """Release the lock."""
        self._filesystem.close(self.lock_fd)

    def _write_format(self) -> None:
        """Write the format file. On a full disk the broker starts without it, and the next start writes it."""
        path = f"{self.path}/{checkpoint.FORMAT}"
        try:
            self._filesystem.replace_file(path, checkpoint.encode_format(), sync=True)
            self._filesystem.fsync_dir(self.path)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            logger.warning("%s: %s", path, error)

    def raise_format(self, version: int) -> None:
        """Raise the format version to `version` and sync it, unless it is as high. Raises: OSError."""
        if self._format < version:
            path = f"{self.path}/{checkpoint.FORMAT}"
            version = max(version, checkpoint.read_format(self._filesystem, path))
            self._filesystem.replace_file(path, checkpoint.encode_format(version), sync=True)
            self._filesystem.fsync_dir(self.path)
            self._format = version

    # -- boot id

    def _previous_boot_id(self) -> str:
        """Return the boot id of the previous process, "" if it stopped cleanly.

        Each log has its own clean-shutdown mark. But a log that was first used just before a power cut may still
        have its mark without the later writes. So the directory has a mark for all logs. It keeps the old boot id
        until every open log is recovered.
        """
        path = f"{self.path}/{BOOT_ID}"
        if not self._filesystem.exists(path):
            return ""
        return self._filesystem.read_file(path).decode("ascii", "replace").strip()

    def write_boot_id(self) -> None:
        """Record that a process runs under this boot id. Raises: OSError."""
        path = f"{self.path}/{BOOT_ID}"
        data = f"{self.boot_id}\n".encode()
        try:
            self._filesystem.replace_file(path, data, sync=True)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            # On a full disk, use the space of the reserve.
            self._filesystem.unlink(f"{self.path}/{RESERVE}")
            self._filesystem.replace_file(path, data, sync=True)
        self._filesystem.fsync_dir(self.path)

    def remove_boot_id(self) -> None:
        """Delete the boot id at a clean stop, when everything is synced. Raises: OSError."""
        self._filesystem.unlink(f"{self.path}/{BOOT_ID}")

    # -- queues

    def queue_chain(self, vhost_id: str, queue_id: str) -> list[str]:
        """Return the directories down to the one of the queue, outermost first."""
        above = self._chains.get(vhost_id)
        if above is None:  # cached: a hundred thousand queues share these strings
            vhost = self.vhost_chain(vhost_id)
            above = self._chains[vhost_id] = [*vhost, f"{vhost[-1]}/queues"]
        return [*above, f"{above[3]}/{queue_id}"]

    def vhost_chain(self, vhost_id: str) -> list[str]:
        """Return the directories down to the one of the vhost, outermost first."""
        vhosts = f"{self.path}/vhosts"
        return [self.path, vhosts, f"{vhosts}/{vhost_id}"]

    def forget_vhost(self, vhost_id: str) -> None:
        """Drop the cached paths of a deleted vhost."""
        self._chains.pop(vhost_id, None)

    def set_aside(self, vhost_id: str, queue_id: str) -> str:
        """Move the directory of a queue to lost+found/ and return its new path. For the start. Raises: OSError."""
        filesystem = self._filesystem
        lost_and_found = f"{self.path}/lost+found"
        filesystem.mkdir(lost_and_found)
        target = f"{lost_and_found}/{vhost_id}.{queue_id}"
        number = 0
        while filesystem.exists(target):
            number += 1
            target = f"{lost_and_found}/{vhost_id}.{queue_id}.{number}"
        filesystem.rename(self.queue_chain(vhost_id, queue_id)[-1], target)
        return target

    def move_queue(self, queue_id: str, source: str, target: str) -> None:
        """Move the directory of a queue from one vhost id to another, and sync. For the start. Raises: OSError."""
        filesystem = self._filesystem
        old, new = self.queue_chain(source, queue_id), self.queue_chain(target, queue_id)
        for above, path in pairwise(new[:-1]):
            if filesystem.mkdir(path):
                filesystem.fsync_dir(above)
        filesystem.rename(old[-1], new[-1])
        filesystem.fsync_dir(new[-2])
        filesystem.fsync_dir(old[-2])


def _machine_boot_id(filesystem: FileSystem) -> str:
    try:
        return filesystem.read_file("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    except OSError:
        # Unknown: each start then counts as one after a power cut.
        return secrets.token_hex(16)


def _words(boot_id: str) -> tuple[int, int]:
    data = bytes.fromhex(boot_id.rjust(32, "0"))
    return int.from_bytes(data[:8], "big", signed=True), int.from_bytes(data[8:16], "big", signed=True)
