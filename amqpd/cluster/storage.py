"""The data directory of a node whose durable queues are in Kafka: logs of its own, and caches of theirs.

`places` tells of each durable queue of the slots that this node owns which slot's logs it belongs to and where it is.
Whoever takes a slot over fills it before the slot's queues are opened, and whoever places a new queue before it is
made. What has no place has no log: it is never kept on this disk by mistake.

Everything else (what transient queues cannot hold in memory, the audit log) is as on a single node.
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
    """A durable queue's log: of that slot, at that place."""

    logs: SlotLogs
    place: LogPosition


class ClusterStorage(Storage):
    """As `Storage`. places: queue id -> where its log is."""

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
        """See `Storage.create_queue`; its place is known. Raises: LogUnusable where it is not."""
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
        """The log of a durable queue. Reads nothing. Raises: LogUnusable where nobody has told its place."""
        placed = self.places.get(queue_id)
        if placed is None:
            raise LogUnusable(f"queue '{name}' in vhost '{vhost_name}' has no place in Kafka")
        root = f"{self.data_dir}/{SPILL}"
        chain = [root, f"{root}/{secrets.token_hex(16)}"]  # one of an earlier time may still be on its way out
        log = self._log(chain, partial(describe, name, vhost_name, auto_delete, arguments, queue_id), durable=False)
        store = ReplicatedLog(self.context, log, vhost_id, queue_id, name, self, placed.logs)
        self.set_policy(store, policy)
        self._stores[store] = None
        placed.logs.begin(store, placed.place)
        return store

    def recover_all(self) -> None:
        """Recovers every log that is on this disk."""
        for store in list(self._stores):
            if store.local:
                store.recover()

    def find_hold(self, store: QueueLog) -> ExportHold | None:
        """None for a log that Kafka keeps: nothing of it is held back for exports."""
        return super().find_hold(store) if store.local else None

    def hold(self, store: QueueLog) -> ExportHold:
        """See `Storage.hold`. Raises: TypeError for a log that Kafka keeps."""
        if not store.local:
            raise TypeError(f"the log of queue '{store.name}' is not on this disk")
        return super().hold(store)

    def delete_queue(self, store: LocalLog, done: Callable[[], None] | None = None) -> None:
        """As `Storage.delete_queue`. What Kafka was told of it ends; its partition is whoever placed it's to free."""
        if isinstance(store, ReplicatedLog):
            self.places.pop(store.queue_id, None)
            if isinstance(store.keeper, SlotLogs):
                store.keeper.retire(store)
        super().delete_queue(store, done)

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        """See `Storage.retire_queue`; a cache need not be renamed: it would not come back."""
        if isinstance(store, ReplicatedLog):
            self.delete_queue(store, done)
        else:
            super().retire_queue(store, done)

    def retire_vhost(self, vhost_id: str, stores: Sequence[QueueLog], done: Callable[[], None]) -> None:
        """See `Storage.retire_vhost`."""
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

    def leave_queue(self, store: QueueLog) -> None:
        """See `Storage.leave_queue`: nothing that Kafka was told of it ends."""
        if isinstance(store, ReplicatedLog):
            self.places.pop(store.queue_id, None)
            super().delete_queue(store)
        else:
            super().leave_queue(store)
