"""amqpd with a planted fault or a changed clock: the program of a node for tests that must fail with the fault.

    python tests/cluster/planted.py FAULT[,FAULT] [--setting=value ...]

Faults are patched in here from outside; amqpd has no switch for them. All replaced code is interpreted.
"""

from __future__ import annotations

import asyncio
import mmap
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

from amqpd.cluster import node, ownership, placement
from amqpd.cluster.ownership import SlotOwnership
from amqpd.cluster.peer_link import PeerUnreachable
from amqpd.cluster.proxy import ConnectionProxy
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.kafka import group
from amqpd.kafka.admin import TopicAdmin
from amqpd.kafka.connection import KafkaConnection
from amqpd.kafka.producer import KafkaProducer
from amqpd.storage.log.appender import KafkaSequencer

SEND_LATER_S: Final = 0.5
REQUESTS: Final = "requests"
KINDS_MAX: Final = 128


def confirm_early() -> None:
    """Confirm as soon as a message is in the node's own log; send it to Kafka half a second later."""

    def offered(self: SlotLogs, log: Any) -> None:
        batches = log.take_batches()
        partition = log.partition
        if partition is None or self.ended or not batches:
            return
        log.set_high_watermark(batches[-1].last_offset + 1)
        self._loop.call_later(SEND_LATER_S, later, self, partition, batches)

    def later(self: SlotLogs, partition: Any, batches: list[Any]) -> None:
        if not self.ended and not self.producer.closed:
            self.producer.offer(partition, batches)
            self.producer.flush()

    SlotLogs._offer = offered  # type: ignore[method-assign]


def no_relay() -> None:
    """Do not proxy clients to the node that serves their vhost."""

    async def joined(self: ConnectionProxy, handover: Any, node: Any) -> None:
        raise PeerUnreachable(f"node {node.name} is not asked")

    ConnectionProxy._proxy = joined  # type: ignore[method-assign]


def refused_is_stored() -> None:
    """Take a Produce request refused for too few replicas as stored."""
    from kafka_faults import REFUSED, changed_answer

    answered = KafkaProducer._answered

    def believed(self: KafkaProducer, call: Any, sent_s: float, data: bytes | None) -> None:
        def stored(topic: bytes, number: int, code: int, offset: int) -> tuple[int, int]:
            if code != REFUSED["NOT_ENOUGH_REPLICAS"]:
                return code, offset
            at = [(each.topic, each.number) for each in call.partitions].index((topic, number))
            return 0, int(call.offered[at].batch.base_offset)

        if data is not None:
            data = changed_answer(len(data).to_bytes(4, "big") + data, stored)[4:]
        answered(self, call, sent_s, data)

    KafkaProducer._answered = believed  # type: ignore[method-assign]


def no_barrier() -> None:
    """Take a slot over without writing barriers to its queues' partitions: continue at their current ends."""
    from kafka_logs import fetch

    unfenced: set[Any] = set()
    replica = SlotLogs.replica

    async def fence_queues(
        self: SlotOwnership, producer: KafkaProducer, vhosts: Any, notes: Any, key: str, held: Any, recorded: Any
    ) -> tuple[list[Any], dict[str, str]]:
        topics = [self.options.queues_topic(row.id) for row in vhosts]
        counts = await self._reader.brokers.partitions(topics)
        found = []
        for topic, count in sorted(counts.items()):
            for number in range(count):
                end = int((await fetch(self.options.access, topic, number)).high_watermark)
                opened = producer.open(topic, number, end)
                unfenced.add(opened)
                found.append(opened)
        return found, {}

    def numbered(self: SlotLogs, partition: Any) -> KafkaSequencer:
        if partition in unfenced and partition not in self._replicas:
            held = self.held
            self._replicas[partition] = KafkaSequencer(held.producer_id, held.epoch, 0, self._transaction_bytes_max)
        return replica(self, partition)

    SlotOwnership._fence_queues = fence_queues  # type: ignore[method-assign]
    SlotLogs.replica = numbered  # type: ignore[method-assign]


