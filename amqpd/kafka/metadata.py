"""Leaders of partitions, and shared connections to brokers, for readers.

`leader` looks a leader up once, with one request for all concurrent callers. `invalidate` drops it when an answer names
another leader. `connection` is shared by all readers of a broker. Kafka answers its requests one after the other. So a
request that waits at Kafka for new data needs a connection of its own (`open`). If an answer is late,
`PartitionLeaders` asks other brokers. If a leader has moved, it ends the connection, and its readers ask the new
leader.

Writers have their own connections (producer.py): their requests have an order and may not be sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import ANSWER_TIMEOUT_S, SILENT_S, KafkaConnection, KafkaDisconnected, open_connection
from amqpd.kafka.producer import KafkaRefused, fetch_any_metadata, order_silent_last
from amqpd.kafka.wire import PARTITION, code_of

_UNKNOWN_TOPIC: Final = 3

Place = tuple[str, int]
"""Topic and number of a partition."""


class PartitionLeaders:
    """The leaders of one Kafka cluster. Used on the event loop. Call `close` at the end."""

    def __init__(self, access: KafkaAccess) -> None:
        self.access = access
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Place, int] = {}
        self._codes: dict[Place, int] = {}
        self._wanted: set[str] = set()
        self._looking: asyncio.Task[bool] | None = None
        self._connections: dict[int, KafkaConnection] = {}
        self._opening: dict[int, asyncio.Task[KafkaConnection]] = {}
        self._doubts: dict[int, asyncio.Task[None]] = {}  # one task for each broker whose answer is late
        self._closed = False

    async def leader(self, topic: str, number: int) -> int:
        """Return the broker that leads a partition.

        Raises:
            KafkaDisconnected: No broker leads it at the moment.
            KafkaRefused: It may not be read.
        """
        place = topic, number
        leader = self._leaders.get(place)
        if leader is None:
            await self._look_up(topic)
            leader = self._leaders.get(place)
        if leader is None:
            code = self._codes.get(place, self._codes.get((topic, -1), 0))
            why = f": {code_of(code).name}" if code else ""
            if code and code_of(code).remedy == PARTITION:
                raise KafkaRefused(f"{topic} {number}{why}")
            raise KafkaDisconnected(f"no broker leads {topic} {number}{why}")
        return leader

    async def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of the topics that exist. It creates no topic. Raises KafkaDisconnected."""
        wanted = sorted(set(topics))
        if not wanted:
            return {}
        metadata = await fetch_any_metadata(self.access, [topic.encode() for topic in wanted])
        if metadata is None:
            raise KafkaDisconnected("no Kafka broker answers")
        found: dict[str, int] = {}
        for name, number in metadata.leaders:
            topic = name.decode()
            found[topic] = max(found.get(topic, 0), number + 1)
        for topic in wanted:
            code = metadata.codes.get((topic.encode(), -1), 0)
            if code not in (0, _UNKNOWN_TOPIC):
                raise KafkaDisconnected(f"topic {topic}: {code_of(code).name}")
        return found

    def invalidate(self, topic: str, number: int) -> None:
        """Look up the leader again at the next request."""
        self._leaders.pop((topic, number), None)

    async def connection(self, leader: int) -> KafkaConnection:
        """Return the shared connection to a broker. Raises OSError (KafkaDisconnected), KafkaIncompatible."""
        connection = self._connections.get(leader)
        if connection is not None and not connection.lost:
            return connection
        opening = self._opening.get(leader)
        if opening is None:
            opening = self._opening[leader] = asyncio.get_running_loop().create_task(self._open(leader))
        return await asyncio.shield(opening)

    async def _open(self, leader: int) -> KafkaConnection:
        try:
            connection = self._connections[leader] = await self.open(leader)
            return connection
        finally:
            del self._opening[leader]

    async def open(self, leader: int) -> KafkaConnection:
        """Open a connection for the caller alone. Raises OSError (KafkaDisconnected), KafkaIncompatible."""
        address = self._addresses.get(leader)
        if address is None:
            raise KafkaDisconnected(f"broker {leader} has no address")
        return await open_connection(self.access, *address, ANSWER_TIMEOUT_S, partial(self._doubt, leader))

    def _doubt(self, leader: int, connection: KafkaConnection) -> None:
        """Ask other brokers whether this one, whose answer is late, still leads its partitions."""
        if leader not in self._doubts and not self._closed:
            self._doubts[leader] = asyncio.get_running_loop().create_task(self._ask_others(leader, connection))

    async def _ask_others(self, leader: int, connection: KafkaConnection) -> None:
        try:
            led = [place for place, known in self._leaders.items() if known == leader]
            moved = led
            if led:
                topics = sorted({topic.encode() for topic, _ in led})
                silent = {self._addresses[each] for each in self._doubts if each in self._addresses}
                addresses = order_silent_last([*self._addresses.values(), *self.access.addresses], silent)
                metadata = await fetch_any_metadata(self.access, topics, addresses)
                if metadata is None:
                    return
                self._addresses.update(metadata.brokers)
                moved = [place for place in led if metadata.leaders.get((place[0].encode(), place[1])) != leader]
                for place in moved:
                    self.invalidate(*place)
            if moved or not led:  # if it leads none, its readers have found another leader
                connection.abort(f"no answer for {SILENT_S:g} s, and other brokers lead its partitions")
        finally:
            del self._doubts[leader]

    async def _look_up(self, topic: str) -> None:
        """Look up the leaders of a topic, together with all other callers. Raises KafkaDisconnected."""
        if self._closed:
            raise KafkaDisconnected("closed")
        self._wanted.add(topic)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._ask())
        if not await asyncio.shield(self._looking):
            raise KafkaDisconnected("no Kafka broker answers")

    async def _ask(self) -> bool:
        """Ask the brokers. Return whether one has answered."""
        try:
            await asyncio.sleep(0)  # calls of this loop turn share the request
            while self._wanted:
                topics = sorted(self._wanted)
                self._wanted.clear()
                connected = [self._addresses[each] for each in self._connections if each in self._addresses]
                addresses = dict.fromkeys([*connected, *self.access.addresses, *self._addresses.values()])
                metadata = await fetch_any_metadata(self.access, [topic.encode() for topic in topics], addresses)
                if metadata is None:
                    self._wanted.clear()
                    return False
                self._addresses.update(metadata.brokers)
                asked = set(topics)
                self._codes = {each: code for each, code in self._codes.items() if each[0] not in asked}
                self._codes.update({(name.decode(), number): code for (name, number), code in metadata.codes.items()})
                for (name, number), leader in metadata.leaders.items():
                    if leader >= 0:
                        self._leaders[name.decode(), number] = leader
            return True
        finally:
            self._looking = None

    async def close(self) -> None:
        """Close the connections; running reads raise KafkaDisconnected."""
        self._closed = True
        tasks: list[asyncio.Task[Any]] = [*self._opening.values(), *self._doubts.values()]
        if self._looking is not None:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()
