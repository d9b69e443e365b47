"""What the vhosts of one broker share: names on their way, deletions, storage, and what is counted of queues.

Handed to each vhost, so that a declaration or a deletion needs nothing that lies above this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpd.broker.vhost.pending import Declared
from amqpd.broker.vhost.deletion import Deletions
from amqpd.broker.vhost.exchange_state import Keeping
from amqpd.broker.vhost.consumer_offsets import StoredOffsets
from amqpd.broker.stats import Ended, EndedUnroutable
from amqpd.broker.events import Events
from amqpd.broker.queue.types import KINDS
from amqpd.storage.filesystem import Clock
from amqpd.storage.metadata.interface import MetadataKeeper
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.broker.vhost.own_topics import OwnTopics


class Catalogue:
    """One per broker. call_soon, call_later: the loop's."""

    def __init__(
        self,
        storage: Storage,
        metadata: MetadataKeeper,
        call_soon: Callable[..., object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.storage = storage
        self.call_soon = call_soon
        self.events = Events(call_soon)
        self.declared = Declared(metadata.submit, call_soon, call_later)
        self.deletions = Deletions(storage, metadata, self.declared.remove, self._count_deleted)
        self.stored_offsets = StoredOffsets(metadata.submit, call_soon, call_later, Clock())
        # The broker's own takes its place.
        self.keeping = Keeping()
        # Of a node in a cluster.
        self.own_topics: OwnTopics | None = None
        self.queue_declared_count = 0
        self.queue_created_count = 0
        self.queue_deleted_count = 0
        # What queues that are gone had counted, so that totals never fall; see amqpd.metrics.
        self.ended_queues = Ended()
        # The same by their kinds (classic, quorum, stream).
        self.ended_of_kind = {kind: Ended() for kind in KINDS}
        self.ended_unroutable = EndedUnroutable()

    def _count_deleted(self, count: int) -> None:
        self.queue_deleted_count += count
