"""A broker's life with clients of Kafka: the real handlers of Produce, OffsetCommit, OffsetDelete and OffsetFetch.

states_transactions_life.py and states_share_life.py have more of them.

They get calls without sockets. A batch or a commit counts for the ledger from its reply on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from kafka.record.default_records import DefaultRecordBatchBuilder
from states_broker_ledger import Rows
from states_broker_life import BrokerLife
from states_disk import Disk, Image
from states_kafka_ledger import NOTHING, Batch, FoundTopic, KafkaLedger, KafkaOutcome, Numbers, Records, Topic
from states_ledger import Violation
from states_pace import SETTLE_MS

from amqpd.broker.vhost import declare
from amqpd.broker.vhost.limits import UserLimits
from amqpd.kafka_server import fetch, group_offsets, produce, transaction_requests
from amqpd.kafka_server.coordinator import GroupCoordinator
from amqpd.kafka_server.fetch import WaitingFetches
from amqpd.kafka_server.messages import RequestHeader
from amqpd.kafka_server.pace import Pace, run_all
from amqpd.kafka_server.quotas import ClientQuotas
from amqpd.storage.local_log import LocalLog
from amqpd.storage.retention import trim

PRODUCE, FETCH, COMMIT, FETCH_OFFSETS, DELETE_OFFSETS = 0, 1, 8, 9, 47
VERSIONS: Final = {
    PRODUCE: 7,
    FETCH: 11,
    COMMIT: 8,
    FETCH_OFFSETS: 7,
    DELETE_OFFSETS: 0,
    22: 4,
    24: 3,
    25: 3,
    26: 3,
    28: 3,
}
APIS: Final = (*produce.APIS, *fetch.APIS, *group_offsets.APIS, *transaction_requests.APIS)
HANDLERS: Final = {api.key: api.handle for api in APIS}
GROUPS: Final = ("a", "b")
_RESULT: Final = struct.Struct(">ihq")  # partition, error, base offset


class WalkConnection:
    """The connection of all calls."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.closed = False
        self.on_close: list[Callable[[], None]] = []

    def hold(self, _held: bool) -> None:
        """Do nothing: no request waits for another one."""

    def fail(self, error: Exception) -> None:
        raise error

    def begin_work(self) -> None:
        """Do nothing: no request waits for another one."""

    def end_work(self) -> None:
        """Do nothing."""

    def close(self, why: str) -> None:
        raise Violation(f"a connection is closed: {why or 'a bug'}")

    def log_fields(self) -> dict[str, object]:
        return {}


class WalkCall:
    """A request without a socket. then: called with the reply."""

    def __init__(self, life: KafkaLife, key: int, request: Any, frame: bytes, then: Callable[[Any], None]) -> None:
        self.connection = life.connection
        self.session = life.publisher.session
        self.version = VERSIONS[key]
        self.header = RequestHeader(key, self.version, 0, "", 0)
        self.request = request
        self.frame = frame
        self.is_done = self.is_sent = False
        self._then = then

    def reply(self, fields: Any) -> None:
        self.is_done = self.is_sent = True
        self._then(fields)

    def reply_bytes(self, *parts: bytes) -> None:
        self.reply(b"".join(parts))


