"""Data directory of a cluster node: its own logs, and caches of the logs in Kafka.

`places` has the position of each durable queue of the slots that this node owns. The takeover of a slot fills it
before the queues are opened; the placement of a new queue adds one before the queue is created. A durable queue
without a position has no log, so its messages never go to the local disk by mistake.

Everything else (transient queues that do not fit in memory, the audit log) works as on a single node.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from amqpd.cluster.replicated_log import ReplicatedLog
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.storage.acks.retained import ExportHold
from amqpd.storage.data_directory import SPILL
from amqpd.storage.local_log import LocalLog
from amqpd.storage.queue_json import describe
from amqpd.storage.queue_log import LogUnusable, QueueLog
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.storage import Storage


class PlacedLog(NamedTuple):
    """Position of a durable queue's log.

    Attributes:
        logs: the logs of its slot.
        place: its partition and first offset.
    """

    logs: SlotLogs
    place: LogPosition


class ClusterStorage(Storage):
    """Storage of a cluster node.

    Attributes:
        places: queue id -> position of its log.
    """

    def __init__(self, data_dir: Path | str, **options: Any) -> None:
        super().__init__(data_dir, **options)
        self.replicates = True
        self.places: dict[str, PlacedLog] = {}

    def create_queue(
        self,
        vhost_id: str,
        name: str,
        vhost_name: str = "",
        policy: RetentionPolicy | None = None,
        queue_id: str = "",
        auto_delete: bool = False,
        arguments: bytes = b"",
    ) -> tuple[str, LocalLog]:
        """Create the log of a queue; see `Storage.create_queue`. Raises LogUnusable: the queue has no position."""
        return queue_id, self.open_queue(vhost_id, queue_id, name, vhost_name, policy, auto_delete, arguments)

    def open_queue(
        self,
        vhost_id: str,
        queue_id: str,
        name: str = "",
        vhost_name: str = "",
        policy: RetentionPolicy | None = None,
        auto_delete: bool = False,
        arguments: bytes = b"",
    ) -> LocalLog:
        """Open the log of a durable queue. Reads nothing.

        Raises: LogUnusable: the queue has no position.
        """
        placed = self.places.get(queue_id)
        if placed is None:
            raise LogUnusable(f"queue '{name}' in vhost '{vhost_name}' has no position in Kafka")
        root = f"{self.data_dir}/{SPILL}"
        chain = [root, f"{root}/{secrets.token_hex(16)}"]  # an earlier cache may still be in deletion
        log = self._log(chain, partial(describe, name, vhost_name, auto_delete, arguments, queue_id), durable=False)
        store = ReplicatedLog(self.context, log, vhost_id, queue_id, name, self, placed.logs)
        self.set_policy(store, policy)
        self._stores[store] = None
        placed.logs.assign(store, placed.place)
        return store

    def recover_all(self) -> None:
        """Recover every log of the local disk."""
        for store in list(self._stores):
            if store.local:
                store.recover()

    def find_export_hold(self, store: QueueLog) -> ExportHold | None:
        """Return None for a log in Kafka: exports do not hold its messages."""
        return super().find_export_hold(store) if store.local else None

    def export_hold(self, store: QueueLog) -> ExportHold:
        """See `Storage.export_hold`. Raises TypeError: the log is in Kafka."""
        if not store.local:
            raise TypeError(f"the log of queue '{store.name}' is not on this disk")
        return super().export_hold(store)

    def delete_queue(self, store: LocalLog, done: Callable[[], None] | None = None) -> None:
        """See `Storage.delete_queue`. Also deletes the acks in Kafka; the placement frees the partition."""
        if isinstance(store, ReplicatedLog):
            self.places.pop(store.queue_id, None)
            if isinstance(store.keeper, SlotLogs):
                store.keeper.retire(store)
        super().delete_queue(store, done)

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        """See `Storage.retire_queue`. A cache is deleted at once: the next start does not read it."""
        if isinstance(store, ReplicatedLog):
            self.delete_queue(store, done)
        else:
            super().retire_queue(store, done)

    def retire_vhost(self, vhost_id: str, stores: Sequence[QueueLog], done: Callable[[], None]) -> None:
        caches = [store for store in stores if isinstance(store, ReplicatedLog)]
        left = 1 + len(caches)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for store in caches:
            self.delete_queue(store, one_done)
        super().retire_vhost(vhost_id, [store for store in stores if not isinstance(store, ReplicatedLog)], one_done)

    def remove_local_files(self, store: QueueLog) -> None:
        """See `Storage.remove_local_files`. The queue's acks in Kafka stay."""
        if isinstance(store, ReplicatedLog):
            self.places.pop(store.queue_id, None)
            super().delete_queue(store)
        else:
            super().remove_local_files(store)
