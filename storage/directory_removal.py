"""How a queue's or a vhost's directory leaves, so that nothing of it ever comes back.

    renamed   `<id>` to `<id>.deleted`, or an empty `<id>.deleted` made where there never was a directory; then the
              directory above is synced. From here on it is deleted, whatever the metadata says: only then is
              whoever deletes it answered
    emptied   once its tombstone is in the metadata; the name stays
    gone      the empty `<id>.deleted` is removed when the database holds the deletion in its file and no longer in its
              log alone (`Metadata.checkpoint`): a log that loses its tail may bring the row back, and the next start
              knows by this name that the row is void

The committer's thread renames, behind the sync that may be at work in the directory, all that has gathered at a time
with one sync for each directory above. Another thread removes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.fsync_thread import FsyncThread, Removal, Task, patiently

if TYPE_CHECKING:
    from amqpd.storage.filesystem import FileSystem

logger = logging.getLogger(__name__)


class DirectoryRemover:
    """Renames, empties and removes directories.

    Everything is called on the loop, and calls back there. One per storage.
    """

    def __init__(
        self, filesystem: FileSystem, committer: FsyncThread, chore: Callable[[Callable[[], None]], None]
    ) -> None:
        """chore: has something done by another thread, or at once in simulations."""
        self._filesystem = filesystem
        self._committer = committer
        self._chore = chore
        self._waiting: list[tuple[list[str], Callable[[], None]]] = []
        self._busy = False

    def rename(self, chain: list[str], done: Callable[[], None]) -> None:
        """The last directory of `chain` is deleted from now on; `done()` when that is on the medium.

        An error is logged and no more: the tombstone in the metadata then is what keeps it deleted.
        """
        self._waiting.append((chain, done))
        if not self._busy:
            self._submit()

    def rename_now(self, chain: list[str]) -> None:
        """The same before it returns: at a start, when nobody else is at work in the directory. Any error is logged."""
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
        """In the committer's thread."""
        filesystem = self._filesystem
        touched: dict[str, None] = {}
        for chain in chains:
            path = chain[-1]
            try:
                if filesystem.exists(path):
                    filesystem.rename(path, path + DELETED)
                else:
                    for above, each in pairwise(chain[:-1]):
                        if filesystem.mkdir(each):
                            touched[above] = None
                    filesystem.mkdir(path + DELETED)
                touched[chain[-2]] = None
            except OSError as error:
                logger.error("%s could not be renamed, its deletion stands in the metadata alone: %s", path, error)
        for above in touched:
            try:
                patiently(filesystem, filesystem.fsync_dir, above)
            except OSError as error:
                logger.error("%s could not be synced, deletions stand in the metadata alone: %s", above, error)

    def empty(self, path: str, done: Callable[[], None]) -> None:
        """Removes what is in `path`.deleted, not itself; `done()` when it is gone. An error is logged."""
        self._committer.submit(Removal(path + DELETED, done, keep=True))

    def remove(self, path: str) -> None:
        """Removes `path`.deleted, of which no metadata knows. An error is logged."""
        self._committer.submit(Removal(path + DELETED, _nothing))

    def forget(self, paths: Sequence[str]) -> None:
        """Removes the empty `path`.deleted of each: the metadata has forgotten them for good."""
        if paths:
            self._chore(lambda: self._forget(paths))

    def _forget(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._filesystem.remove_tree(path + DELETED)
            except OSError as error:
                logger.warning("%s%s stays until the next start: %s", path, DELETED, error)


def _nothing() -> None:
    """Nobody waits for it."""
