"""Idempotent producer: sends logs to Kafka, with a connection to each broker that leads a partition.

`open` adds a partition, `offer` gives it the next batches of its log, and `flush` sends at the end of a loop turn.
An answer raises the partition's high watermark and calls `on_moved`. At most IN_FLIGHT_MAX requests to a broker are
unanswered. After a lost connection the producer sends unanswered batches again to the new leader.

A broker that hangs does not end the producer. While its answer is late, the producer asks other brokers for the leaders
of the partitions that wait for it. If one of them has moved, it drops the connection and sends again.

The producer ends (`on_fenced`, once) in two cases. Kafka reports a later epoch or gives an impossible answer, or a
batch has waited longer than `delivery_timeout_s`. Then nothing is sent any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final, TypeVar

from librt.strings import BytesWriter

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import (
    ANSWER_TIMEOUT_S,
    SILENT_S,
    KafkaConnection,
    KafkaDisconnected,
    KafkaIncompatible,
    open_connection,
)
from amqpd.kafka.partition import NO_LEADER, UNKNOWN, Partition
from amqpd.kafka.producer_state import IN_FLIGHT_MAX, ProduceCall, ProducerState, epoch_fence
from amqpd.kafka.requests import (
    Coordinator,
    Metadata,
    ProducerId,
    decode_find_coordinator,
    decode_init_producer_id,
    decode_metadata,
    encode_find_coordinator,
    encode_init_producer_id,
    encode_metadata,
)
from amqpd.kafka.wire import ASK_AGAIN, BadAnswer, code_of
from amqpd.storage.log.batch import ClosedBatch

T = TypeVar("T")

logger = logging.getLogger(__name__)

DELIVERY_TIMEOUT_S: Final = 60.0
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 2.0
"""Shortest and longest pause between tries; it doubles each time."""
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_EPOCH_MAX: Final = 0x7FFF
_UNKNOWN_TOPIC: Final = 3
NEXT_BROKER_S: Final = 1.0
"""Time after which the next broker is asked, too."""
TOPIC_GONE: Final = "its topic is gone"
TOPIC_GONE_S: Final = 10.0
"""Time after which a topic that Kafka does not know counts as deleted: some brokers learn of a topic late."""


class KafkaRefused(Exception):
    """Kafka refuses the request, and a retry does not help; the text has Kafka's words."""


def ignore(_: object) -> None:
    """Do nothing: the default of callbacks."""