def no_old_barrier() -> None:
    """If Kafka assigns another producer id, write the barrier only under the new id."""
    fence_queues, take_over = SlotOwnership._fence_queues, ownership.take_over

    async def fenced(
        self: SlotOwnership, producer: KafkaProducer, vhosts: Any, notes: Any, key: str, held: Any, recorded: Any
    ) -> tuple[list[Any], dict[str, str]]:
        return await fence_queues(self, producer, vhosts, notes, key, held, None)

    async def taken(producer: KafkaProducer, transactional_id: str, partitions: Any, recorded: Any = None) -> Any:
        return await take_over(producer, transactional_id, partitions)

    SlotOwnership._fence_queues = fenced  # type: ignore[method-assign]
    ownership.take_over = taken  # type: ignore[assignment]


def no_settlements() -> None:
    """Do not send consumers' acks to Kafka."""

    def dropped(self: SlotLogs) -> None:
        self._records = []

    SlotLogs._write_records = dropped  # type: ignore[method-assign]


def old_place() -> None:
    """Place a new queue at the start of a reused partition, and keep the deleted queue's messages."""
    placement.LogPosition = lambda topic, number, _: LogPosition(topic, number, 0)  # type: ignore[assignment,misc]

    async def kept(self: TopicAdmin, name: str, before: Any) -> dict[int, int]:
        return {}

    TopicAdmin.delete_records = kept  # type: ignore[method-assign]


def fast_keep_alive() -> None:
    """No fault: send keep-alive records each second instead of hourly."""
    node.KEEP_ALIVE_S = 1.0  # type: ignore[misc]
    node.UPKEEP_S = 1.0  # type: ignore[misc]


def no_keep_alive() -> None:
    """Send no keep-alive records."""

    def left_out(self: SlotOwnership, owned: Any) -> None:
        """Write no record."""

    SlotOwnership.keep_alive = left_out  # type: ignore[method-assign]


def short_poll() -> None:
    """No fault: aiokafka drops a member that is not polled for 10 s."""
    group.MAX_POLL_INTERVAL_S = 10.0  # type: ignore[misc]


def no_poll() -> None:
    """Join the group but never poll."""

    async def never(self: group.GroupMembership) -> None:
        await asyncio.Event().wait()

    group.GroupMembership._each_second = never  # type: ignore[method-assign]


def count_requests() -> None:
    """No fault: count requests to Kafka by kind in the file REQUESTS beside the data directory."""
    from aiokafka.conn import AIOKafkaConnection

    named = next(each.partition("=")[2] for each in sys.argv if each.startswith("--data-dir="))
    path = Path(named).parent / REQUESTS
    path.write_bytes(bytes(8 * KINDS_MAX))
    with path.open("r+b") as file:
        counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    ours, theirs = KafkaConnection.send, AIOKafkaConnection.send

    def send(self: KafkaConnection, make: Callable[[int], list[bytes]], done: Any) -> None:
        def counted(number: int) -> list[bytes]:
            parts = make(number)
            counts[int.from_bytes(parts[0][4:6], "big")] += 1
            return parts

        ours(self, counted, done)

    def send_theirs(self: Any, request: Any, expect_response: bool = True) -> Any:
        counts[request.prepare(self._versions).API_KEY] += 1
        return theirs(self, request, expect_response)

    KafkaConnection.send = send  # type: ignore[method-assign]
    AIOKafkaConnection.send = send_theirs


def requests_of(directory: Path) -> Counter[int]:
    """Return the counts of a node's requests to Kafka, by API key."""
    with (directory / REQUESTS).open("rb") as file:
        counts = memoryview(file.read()).cast("Q")
    return Counter({kind: number for kind, number in enumerate(counts) if number})


FAULTS: Final[dict[str, Callable[[], None]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        confirm_early,
        no_relay,
        refused_is_stored,
        no_barrier,
        no_old_barrier,
        no_settlements,
        old_place,
        fast_keep_alive,
        no_keep_alive,
        short_poll,
        no_poll,
        count_requests,
    )
}


if __name__ == "__main__":
    for fault in sys.argv[1].split(","):
        FAULTS[fault]()
    from amqpd.__main__ import main

    sys.exit(main(sys.argv[2:]))
