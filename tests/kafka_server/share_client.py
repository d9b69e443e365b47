"""A member of a share group on one raw connection, which sends single requests of its choice."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from kafka.protocol.metadata import MetadataRequest
from kafka.record import MemoryRecords
from kafka_socket import KafkaSocket

from amqpd.kafka_server.request_reader import BodyWriter, RequestReader

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
MOST = 1 << 20


class Taken(NamedTuple):
    """An acquired record."""

    offset: int
    count: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


class Answer(NamedTuple):
    """A response of ShareFetch or ShareAcknowledge. errors, ack_errors: by topic, if not 0."""

    error: int
    errors: dict[str, int]
    ack_errors: dict[str, int]
    topics: set[str]
    records: list[Taken]

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class ShareMember:
    """A member with a share session for its topics."""

    def __init__(self, address: str, group: str, *topics: str) -> None:
        self.socket = KafkaSocket(address)
        self.group = group
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.member_epoch = 0
        self.names: dict[str, uuid.UUID] = {}
        self._wanted = list(topics)

    def __enter__(self) -> Self:
        try:
            for name in self._wanted:
                self.find(name)
        except BaseException:
            self.socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def find(self, name: str) -> uuid.UUID:
        """Look up the id of a topic."""
        topic = MetadataRequest.fields["topics"].data_class(name=name, topic_id=uuid.UUID(int=0), version=12)
        answer = self.socket.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=False, version=12), 12)
        assert answer.topics[0].error_code == 0, answer
        self.names[name] = answer.topics[0].topic_id
        return self.names[name]

    # -- the group

    def ask(self, key: int, version: int, body: bytes) -> RequestReader:
        """Send a request and return the body of its response."""
        self.socket.send_frame(key, version, body, b"\0")
        frame = self.socket.receive()
        return RequestReader(frame, 4)

    def heartbeat(self, epoch: int | None = None, topics: Sequence[str] | None = None) -> tuple[int, set[uuid.UUID]]:
        """Return the error and the ids of the assigned topics."""
        self.send_heartbeat(epoch, topics)
        return self.receive_heartbeat()

    def send_heartbeat(self, epoch: int | None = None, topics: Sequence[str] | None = None) -> None:
        writer = BodyWriter(True)
        writer.string(self.group)
        writer.string(self.id)
        writer.int32(self.member_epoch if epoch is None else epoch)
        writer.string(None)
        if topics is None:
            writer.data += b"\0"
        else:
            writer.count(len(topics))
            for topic in topics:
                writer.string(topic)
        writer.end()
        self.socket.send_frame(HEARTBEAT, 1, bytes(writer.data), b"\0")

    def receive_heartbeat(self) -> tuple[int, set[uuid.UUID]]:
        reader = RequestReader(self.socket.receive(), 4)
        assert reader.int32() == 0
        error = int.from_bytes(reader.take(2), "big", signed=True)
        reader.nullable_text()
        assert reader.text() == self.id
        self.member_epoch = reader.int32()
        assert reader.int32() > 0
        assigned: set[uuid.UUID] = set()
        if reader.int8() >= 0:
            for _ in range(reader.count(1000)):
                assigned.add(reader.uuid())
                assert [reader.int32() for _ in range(reader.count(10))] == [0]
                reader.end_struct()
            reader.end_struct()
        reader.end_struct()
        return error, assigned

    # -- the session

    def send_fetch(
        self,
        acks: Mapping[str, Sequence[tuple[int, int, int]]] | None = None,
        *,
        records: int = 100,
        wait_ms: int = 0,
        epoch: int | None = None,
        forget: Sequence[str] = (),
        strict: bool = True,
        renews: bool = False,
        size_bytes: int = MOST,
    ) -> None:
        """Send a ShareFetch with acknowledgements (first, last, type)."""
        writer = self._head(epoch)
        for number in (wait_ms, 1, size_bytes, records, records):
            writer.int32(number)
        writer.int8(1 if strict else 0)
        writer.boolean(renews)
        names = list(self._wanted if self.epoch == 0 or epoch == 0 else ())
        self._topics(writer, acks or {}, names)
        writer.count(len(forget))
        for name in forget:
            writer.uuid(self.names[name])
            writer.count(1)
            writer.int32(0)
            writer.end()
        writer.end()
        self.socket.send_frame(FETCH, 2, bytes(writer.data), b"\0")
        self._advance(epoch)

    def fetch(self, acks: Mapping[str, Sequence[tuple[int, int, int]]] | None = None, **more: Any) -> Answer:
        self.send_fetch(acks, **more)
        return self.receive(FETCH)

    def acknowledge(
        self, acks: Mapping[str, Sequence[tuple[int, int, int]]], epoch: int | None = None, renews: bool = False
    ) -> Answer:
        self.send_acknowledge(acks, epoch, renews)
        return self.receive(ACKNOWLEDGE)

    def send_acknowledge(
        self, acks: Mapping[str, Sequence[tuple[int, int, int]]], epoch: int | None = None, renews: bool = False
    ) -> None:
        writer = self._head(epoch)
        writer.boolean(renews)
        self._topics(writer, acks, [])
        writer.end()
        self.socket.send_frame(ACKNOWLEDGE, 2, bytes(writer.data), b"\0")
        self._advance(epoch)

    def take(self, count: int, **more: Any) -> list[Taken]:
        """Return so many records, of as many responses as it needs."""
        found: list[Taken] = []
        while len(found) < count:
            answer = self.fetch(records=count - len(found), wait_ms=20_000, **more)
            assert answer.error == 0
            assert not answer.errors, answer
            assert answer.records, f"only {len(found)} of {count} records"
            found += answer.records
        return found

    def end(self, name: str, records: Sequence[Taken], kind: int) -> None:
        """Acknowledge these records."""
        answer = self.acknowledge({name: [(record.offset, record.offset, kind) for record in records]})
        assert (answer.error, answer.ack_errors, answer.topics) == (0, {}, {name})

    def _head(self, epoch: int | None) -> BodyWriter:
        writer = BodyWriter(True)
        writer.string(self.group)
        writer.string(self.id)
        writer.int32(self.epoch if epoch is None else epoch)
        return writer

    def _advance(self, epoch: int | None) -> None:
        if epoch is None or epoch == 0:
            self.epoch = 1 if epoch == 0 else self.epoch + 1

    def _topics(
        self, writer: BodyWriter, acks: Mapping[str, Sequence[tuple[int, int, int]]], names: Sequence[str]
    ) -> None:
        every = list(dict.fromkeys((*names, *acks)))
        writer.count(len(every))
        for name in every:
            writer.uuid(self.names[name])
            writer.count(1)
            writer.int32(0)
            ranges = acks.get(name, ())
            writer.count(len(ranges))
            for first, last, kind in ranges:
                writer.int64(first)
                writer.int64(last)
                writer.count(1)
                writer.int8(kind)
                writer.end()
            writer.end()
            writer.end()

    def receive(self, key: int) -> Answer:
        """Return the next response."""
        reader = RequestReader(self.socket.receive(), 4)
        ids = {topic_id: name for name, topic_id in self.names.items()}
        assert reader.int32() >= 0  # the throttle time
        answer = Answer(_int16(reader), {}, {}, set(), [])
        reader.nullable_text()
        assert reader.int32() > 0  # the lock
        for _ in range(reader.count(1000)):
            name = ids[reader.uuid()]
            answer.topics.add(name)
            for _ in range(reader.count(10)):
                assert reader.int32() == 0
                error = _int16(reader)
                reader.nullable_text()
                ack_error = error
                if key == FETCH:
                    ack_error = _int16(reader)
                    reader.nullable_text()
                    if error:
                        answer.errors[name] = error
                if ack_error:
                    answer.ack_errors[name] = ack_error
                reader.int32()
                reader.int32()
                reader.end_struct()
                if key == FETCH:
                    answer.records.extend(_records(reader))
                reader.end_struct()
            reader.end_struct()
        reader.count(10)
        reader.end_struct()
        return answer


def _int16(reader: RequestReader) -> int:
    return struct.unpack(">h", reader.take(2))[0]


def _records(reader: RequestReader) -> list[Taken]:
    """Return the acquired ones of the records of a partition."""
    data = MemoryRecords(reader.take(reader.count(1 << 26)))
    counts: dict[int, int] = {}
    for _ in range(reader.count(10_000)):
        first, last, count = struct.unpack(">qqh", reader.take(18))
        reader.end_struct()
        assert all(offset > max(counts, default=-1) for offset in range(first, last + 1))
        counts |= dict.fromkeys(range(first, last + 1), count)
    found: list[Taken] = []
    while (batch := data.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            if record.offset in counts:
                headers = dict(record.headers)
                found.append(Taken(record.offset, counts[record.offset], record.key, record.value, headers))
    return found