class KafkaProducer:
    """The writer of some partitions, under the producer id and epoch of the offered batches.

    Used on the event loop. Call `close` at the end.

    Args:
        on_moved: Called when a partition's high watermark has risen.
        on_refused: Called when a partition takes no more batches (`Partition.closed`), or none for now
            (`Partition.refused`).
        on_fenced: Called with the reason when the producer ends.

    Attributes:
        ended: The reason why the producer has ended, or "".
        answered_s: Send time (loop clock) of the last request with a good answer. It proves that this node still
            owns its partitions.
    """

    def __init__(
        self,
        access: KafkaAccess,
        *,
        on_moved: Callable[[Partition], None] = ignore,
        on_refused: Callable[[Partition], None] = ignore,
        on_fenced: Callable[[str], None] = ignore,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self.access = access
        self.partitions: list[Partition] = []
        self.on_moved = on_moved
        self.on_refused = on_refused
        self.on_fenced = on_fenced
        self._answer_timeout_s = answer_timeout_s
        self._delivery_timeout_ms = int(delivery_timeout_s * 1000)
        self._client_id = access.client_id.encode()
        self._loop = asyncio.get_running_loop()
        self._producing = ProducerState(self)
        self._scratch = BytesWriter()
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, KafkaConnection] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._sent: dict[int, deque[ProduceCall]] = {}  # unanswered requests by broker
        self._silent: dict[int, KafkaConnection] = {}  # brokers whose answer is late, until the next look-up
        self._wanted: set[Partition] = set()
        self._unknown_ms: dict[Partition, int] = {}  # since when Kafka does not know a partition's topic
        self._looking: asyncio.Task[None] | None = None
        self._flushing = False
        self._waiting: list[asyncio.Future[None]] = []
        self._moved = False  # the current answer has moved a high watermark
        self.ended = ""
        self.answered_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._clock: asyncio.TimerHandle | None = self._loop.call_later(1.0, self._each_second)
        self.closed = False

    # -- batches and requests

    def open(self, topic: str, number: int, next_offset: int) -> Partition:
        """Add a partition, whose next batch has the offset `next_offset`."""
        opened = Partition(topic.encode(), number, next_offset)
        self.partitions.append(opened)
        self.leader_wanted(opened)
        return opened

    def open_deleted(self, topic: str, number: int, next_offset: int, text: str) -> Partition:
        """Add a partition whose topic was deleted. It is closed with `text`, but the producer continues."""
        lost = Partition(topic.encode(), number, next_offset)
        lost.shared = True
        lost.close(_UNKNOWN_TOPIC, text)
        self.partitions.append(lost)
        return lost

    def remove(self, partition: Partition) -> None:
        """Remove a partition that does not exist any more. Nothing waits for its batches."""
        if partition in self.partitions:
            self.partitions.remove(partition)
        self._wanted.discard(partition)
        self._unknown_ms.pop(partition, None)
        partition.close(_UNKNOWN_TOPIC, TOPIC_GONE)
        self._wake()

    def offer(self, partition: Partition, batches: Iterable[ClosedBatch]) -> None:
        """Add the next batches of a partition; `flush` sends them. Does nothing if it takes no more batches."""
        now = self._now_ms()
        for batch in batches:
            self._producing.offer(partition, batch, now)

    async def wait_stored(self, partitions: Iterable[Partition]) -> None:
        """Wait until Kafka has stored all batches of these partitions. Raises KafkaRefused if it never will."""
        left = list(partitions)
        while True:
            if self.ended or self.closed:
                raise KafkaRefused(self.ended or "the producer is closed")
            for each in left:
                if each.closed:
                    raise KafkaRefused(f"{each.topic.decode()} {each.number}: {each.text}")
            left = [each for each in left if each.order]
            if not left:
                return
            self._waiting.append(self._loop.create_future())
            await self._waiting[-1]

    async def fence(self, partitions: Iterable[Partition], key: str, held: ProducerId) -> None:
        """Write an epoch fence to each of these partitions and wait until they are stored.

        The partitions must have no other batches. Afterwards each knows its end, and Kafka stores no batch of
        earlier epochs.

        If an owner died right after its fence, Kafka answers an identical fence as a copy, with the old offset. So
        `fence` always asks Kafka for the end, even if an earlier fence has returned it.

        Args:
            key: The transactional id.
            held: The producer id and epoch of the fence.

        Raises: KafkaRefused: Another node has a later epoch.
        """
        fenced = list(partitions)
        now = int(time.time() * 1000)
        for each in fenced:
            each.next_offset = UNKNOWN
            self.offer(each, [epoch_fence(key.encode(), held.producer_id, held.epoch, now)])
        self.flush()
        await self.wait_stored(fenced)

    def flush(self) -> None:
        """Send waiting batches within the limit of unanswered requests. Cost: about 10 us, and that of the requests."""
        self._flushing = False
        if self._producing.is_ended or self.closed:
            return
        now = self._now_ms()
        due = int(self._producing.paused_until(now))
        for leader in self._producing.leaders():
            connection = self._connections.get(leader)
            if connection is None:
                self._connect(leader)
            else:
                self._fill(leader, connection, now)
        if due >= 0:
            self._flush_at(self._loop.time() + max(0.001, (due - now) / 1000))

    def _flush_at(self, due_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()  # it waits for a partition with a longer pause
        self._timer = self._loop.call_at(due_s, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.flush()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def _fill(self, leader: int, connection: KafkaConnection, now: int) -> None:
        while connection.unanswered < IN_FLIGHT_MAX and not connection.blocked and not connection.lost:
            call = self._producing.take_request(leader, now)
            if call is None:
                return
            sent = self._sent.setdefault(leader, deque())
            sent.append(call)
            connection.send(partial(self._encode, call), partial(self._answered, sent, self._loop.time()))

    def _encode(self, call: ProduceCall, number: int) -> list[bytes]:
        return call.encode(self._scratch, number, self._client_id, int(self._answer_timeout_s * 500))

    def _answered(self, sent: deque[ProduceCall], sent_s: float, data: bytes | None) -> None:
        call = sent.popleft()  # a broker answers in order
        self._flush_soon()
        if data is None:
            self._producing.on_no_answer(call, self._now_ms())
            return
        self._moved = False
        self._producing.on_answer(call, data, self._now_ms())
        if self._moved:
            self.answered_s = max(self.answered_s, sent_s)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # -- events of `ProducerState`

    def moved(self, partition: Partition) -> None:
        """Called when the partition's high watermark has risen, also when a refused partition takes batches again."""
        self._moved = True
        self.on_moved(partition)
        self._wake()

    def refused(self, partition: Partition) -> None:
        """Called when the partition takes no more batches (`closed`), or none for now (`refused`); `text` says why.

        Batches above its high watermark may be stored or not.
        """
        more = "any more" if partition.closed else "for now"
        logger.error(
            "%s %d accepts no batches %s: %s", partition.topic.decode(), partition.number, more, partition.text
        )
        self.on_refused(partition)
        self._wake()

    def leader_wanted(self, partition: Partition) -> None:
        """Look the leader up. Nothing is sent to the partition before `set_leader`."""
        self._wanted.add(partition)
        if self._looking is None and not self.closed:
            self._looking = self._loop.create_task(self._look_up())

    def fenced(self, text: str) -> None:
        """Handle the end of the producer, once. Batches above the high watermarks may be stored or not."""
        logger.error("the producer has ended and sends nothing more to Kafka: %s", text)
        self.ended = text
        self.on_fenced(text)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _each_second(self) -> None:
        """Check the delivery time-out: a batch that waits too long ends the producer."""
        self._clock = self._loop.call_later(1.0, self._each_second)
        since = self._now_ms() - self._delivery_timeout_ms
        for each in self.partitions:
            if each.order and each.order[0].offered_ms < since and not each.refused:
                if each.shared and each in self._unknown_ms:
                    continue  # its topic may be gone, which only closes this partition
                name = f"{each.topic.decode()} {each.number}"
                self._producing.end(f"{name}: no answer within {self._delivery_timeout_ms / 1000:g} s")
                return

    # -- brokers

    def _connect(self, leader: int) -> None:
        if leader not in self._connecting and not self.closed:
            self._connecting[leader] = self._loop.create_task(self._open(leader))

    async def _open(self, leader: int) -> None:
        """Open a connection to that broker. After a failure, look for other leaders and pause."""
        try:
            try:
                address = self._brokers.get(leader)
                if address is None:
                    raise KafkaDisconnected(f"broker {leader} has no address")
                silent = partial(self._doubt, leader)
                connection = await open_connection(self.access, *address, self._answer_timeout_s, silent)
            except (OSError, KafkaIncompatible):
                self._want_led_by(leader)
                await asyncio.sleep(PAUSE_S)
                return
            connection.on_lost = partial(self._lost, leader, connection)
            connection.on_writable = self._flush_soon
            self._connections[leader] = connection
        finally:
            del self._connecting[leader]
            self._flush_soon()

    def _lost(self, leader: int, connection: KafkaConnection) -> None:
        if self._connections.get(leader) is connection:
            del self._connections[leader]
            if not self.closed:
                self._want_led_by(leader)
                self._flush_soon()

    def _want_led_by(self, leader: int) -> None:
        for each in self.partitions:
            if each.leader == leader:
                self.leader_wanted(each)

    def _doubt(self, leader: int, connection: KafkaConnection) -> None:
        """Ask other brokers for the leaders of partitions that wait for this broker, whose answer is late."""
        self._silent[leader] = connection
        self._want_led_by(leader)
        for call in self._sent.get(leader, ()):
            for each in call.partitions:
                if not each.closed:
                    self.leader_wanted(each)
        if not self._wanted:  # nothing waits for this broker any more
            self._drop_silent()

    def _drop_silent(self) -> None:
        """End the connections to silent brokers that no longer lead the partitions that wait for them."""
        silent, self._silent = self._silent, {}
        for leader, connection in silent.items():
            waiting = [each for call in self._sent.get(leader, ()) for each in call.partitions]
            moved = any(each.leader != leader for each in waiting)
            if moved or not any(each.leader == leader for each in self.partitions):
                connection.abort(f"no answer for {SILENT_S:g} s, and other brokers lead its partitions")

    async def _look_up(self) -> None:
        pause = PAUSE_S
        try:
            while self._wanted and not self._producing.is_ended:
                asked = set(self._wanted)
                connected = [self._brokers[each] for each in self._connections if each in self._brokers]
                silent = {self._brokers[each] for each in self._silent if each in self._brokers}
                addresses = order_silent_last([*connected, *self.access.addresses, *self._brokers.values()], silent)
                metadata = await fetch_any_metadata(self.access, sorted({each.topic for each in asked}), addresses)
                if metadata is not None:
                    self._brokers.update(metadata.brokers)
                    self._apply(metadata, asked)
                    self._drop_silent()
                self._flush_soon()
                if self._wanted:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_S_MAX)
        finally:
            self._looking = None

    def _apply(self, metadata: Metadata, asked: set[Partition]) -> None:
        now = self._now_ms()
        for each in asked:
            leader = metadata.leaders.get((each.topic, each.number), NO_LEADER)
            unknown = leader == NO_LEADER and metadata.codes.get((each.topic, -1), 0) == _UNKNOWN_TOPIC
            if each.shared and unknown:
                if now - self._unknown_ms.setdefault(each, now) >= TOPIC_GONE_S * 1000:
                    self._wanted.discard(each)
                    del self._unknown_ms[each]
                    each.close(_UNKNOWN_TOPIC, TOPIC_GONE)
                    self.refused(each)
                    continue
            else:
                self._unknown_ms.pop(each, None)
            self._producing.set_leader(each, leader, now)
            if leader != NO_LEADER:
                self._wanted.discard(each)

    # -- end

    async def close(self) -> None:
        """Stop. Unanswered batches may be stored or not."""
        self.closed = True
        self._wake()
        for timer in (self._timer, self._clock):
            if timer is not None:
                timer.cancel()
        tasks = [*self._connecting.values(), *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.values()):
            await connection.close()


async def take_over(
    producer: KafkaProducer, transactional_id: str, partitions: Iterable[Partition], recorded: ProducerId | None = None
) -> ProducerId:
    """Make `producer` the only writer of partitions that it opened with the offset UNKNOWN.

    Afterwards all batches of other writers are below `next_offset`, and Kafka refuses their later batches. The next
    sequence in each partition is 1.

    Kafka forgets a transactional id that was not used for a week. Then it gives out another producer id, whose
    epochs do not fence the owner of the old id. In that case the fence is written under the old id first.

    Args:
        recorded: The producer id and epoch of the last owner, if known.

    Returns: The producer id and epoch to write with.

    Raises:
        KafkaRefused: Another node has a later epoch.
        KafkaDisconnected: No coordinator answers.
    """
    taken = list(partitions)
    held = await init_producer_id(producer.access, transactional_id)
    if recorded is not None and recorded.producer_id != held.producer_id:
        await producer.fence(taken, transactional_id, fencing_epoch(recorded))
    await producer.fence(taken, transactional_id, held)
    return held


def fencing_epoch(recorded: ProducerId) -> ProducerId:
    """Return an epoch that fences the recorded owner under its own producer id.

    It is two epochs later: the owner may have got its next epoch and died, or hung, before recording it.
    """
    return ProducerId(0, recorded.producer_id, min(recorded.epoch + 2, _EPOCH_MAX))


def order_silent_last(
    addresses: Iterable[tuple[str, int]], silent: Collection[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return each address once, with those of silent brokers last."""
    return sorted(dict.fromkeys(addresses), key=lambda each: each in silent)


async def first_answer(
    access: KafkaAccess, addresses: Iterable[tuple[str, int]], ask: Callable[[KafkaConnection], Awaitable[T]]
) -> T:
    """Return the first answer of any of these brokers, each asked over a new connection.

    They are asked in order: the next one after a failure, or after NEXT_BROKER_S without an answer.

    Raises: OSError, KafkaIncompatible, BadAnswer: No broker answers; the last error.
    """

    async def one(address: tuple[str, int]) -> T:
        connection = await open_connection(access, *address)
        try:
            return await ask(connection)
        except BadAnswer as error:
            access.outages.report_failure(connection.name, error)
            raise
        finally:
            await connection.close()

    last: Exception = KafkaDisconnected("no broker answers")
    left = deque(addresses)
    tasks: list[asyncio.Task[T]] = []
    running: set[asyncio.Task[T]] = set()
    try:
        while left or running:
            if left:
                tasks.append(asyncio.get_running_loop().create_task(one(left.popleft())))
                running.add(tasks[-1])
            timeout = NEXT_BROKER_S if left else None
            done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, (OSError, KafkaIncompatible, BadAnswer)):
                    raise error
                last = error
        raise last
    finally:
        for task in tasks:
            task.cancel()
        # Of several that end together one may have answered: asyncio would log the errors of the others.
        await asyncio.gather(*tasks, return_exceptions=True)


async def fetch_metadata(connection: KafkaConnection, topics: list[bytes]) -> Metadata:
    """Ask one broker for the cluster's brokers and the leaders of topics. Raises KafkaDisconnected, BadAnswer."""
    client_id = connection.client_id
    return decode_metadata(await connection.request(lambda number: encode_metadata(number, client_id, topics)))


async def fetch_any_metadata(
    access: KafkaAccess, topics: list[bytes], addresses: Iterable[tuple[str, int]] | None = None
) -> Metadata | None:
    """Return the first broker's answer about the cluster and topics; None if no broker answers.

    Args:
        addresses: Brokers in the order in which they are asked; None: those of `access`.
    """

    asked = addresses if addresses is not None else access.addresses
    try:
        return await first_answer(access, asked, lambda connection: fetch_metadata(connection, topics))
    except (OSError, KafkaIncompatible, BadAnswer):
        return None


async def init_producer_id(
    access: KafkaAccess, transactional_id: str, held: ProducerId | None = None, timeout_s: float = 30.0
) -> ProducerId:
    """Return the producer id of a transactional id, with its next epoch.

    A partition refuses the previous epoch as soon as it gets a batch with the new one.

    Args:
        held: The current id and epoch, to renew them. Kafka refuses this if another node has got a later epoch.

    Raises:
        KafkaRefused: Kafka does not give it.
        KafkaDisconnected: No coordinator answers within `timeout_s`.
    """
    pause = PAUSE_S
    last = "no broker answers"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                code, text, found = await _init_once(access, transactional_id.encode(), held)
                if found is not None:
                    return found
                if code and code not in ASK_AGAIN:
                    raise KafkaRefused(f"{transactional_id}: {code_of(code).name} {text}".rstrip())
                last = text or code_of(code).name
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_S_MAX)
    except TimeoutError:
        raise KafkaDisconnected(f"no producer id of {transactional_id} within {timeout_s:g} s: {last}") from None


async def _init_once(
    access: KafkaAccess, transactional_id: bytes, held: ProducerId | None
) -> tuple[int, str, ProducerId | None]:
    """Try once. Return (error code, text, producer id or None)."""

    async def find(connection: KafkaConnection) -> Coordinator:
        client_id = connection.client_id
        ask = connection.request(lambda number: encode_find_coordinator(number, client_id, transactional_id))
        return decode_find_coordinator(await ask)

    try:
        coordinator = await first_answer(access, access.addresses, find)
        if coordinator.code:
            return coordinator.code, coordinator.text, None
        connecting = True

        def silent(connection: KafkaConnection) -> None:
            if connecting:  # the broker hangs: another one becomes the coordinator soon
                connection.abort(f"no answer for {SILENT_S:g} s")

        connection = await open_connection(access, coordinator.host, coordinator.port, on_silent=silent)
        connecting = False  # the request may take as long as the coordinator's replicas
        try:
            data = await connection.request(partial(_encode_init, connection.client_id, transactional_id, held))
            answer = decode_init_producer_id(data)
        finally:
            await connection.close()
        return answer.code, "", answer if answer.code == 0 else None
    except (OSError, BadAnswer) as error:
        return 0, str(error), None
    except KafkaIncompatible as error:
        raise KafkaRefused(str(error)) from error


def _encode_init(client_id: bytes, transactional_id: bytes, held: ProducerId | None, number: int) -> bytes:
    producer_id, epoch = (held.producer_id, held.epoch) if held is not None else (-1, -1)
    return encode_init_producer_id(number, client_id, transactional_id, _TRANSACTION_TIMEOUT_MS, producer_id, epoch)
