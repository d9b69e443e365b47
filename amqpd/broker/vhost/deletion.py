"""Steps by which a deleted queue or vhost is removed from the disk. Their order is the guarantee.

    1  it is removed from memory: no deliveries, consumers cancelled (declare.py)
    2  its tombstone is committed: a row in state `deleting`; after a crash, the next start continues from here
    3  its directory is renamed to `<id>.deleted` and the parent directory synced (storage/directory_removal.py)
    4  the client gets its answer, and the deletion is counted
    5  its files are deleted, then its row; then the empty `<id>.deleted`, after a checkpoint of the database

So a confirmed deletion is recorded in two places. If one of them is lost, the other one remains (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.pending import Done, ignore_result
from amqpd.broker.vhost.recovery import RecoveryFindings, in_parts
from amqpd.storage.metadata.rows import Change, Delete, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataClosed, MetadataStore
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.storage import Storage

log = logging.getLogger(__name__)

EMPTY_MAX: Final = 1000
"""With this many empty directories, `tidy` runs at once."""
Remove: TypeAlias = Callable[[Sequence[Change], Callable[[], None], Done | None], None]


class DirectoryRemoval:
    """Removal of a directory that belongs to no queue and has no row."""

    def __init__(self) -> None:
        self._over = False
        self._waiting: list[Callable[[], None]] = []

    def end(self) -> None:
        self._over = True
        for done in self._waiting:
            done()

    def when_done(self, done: Callable[[], None]) -> None:
        if self._over:
            done()
        else:
            self._waiting.append(done)


class DeletionQueue:
    """Steps 2 to 5 for all deletions of one broker. All calls run on the event loop.

    Args:
        remove: `PendingDeclarations.remove`.
        counted: called in step 4 with the number of deleted queues.
    """

    def __init__(
        self, storage: Storage, metadata: MetadataStore, remove: Remove, counted: Callable[[int], None]
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._remove = remove
        self._counted = counted
        self._empty: list[str] = []  # renamed and emptied directories, by their old names
        self._not_renamed: list[tuple[str, QueueRow | None]] = []
        self._is_checkpointing = False
        self._leaving: list[DirectoryRemoval] = []

    def add_directory(self) -> Callable[[], None]:
        """Register a directory that will be renamed together with the rows of the next `delete`.

        `done` of that `delete` waits for it. Return the callback to call when the rename is durable.
        """
        leaving = DirectoryRemoval()
        self._leaving.append(leaving)
        return leaving.end

    def delete(self, changes: Sequence[Change], queues: Sequence[Queue] = (), done: Done = ignore_result) -> None:
        """Delete rows, repeated until it succeeds, then the directories of queues that are no longer in memory.

        Args:
            changes: tombstones, and rows deleted with them.
            done: called with None when no restart can restore the objects, or with the error of the first attempt.
                Called before this returns if there are neither rows nor directories.
        """
        leaving, self._leaving = self._leaving, []
        if not changes:
            self.drop(queues, partial(done, None), leaving)
            return
        failed = False

        def tried(error: BaseException | None) -> None:
            nonlocal failed
            if error is not None:
                failed = True
                done(error)

        def renamed() -> None:
            if not failed:
                done(None)

        self._remove(changes, partial(self.drop, queues, renamed, leaving), tried)

    def drop(self, queues: Sequence[Queue], done: Callable[[], None], leaving: Sequence[DirectoryRemoval] = ()) -> None:
        """Remove the directories of queues whose tombstones are committed; `done` is step 4.

        Transient queues need no rename. `leaving` are other removals to wait for.

        Cost: one rename per queue. The parent directories are synced together.
        """
        left = len(queues) + len(leaving)

        def gone(queue: Queue | None) -> None:
            nonlocal left
            left -= 1
            if queue is not None:
                self._empty_queue(queue.host.vhost_id, QueueRow(queue.vhost_name, queue.name, queue.id))
            if left == 0:
                self._counted(len(queues))
                done()

        if left == 0:
            done()
        for directory in leaving:
            directory.when_done(partial(gone, None))
        for queue in queues:
            store = queue.backing.store
            queue.backing.store = None
            if store is not None and queue.id:
                store.retire(partial(gone, queue))
            else:
                if store is not None:
                    store.remove()
                gone(None)

    def drop_vhost(
        self, vhost: VhostRow, queues: Sequence[Queue], done: Callable[[], None], others: Sequence[QueueLog] = ()
    ) -> None:
        """Remove a vhost's directory in one rename. The caller deletes the vhost's row.

        Args:
            others: the vhost's logs that belong to no queue.
        """
        stores = [queue.backing.store for queue in queues if queue.backing.store is not None and queue.id]
        stores += others
        for queue in queues:
            if queue.backing.store is not None and not queue.id:
                queue.backing.store.remove()
            queue.backing.store = None

        def renamed() -> None:
            self._counted(len(queues))
            done()
            self._empty_directory(self._storage.data_directory.vhost_chain(vhost.id)[-1])

        self._storage.retire_vhost(vhost.id, stores, renamed)

    def forget(self, changes: Sequence[Change]) -> None:
        """Delete rows of removed objects. If the broker stops before that, the next start deletes them."""
        self._remove(changes, _do_nothing, None)

    # -- at the start

    def take_over(self, findings: RecoveryFindings) -> None:
        """Correct the metadata after a start, then empty the directories of deleted objects."""
        parts = in_parts(findings.changes)
        for part in parts[:-1]:
            self._metadata.submit(part, _log_failure)
        if parts:
            self._metadata.submit(parts[-1], partial(self._void_rows_deleted, findings.void))
        for path in findings.gone:
            self._empty_directory(path)

    def _void_rows_deleted(self, paths: list[str], error: BaseException | None) -> None:
        if error is not None:  # the next start tries it again
            _log_failure(error)
            return
        for path in paths:
            self._empty_directory(path)

    def finish(self, vhost_id: str, row: QueueRow) -> None:
        """Complete a queue's deletion that a crash interrupted after its tombstone."""
        chain = self._storage.data_directory.queue_chain(vhost_id, row.id)
        self._storage.directory_remover.rename(chain, partial(self._empty_queue, vhost_id, row))

    def finish_vhost(self, row: VhostRow) -> None:
        """Complete a vhost's deletion. The row is deleted at once, to free the name for a new vhost."""
        chain = self._storage.data_directory.vhost_chain(row.id)
        self.forget([Delete(row)])
        self._storage.directory_remover.rename(chain, partial(self._empty_directory, chain[-1]))

    # -- files

    def _empty_queue(self, vhost_id: str, row: QueueRow) -> None:
        self._empty_directory(self._storage.data_directory.queue_chain(vhost_id, row.id)[-1], row)

    def _empty_directory(self, path: str, row: QueueRow | None = None) -> None:
        """Empty a renamed directory, then delete its row. If the rename failed, `tidy` repeats it first: without its
        row, the next start would take the directory for a queue that the metadata has lost.
        """
        remover = self._storage.directory_remover
        if path in remover.not_renamed:
            self._not_renamed.append((path, row))
        else:
            remover.remove_content(path, partial(self._emptied, path, row))

    def _emptied(self, path: str, row: QueueRow | None) -> None:
        if row is not None:
            self.forget([Delete(row)])
        self._empty.append(path)
        if len(self._empty) >= EMPTY_MAX:
            self.tidy()

    def tidy(self) -> None:
        """Repeat failed renames, and remove empty directories after a checkpoint of the database.

        The owner calls this from time to time. Cost: nothing if there are none.
        """
        failed, self._not_renamed = self._not_renamed, []
        for path, row in failed:
            chain = [self._storage.data_dir]
            for name in path[len(chain[0]) + 1 :].split("/"):
                chain.append(f"{chain[-1]}/{name}")
            self._storage.directory_remover.rename(chain, partial(self._empty_directory, path, row))
        if self._is_checkpointing or not self._empty:
            return
        paths, self._empty = self._empty, []
        try:
            self._metadata.checkpoint(partial(self._checkpointed, paths))
        except MetadataClosed:  # the next start finds them
            return
        self._is_checkpointing = True

    def _checkpointed(self, paths: list[str], error: BaseException | None) -> None:
        self._is_checkpointing = False
        if error is not None:
            log.warning("empty directories of deleted queues are removed later: %s", error)
            self._empty += paths
            return
        self._storage.directory_remover.remove_emptied(paths)


def _do_nothing() -> None:
    """Do nothing: no caller waits."""


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        log.error("metadata change failed: %s", error)
