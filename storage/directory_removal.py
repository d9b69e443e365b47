"""Removal of the directory of a queue or vhost, in three steps. No crash can restore the deleted object.

renamed   `<id>` becomes `<id>.deleted`; if there is no directory, an empty `<id>.deleted` is created. Then the
          parent directory is synced. From here on the object is deleted even if the metadata still has it, and the
          client gets its reply
emptied   when the tombstone is in the metadata; the name remains
gone      the empty `<id>.deleted` is deleted when the database file contains the deletion (`MetadataStore.checkpoint`).
          Until then, a damaged database log may restore the row, and this name makes the next start ignore it

The fsync thread renames, after any sync that is running in the directory. It handles all waiting renames together
and syncs each parent directory once. Another thread deletes the content.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.fsync_thread import FsyncThread, Removal, Task, sync_with_retry

if TYPE_CHECKING:
    from amqpd.storage.filesystem import FileSystem

logger = logging.getLogger(__name__)


class DirectoryRemover:
    """Renames, empties and deletes directories. One per storage; called on the loop, and calls back there.

    Args:
        run_in_worker: runs a function in another thread, or at once in simulations.
    """

    def __init__(
        self, filesystem: FileSystem, committer: FsyncThread, run_in_worker: Callable[[Callable[[], None]], None]
    ) -> None:
        self._filesystem = filesystem
        self._committer = committer
        self._run_in_worker = run_in_worker
        self._waiting: list[tuple[list[str], Callable[[], None]]] = []
        self._busy = False
        # Directories whose rename failed, such as on a full disk, or is not synced.
        self.not_renamed: set[str] = set()

    def rename(self, chain: list[str], done: Callable[[], None]) -> None:
        """Delete the last directory of `chain` by renaming it; call `done` when this is synced.

        Errors are only logged, and the path is in `not_renamed`: the tombstone in the metadata then records the
        deletion, until the caller has repeated the rename.
        """
        self._waiting.append((chain, done))
        if not self._busy:
            self._submit()

    def rename_now(self, chain: list[str]) -> None:
        """Rename before returning. Only at a start, when no other thread uses the directory. Errors are logged."""
        self._rename([chain])

    def _submit(self) -> None:
        group = self._waiting
        self._waiting = []
        self._busy = True
        chains = [chain for chain, _ in group]

        def renamed(_: OSError | None) -> None:
            self._busy = False
            if self._waiting:
                self._submit()
            for each in group:
                each[1]()

        self._committer.submit(Task(lambda: self._rename(chains), renamed))

    def _rename(self, chains: list[list[str]]) -> None:
        """Rename directories and sync their parents, in the fsync thread."""
        filesystem = self._filesystem
        unsynced: dict[str, list[str]] = {}  # parent -> paths whose deletion needs its sync
        for chain in chains:
            path = chain[-1]
            try:
                if filesystem.exists(path):
                    filesystem.rename(path, path + DELETED)
                else:
                    for above, each in pairwise(chain[:-1]):
                        if filesystem.mkdir(each) or path in self.not_renamed:
                            unsynced.setdefault(above, []).append(path)
                    filesystem.mkdir(path + DELETED)
                unsynced.setdefault(chain[-2], []).append(path)
                self.not_renamed.discard(path)
            except OSError as error:
                self.not_renamed.add(path)
                logger.error("%s cannot be renamed; only the metadata has its deletion: %s", path, error)
        for above, paths in unsynced.items():
            try:
                sync_with_retry(filesystem, filesystem.fsync_dir, above)
            except OSError as error:
                self.not_renamed.update(paths)
                logger.error("%s cannot be synced; only the metadata has the deletions: %s", above, error)

    def remove_content(self, path: str, done: Callable[[], None]) -> None:
        """Delete the content of `path`.deleted, then call `done`. Errors are logged."""
        self._committer.submit(Removal(path + DELETED, done, keep=True))

    def remove(self, path: str) -> None:
        """Delete `path`.deleted, which the metadata does not know. Errors are logged."""
        self._committer.submit(Removal(path + DELETED, _nothing))

    def remove_emptied(self, paths: Sequence[str]) -> None:
        """Delete the empty `path`.deleted of each path, after the metadata has checkpointed the deletions."""
        if paths:
            self._run_in_worker(lambda: self._forget(paths))

    def _forget(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._filesystem.remove_tree(path + DELETED)
            except OSError as error:
                logger.warning("%s%s remains until the next start: %s", path, DELETED, error)


def _nothing() -> None:
    """Do nothing: no caller waits."""
