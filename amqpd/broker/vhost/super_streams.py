"""Super streams of one vhost: exchanges whose bound streams are the partitions of one topic.

A super stream is an exchange with the argument `x-super-stream` and bindings to streams with the argument
`x-stream-partition-order`. The numbers are the partitions. Those after a gap do not count: a stream never becomes
another partition because one before it was deleted. If several streams have one number, the first by name counts.

Bindings made from the last partition to the first make all of them visible at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from amqpd.broker.vhost.exchange import SUPER_STREAM, Binding, BindingKey, Exchange
from amqpd.broker.vhost.kafka_topics import topic_name
from amqpd.routing.murmur2 import partition_order

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue


class SuperStream:
    """One super stream.

    Attributes:
        id: equal after a restart, new if the first partition is another stream; None without partitions. A super stream
            whose first partition has its name has that stream's id.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.id: UUID | None = None
        self._bound: dict[BindingKey, tuple[int, Queue]] = {}
        self._firsts: dict[BindingKey, Queue] = {}
        self._partitions: tuple[Queue, ...] | None = ()

    @property
    def partitions(self) -> tuple[Queue, ...]:
        """Return the streams of the partitions. Cost: O(1); after a change O(n log n) once."""
        if self._partitions is None:
            found: list[Queue] = []
            for order, queue in sorted(self._bound.values(), key=lambda each: (each[0], each[1].name)):
                if order == len(found):
                    found.append(queue)
            self._partitions = tuple(found)
        return self._partitions

    def streams(self) -> list[Queue]:
        """Return all bound streams, those after a gap too."""
        return list(dict.fromkeys(queue for _, queue in self._bound.values()))

    def add(self, key: BindingKey, order: int, queue: Queue) -> None:
        self._bound[key] = (order, queue)
        if order == 0:
            self._firsts[key] = queue
        self._changed()

    def remove(self, key: BindingKey) -> None:
        self._bound.pop(key, None)
        self._firsts.pop(key, None)
        self._changed()

    def _changed(self) -> None:
        self._partitions = None
        if not self._firsts:
            self.id = None
            return
        first = min(self._firsts.values(), key=lambda queue: queue.name)
        name = self.exchange.name
        self.id = UUID(hex=first.id) if first.name == name == topic_name(first) else uuid5(UUID(hex=first.id), name)


class SuperStreams:
    """The super streams of one vhost, by name and by id. The vhost reports its exchanges and bindings.

    Attributes:
        version: changes with each change of partitions.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_name: dict[str, SuperStream] = {}
        self._by_id: dict[UUID, SuperStream] = {}
        # Streams and the number of their bindings as a partition.
        self._bound_counts: dict[Queue, int] = {}

    def get(self, name: str) -> SuperStream | None:
        return self._by_name.get(name)

    def get_by_id(self, wanted: UUID) -> SuperStream | None:
        return self._by_id.get(wanted)

    def all(self) -> Iterable[SuperStream]:
        return self._by_name.values()

    def has_stream(self, queue: Queue) -> bool:
        """Return whether the stream is bound as a partition."""
        return queue in self._bound_counts

    def exchange_added(self, exchange: Exchange) -> None:
        if exchange.arguments.get(SUPER_STREAM) is True:
            self._by_name[exchange.name] = SuperStream(exchange)

    def exchange_removed(self, exchange: Exchange) -> None:
        """Forget the exchange; its bindings were reported before."""
        self._by_name.pop(exchange.name, None)

    def binding_added(self, binding: Binding) -> None:
        found = self._by_name.get(binding.source.name)
        if found is None:
            return
        order, queue = partition_order(binding.arguments), binding.destination
        if order >= 0 and not isinstance(queue, Exchange) and queue.kind == "stream":
            self._bound_counts[queue] = self._bound_counts.get(queue, 0) + 1
            self._unindex(found)
            found.add(binding.key, order, queue)
            self._index(found)

    def binding_removed(self, binding: Binding) -> None:
        found = self._by_name.get(binding.source.name)
        if found is None:
            return
        queue = binding.destination
        if partition_order(binding.arguments) >= 0 and not isinstance(queue, Exchange) and queue in self._bound_counts:
            self._bound_counts[queue] -= 1
            if self._bound_counts[queue] == 0:
                del self._bound_counts[queue]
            self._unindex(found)
            found.remove(binding.key)
            self._index(found)

    def _unindex(self, found: SuperStream) -> None:
        if found.id is not None and self._by_id.get(found.id) is found:
            del self._by_id[found.id]

    def _index(self, found: SuperStream) -> None:
        self.version += 1
        if found.id is not None:
            self._by_id[found.id] = found
