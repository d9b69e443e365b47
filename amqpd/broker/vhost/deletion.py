"""How what is deleted leaves the disk; the order is the promise.

    1  it is out of memory: nothing is delivered, consumers are cancelled (declare.py)
    2  its tombstone is committed: a row in state `deleting`, which a start finishes
    3  its directory is renamed `<id>.deleted` and the directory above synced (storage/directory_removal.py)
    4  whoever deletes it is answered, and it is counted
    5  its files go, then its row; the empty `<id>.deleted` when the database itself holds all this

So a deletion that was answered stands twice, and what one of them loses the other one tells: see recovery.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost.pending import Done, ignore_result
from amqpd.broker.vhost.recovery import RecoveryFindings, in_parts
from amqpd.storage.metadata.interface import MetadataStore
from amqpd.storage.metadata.store import Change, Delete, MetadataClosed, QueueRow, VhostRow
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.storage import Storage

log = logging.getLogger(__name__)

EMPTY_MAX: Final = 1000
"""So many empty directories, and the metadata is made to forget them before it is time."""
Remove: TypeAlias = Callable[[Sequence[Change], Callable[[], None], Done | None], None]


class DirectoryRemoval:
    """A directory on its way out that is no queue's and has no row."""

    def __init__(self) -> None:
        self._over = False
        self._waiting: list[Callable[[], None]] = []

    def end(self) -> None:
        self._over = True
        for done in self._waiting:
            done()

    def when_over(self, done: Callable[[], None]) -> None:
        if self._over:
            done()
        else:
            self._waiting.append(done)


class DeletionQueue:
    """Steps 2 to 5. Everything on the loop. One per broker.

    remove: `PendingDeclarations.remove`. counted: how many queues are gone now, step 4.
    """

    def __init__(
        self, storage: Storage, metadata: MetadataStore, remove: Remove, counted: Callable[[int], None]
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._remove = remove
        self._counted = counted
        self._empty: list[str] = []  # directories renamed and emptied, by their old names
        self._under_way = False
        self._leaving: list[DirectoryRemoval] = []

    def leaving(self) -> Callable[[], None]:
        """A directory is about to be renamed that goes with the rows of the next `delete`, whose `done` waits for it.
        Returns what is to be called when that is on the medium.
        """
        leaving = DirectoryRemoval()
        self._leaving.append(leaving)
        return leaving.end

    def delete(self, changes: Sequence[Change], queues: Sequence[Queue] = (), done: Done = ignore_result) -> None:
        """What is out of memory goes for good: these rows, tried until that succeeds, then the queues' directories.

        changes: tombstones, and the rows of what goes with them. done: called with None when neither comes back, or
        with the error of the first try. Where there are no rows, nor directories, it is called before this returns.
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
        """Queues that are out of memory, and whose tombstones are committed; `done()` is step 4. Transient ones are
        gone at once. Cost: a rename each; their parents are synced together. leaving: what else it waits for.
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
            directory.when_over(partial(gone, None))
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
        self,
        vhost: VhostRow,
        queues: Sequence[Queue],
        done: Callable[[], None],
        others: Sequence[QueueLog] = (),
    ) -> None:
        """The same for a vhost and the queues that were in it: one rename for all. Its row is the caller's. others:
        logs of its that are no queue's.
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
            self._empty_out(self._storage.vhost_chain(vhost.id)[-1])

        self._storage.retire_vhost(vhost.id, stores, renamed)

    def forget(self, changes: Sequence[Change]) -> None:
        """Rows of what is gone. When the broker stops before this, the next start sees to them."""
        self._remove(changes, _nothing, None)

    # -- at the start

    def take_over(self, findings: RecoveryFindings) -> None:
        """Makes the metadata say what holds, then empties what had been deleted."""
        parts = in_parts(findings.changes)
        for part in parts[:-1]:
            self._metadata.submit(part, _logged)
        if parts:
            self._metadata.submit(parts[-1], partial(self._void, findings.void))
        for path in findings.gone:
            self._empty_out(path)

    def _void(self, paths: list[str], error: BaseException | None) -> None:
        if error is not None:  # the next start tries it again
            _logged(error)
            return
        for path in paths:
            self._empty_out(path)

    def finish(self, vhost_id: str, row: QueueRow) -> None:
        """A queue's deletion that a crash interrupted behind its tombstone."""
        chain = self._storage.queue_chain(vhost_id, row.id)
        self._storage.departures.rename(chain, partial(self._empty_queue, vhost_id, row))

    def finish_vhost(self, row: VhostRow) -> None:
        """The same for a vhost's. Its row goes at once: another one of its name may be wanted."""
        chain = self._storage.vhost_chain(row.id)
        self.forget([Delete(row)])
        self._storage.departures.rename(chain, partial(self._empty_out, chain[-1]))

    # -- what is left

    def _empty_queue(self, vhost_id: str, row: QueueRow) -> None:
        path = self._storage.queue_chain(vhost_id, row.id)[-1]
        self._storage.departures.empty(path, partial(self._emptied, path, row))

    def _empty_out(self, path: str) -> None:
        self._storage.departures.empty(path, partial(self._emptied, path, None))

    def _emptied(self, path: str, row: QueueRow | None) -> None:
        if row is not None:
            self.forget([Delete(row)])
        self._empty.append(path)
        if len(self._empty) >= EMPTY_MAX:
            self.tidy()

    def tidy(self) -> None:
        """Removes the empty directories once the database has all this in its own file. The owner calls it now and
        then. Cost: nothing where there is nothing to do.
        """
        if self._under_way or not self._empty:
            return
        paths, self._empty = self._empty, []
        try:
            self._metadata.checkpoint(partial(self._kept, paths))
        except MetadataClosed:  # the next start finds them
            return
        self._under_way = True

    def _kept(self, paths: list[str], error: BaseException | None) -> None:
        self._under_way = False
        if error is not None:
            log.warning("deleted queues are tidied up later: %s", error)
            self._empty += paths
            return
        self._storage.departures.forget(paths)


def _nothing() -> None:
    """Nothing waits for what is left to go."""


def _logged(error: BaseException | None) -> None:
    if error is not None:
        log.error("metadata change failed: %s", error)