class KafkaLife(BrokerLife):
    """A life of the broker with the actions of Kafka's clients; see `Process`."""

    def __init__(self, disk: Disk, ledger: KafkaLedger, boot: int, **arguments: Any) -> None:
        super().__init__(disk, ledger, boot, **arguments)
        self.told = ledger
        broker: Any = SimpleNamespace(
            storage=self.storage,
            turn=self.turn,
            timers=self.timers,
            loop=SimpleNamespace(call_soon=self.soon),
            vhosts=self.vhosts,
            alarm_reason="",
            message_size_max_bytes=1 << 20,
        )
        self.broker = broker
        pace = Pace(self.turn, self.soon)
        self.coordinator = GroupCoordinator(broker, pace)
        self.fetches = WaitingFetches(broker, pace)
        self._prepare()
        quotas = ClientQuotas(UserLimits(broker), self.timers)
        server = SimpleNamespace(
            broker=broker, coordinator=self.coordinator, fetches=self.fetches, quotas=quotas, pace=pace
        )
        self.connection = WalkConnection(server)
        self.coordinator.start()
        self.turns()
        if self.coordinator.load_error():  # a paced life syncs what a kill left unsynced after some ms
            self.pass_time(2 * SETTLE_MS)
        if self.coordinator.load_error():
            raise Violation("the committed offsets cannot be read on a disk that does not fail")

    def _prepare(self) -> None:
        """Make what must be there before the committed offsets are read."""

    def stop(self) -> None:
        self.turns()
        self.coordinator.stop()
        self.fetches.stop()
        super().stop()

    def _ask(self, key: int, request: Any, frame: bytes, then: Callable[[Any], None]) -> None:
        call: Any = WalkCall(self, key, request, frame, then)
        steps = HANDLERS[key](call)
        if steps is not None:
            run_all(steps)

    # -- topics

    def stream(self, name: str) -> None:
        """Create a topic, if it does not exist."""
        self.queue(name, x_queue_type="stream")
        queue_id = self.vhost.queues[name].id
        if queue_id not in self.told.topics:
            self.told.version += 1
            self.told.topics[queue_id] = Topic(name)

    def topic(self, name: str) -> Topic:
        return self.told.topics[self.vhost.queues[name].id]

    def delete(self, name: str) -> None:
        queue = self.vhost.queues[name]
        ledger = self.told
        ledger.version += 1
        ledger.topics[queue.id].is_deleting = True

        def answered(error: BaseException | None) -> None:
            if error is not None:
                raise Violation(f"a deletion fails on a disk that does not: {error}")
            ledger.version += 1
            ledger.deleted.add(queue.id)
            del ledger.topics[queue.id]
            for sent in [each for each in ledger.sent.values() if each.queue == name]:
                del ledger.sent[sent.body]

        declare.delete_queue(self.vhost, queue, answered)
        self.turns()

    def store(self, name: str) -> LocalLog:
        store = self.open(name).store
        assert isinstance(store, LocalLog)
        return store

    def records(self, name: str) -> Records:
        """Return what is in the log, also above the high watermark."""
        found = self.store(name).cursor.read(0, 1 << 30).records
        return [(record.offset, bytes(record.body)) for record in found]

    def trim(self, name: str) -> None:
        """Remove about half of the records, as retention does, up to the end of a batch."""
        self.turns()
        topic = self.topic(name)
        if topic.batches:
            start = topic.batches[len(topic.batches) // 2].offset
            below = {body for offset, body in self.records(name) if offset < start}
            self.told.version += 1
            topic.trimmed, topic.trimmed_bodies = start, topic.trimmed_bodies | below
            trim(self.store(name), start)
            self.turn.schedule()
            self.turns()

    # -- producers

    def produce(self, name: str, producer: int, count: int, size: int, *, new_epoch: bool = False) -> Batch:
        """Send the next batch of a producer, without ending the turn."""
        topic = self.topic(name)
        last = [each for each in topic.batches if each.numbers[0] == producer][-1:]
        epoch = last[0].numbers[1] if last else 0
        sequence = last[0].numbers[2] + len(last[0].bodies) if last else 0
        if new_epoch and last and last[0].offset >= 0:
            epoch, sequence = epoch + 1, 0
        ledger = self.told
        bodies = [b"%d." % (ledger.number + number) for number in range(count)]
        ledger.number += count
        builder = DefaultRecordBatchBuilder(2, 0, 0, producer, epoch, sequence, 1 << 20)
        for number, body in enumerate(bodies):
            bodies[number] = body.ljust(size, b"-")
            builder.append(number, self.clock.now_ms, b"key", bodies[number], [])
        batch = Batch((producer, epoch, sequence), bodies, bytes(builder.build()))
        ledger.version += 1
        topic.batches.append(batch)
        self.send_batch(name, batch)
        return batch

    def send_batch(self, name: str, batch: Batch) -> None:
        """Send a batch, also again."""

        def answered(error: int, offset: int) -> None:
            if error or batch.offset not in (NOTHING, offset):
                raise Violation(f"{batch} is answered with error {error}, offset {offset}")
            self.told.version += 1
            batch.offset = offset

        self.ask_produce(name, batch, answered)

    def ask_produce(
        self, name: str, batch: Batch, answered: Callable[[int, int], None], transactional_id: str | None = None
    ) -> None:
        topic = name.encode()
        head = struct.pack(">h", -1)
        if transactional_id is not None:
            head = struct.pack(">h", len(transactional_id)) + transactional_id.encode()
        head += struct.pack(f">hiih{len(topic)}siii", -1, 30_000, 1, len(topic), topic, 1, 0, len(batch.data))

        def replied(body: bytes) -> None:
            _, error, offset = _RESULT.unpack_from(body, 10 + len(topic))
            answered(error, offset)

        self.store(name)
        self._ask(PRODUCE, None, head + batch.data, replied)

    def retry(self) -> None:
        """Send the last batches of all producers again."""
        for topic in list(self.told.topics.values()):
            if not topic.is_deleting:
                for batch in topic.repeated():
                    self.send_batch(topic.name, batch)
        self.turns()

    # -- groups

    def commit(self, group: str, name: str, offset: int) -> None:
        """Commit an offset, without ending the turn. -1 removes it."""
        ledger = self.told
        possible = ledger.committed.setdefault((group, self.vhost.queues[name].id), [(0, NOTHING)])
        number = ledger.number
        ledger.number += 1
        ledger.version += 1
        possible.append((number, offset))

        def answered(fields: dict[str, Any]) -> None:
            code = fields["topics"][0]["partitions"][0]["error_code"] or fields.get("error_code", 0)
            if code:
                raise Violation(f"a commit is answered with error {code} on a disk that does not fail")
            ledger.version += 1
            possible[:] = [each for each in possible if each[0] >= number]

        partition = SimpleNamespace(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = SimpleNamespace(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[SimpleNamespace(name=name, partitions=[partition])],
        )
        self._ask(COMMIT if offset >= 0 else DELETE_OFFSETS, request, b"", answered)

    def committed(self) -> dict[tuple[str, str], int]:
        """Return the committed offsets that clients see, by group and queue id."""
        found: dict[tuple[str, str], int] = {}

        def replied(fields: dict[str, Any]) -> None:
            if fields["error_code"]:
                raise Violation(f"OffsetFetch is answered with error {fields['error_code']}")
            for topic in fields["topics"]:
                queue = self.vhost.queues.get(topic["name"])
                if queue is None:
                    raise Violation(f"group {group} is at an offset of a topic that does not exist")
                found[group, queue.id] = topic["partitions"][0]["committed_offset"]

        for group in GROUPS:
            self._ask(FETCH_OFFSETS, SimpleNamespace(group_id=group, topics=None, require_stable=False), b"", replied)
            self.turns()
        return found

    def see(self) -> None:
        """Read the committed offsets: a client that has seen one must not see an older one."""
        found = self.committed()
        self.told.version += 1
        for (group, queue_id), possible in self.told.committed.items():
            value = found.get((group, queue_id), NOTHING)
            if queue_id in self.told.topics and not self.told.topics[queue_id].is_deleting:
                possible[:] = [each for each in possible if each[1] == value][-1:]
                if not possible:
                    raise Violation(f"group {group} sees {value}")


def look(image: Image, rows: Rows, boot: int, segment_size_bytes: int, ledger: KafkaLedger) -> KafkaOutcome:
    """Start on an image. ledger: has the current time and the batches that are sent again."""
    ledger_of_start = KafkaLedger()
    ledger_of_start.rows, ledger_of_start.now_ms = [rows], ledger.now_ms
    life = KafkaLife(Disk(image), ledger_of_start, boot, segment_size_bytes=segment_size_bytes)
    outcome = find(life, ledger)
    life.forget()
    return outcome


def find(life: KafkaLife, ledger: KafkaLedger) -> KafkaOutcome:
    """Return what clients find after a start. ledger: has the batches that are sent again."""
    committed = life.committed()
    topics: dict[str, FoundTopic] = {}
    for name, queue in life.vhost.queues.items():
        before = life.records(name)
        answers: dict[Numbers, tuple[int, int]] = {}
        if queue.id in ledger.topics:
            for batch in ledger.topics[queue.id].repeated():
                life.ask_produce(name, batch, _noted(answers, batch.numbers))
        life.turns()
        topics[queue.id] = FoundTopic(before, answers, life.records(name))
    return KafkaOutcome(topics, committed)


def _noted(answers: dict[Numbers, tuple[int, int]], numbers: Numbers) -> Callable[[int, int], None]:
    def noted(error: int, offset: int) -> None:
        answers[numbers] = (error, offset)

    return noted
