"""Streams: everybody reads at his own place, nobody is shown what is not safe, and what is old goes in whole files."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import pytest

from amqpd.broker import consuming
from amqpd.broker.delivery import Consumer, Entry
from amqpd.broker.message import Message
from amqpd.broker.queues import joining, stream_slices
from amqpd.broker.queues.arguments import rules_of
from amqpd.broker.queues.consumer_arguments import consumer_arguments
from amqpd.broker.queues.queue import Queue
from amqpd.broker.queues.stream_order import SEGMENT_SIZE_BYTES_MIN, StreamOrder, retention_of
from amqpd.broker.queues.stream_reader import StreamReader
from amqpd.broker.queues.stream_slices import Slices
from amqpd.broker.stream_start import INTERVAL_MS_MAX, interval_ms
from amqpd.errors import PreconditionFailed
from amqpd.protocol.codec import Timestamp
from amqpd.protocol.properties import decode_properties
from amqpd.storage.keep.retention import retain

# Of bodies in a test that wants several files: they are at least as large as SEGMENT_SIZE_BYTES_MIN.
LARGE = 16 * 1024


class Reader(Consumer):
    """A consumer of so much credit, that keeps what it gets."""

    def __init__(self, queue: Queue, credit: int, arguments: Mapping[str, object]) -> None:
        given = consumer_arguments(queue.name, "/", queue.kind, arguments, b"")
        super().__init__(queue, f"c{id(self)}", False, False, given)
        self.credit = credit
        self.queue_read = queue
        self.got: list[bytes] = []
        self.messages: list[Message] = []
        self.entries: list[Entry] = []
        self.told = False

    def can_take(self) -> bool:
        return self.in_flight < self.credit

    def deliver(self, message: Message, entry: Entry | None, redelivered: bool) -> None:
        assert entry is not None
        assert not redelivered
        self.in_flight += 1
        entry.consumer = self
        self.entries.append(entry)
        self.messages.append(message)
        self.got.append(message.body())

    def cancel(self) -> None:
        self.told = True

    def ack(self, count: int = 1, first: int = 0) -> None:
        for _ in range(count):
            entry = self.entries.pop(first)
            self.in_flight -= 1
            if self.parked:
                self.queue_read.activate(self)
            entry.queue.settle(entry)

    def offsets(self) -> list[int]:
        return [(decode_properties(each.properties()).headers or {})["x-stream-offset"] for each in self.messages]

    @property
    def place(self) -> StreamReader:
        assert isinstance(self.reader, StreamReader)
        return self.reader


def read(room, queue: Queue, credit: int = 1000, turn: bool = True, **arguments: object) -> Reader:
    reader = Reader(queue, credit, {name.replace("_", "-"): value for name, value in arguments.items()})
    consuming.check_reader(queue, credit, False, reader.arguments, 0)
    consuming.begin(queue, reader)
    if turn:
        room.turns()
    return reader


def leave(room, reader: Reader) -> None:
    joining.leave(reader.queue_read, reader)
    for entry in reader.entries:
        entry.queue.requeue(entry, True)
    room.turns()


def fill_fast(room, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        room.publish("s", body, turn=False)
    finish(room)
    return bodies


def finish(room) -> None:
    """The turn in which something was published without one."""
    room.turn.want()
    room.turns()


@pytest.fixture
def stream(room) -> Queue:
    return room.queue("s", x_queue_type="stream")


def fill(room, count: int, size: int = 0, first: int = 0) -> list[bytes]:
    bodies = [b"%d" % number + b"." * size for number in range(first, first + count)]
    for body in bodies:
        room.publish("s", body)
    return bodies


class TestReading:
    def test_everybody_gets_everything(self, room, stream) -> None:
        bodies = fill(room, 10)
        readers = [read(room, stream, x_stream_offset="first") for _ in range(3)]
        assert [each.got for each in readers] == [bodies] * 3
        bodies += fill(room, 5, first=10)
        assert [each.got for each in readers] == [bodies] * 3
        assert stream.ready_count == 15
        assert readers[0].offsets() == list(range(15))

    def test_acks_are_credit(self, room, stream) -> None:
        bodies = fill(room, 10)
        reader = read(room, stream, 3, x_stream_offset="first")
        assert reader.got == bodies[:3]
        reader.ack(1, first=1)
        room.turns()
        assert reader.got == bodies[:4]
        reader.ack(3)
        room.turns()
        assert reader.got == bodies[:7]
        assert (stream.unacked_count, stream.acked_count, stream.ready_count) == (3, 4, 10)

    def test_what_is_not_synced_is_not_shown(self, room, stream) -> None:
        reader = read(room, stream)
        room.publish("s", b"1", turn=False)
        stream.pump()
        assert reader.got == []
        finish(room)
        assert reader.got == [b"1"]

    def test_one_that_does_not_take_holds_nobody(self, room, stream) -> None:
        slow = read(room, stream, 1, x_stream_offset="first")
        bodies = fill_fast(room, 3000)
        fast = read(room, stream, 5000, x_stream_offset="first")
        assert slow.got == bodies[:1]
        assert fast.got == bodies

    def test_a_transient_message_is_kept_too(self, room, stream) -> None:
        room.publish("s", b"1", persistent=False)
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert queue.ready_count == 1
        assert read(room, queue, x_stream_offset="first").got == [b"1"]

    def test_an_expiration_means_nothing(self, room, stream) -> None:
        room.publish("s", b"1", expiration="10")
        room.advance(50)
        assert read(room, stream, x_stream_offset="first").got == [b"1"]

    def test_readers_near_each_other_share(self, room, stream) -> None:
        fill(room, 50)
        readers = [read(room, stream, x_stream_offset=offset) for offset in (0, 5, 20)]
        assert [each.offsets() for each in readers] == [list(range(first, 50)) for first in (0, 5, 20)]
        assert len(stream.order._shared.slices._idle) == 1  # the others found what the first had read

    def test_many_readers_of_many_slices(self, room, stream) -> None:
        bodies = fill(room, 300, 2000)
        readers = [read(room, stream, 7, x_stream_offset=first) for first in range(0, 300, 11)]
        for _ in range(60):
            for each in readers:
                each.ack(len(each.entries))
            room.turns()
        for first, each in zip(range(0, 300, 11), readers, strict=True):
            assert each.got == bodies[first:]
            assert each.offsets() == list(range(first, 300))
        assert len(stream.order._shared.slices._idle) <= stream_slices.CURSORS_MAX

    def test_the_memory_of_a_stream_is_bounded(self, room, stream) -> None:
        fill(room, 100, 20_000)
        stream.order.bytes_max = 64 * 1024
        reader = read(room, stream, x_stream_offset="first")
        slices = stream.order._shared.slices
        assert len(reader.got) == 100
        assert slices._recent == []  # at the end nothing is held where memory is short

    def test_deleted_with_its_consumers(self, room, stream) -> None:
        fill(room, 3)
        reader = read(room, stream, 1, x_stream_offset="first")
        assert room.delete(stream) == 3
        assert reader.told
        reader.ack()
        room.turns()


class TestTheHeader:
    @pytest.mark.parametrize(
        "properties",
        [
            {},
            {"headers": {}},
            {"headers": {"a": 1, "z": ["x", {"y": None}]}},
            {"content_type": "text/plain", "content_encoding": "utf-8", "message_id": "7", "app_id": "me"},
            {"headers": {"x-stream-offset": "mine", "b": 2}, "timestamp": 5},
        ],
    )
    @pytest.mark.parametrize("size", [0, 1, 100, 200_000])
    def test_it_comes_behind_the_publishers(self, room, stream, properties, size) -> None:
        for _ in range(3):
            room.publish("s", b"x" * size, **properties)
        reader = read(room, stream, x_stream_offset="first")
        assert reader.got == [b"x" * size] * 3
        for offset, message in enumerate(reader.messages):
            found = decode_properties(message.properties())
            wanted = dict(properties.get("headers", {})) | {"x-stream-offset": offset}
            assert found.headers == wanted
            for name, value in properties.items():
                assert name == "headers" or getattr(found, name) == value
            assert found.delivery_mode == 2
            assert message.envelope.routing_key == "s"

    def test_sizes_and_properties_that_change(self, room, stream) -> None:
        for number in range(60):
            room.publish("s", b"x" * (number % 3), message_id=str(number % 4), headers={"n": number})
        reader = read(room, stream, x_stream_offset="first")
        assert reader.offsets() == list(range(60))
        assert [decode_properties(each.properties()).headers["n"] for each in reader.messages] == list(range(60))
        assert [len(body) for body in reader.got] == [number % 3 for number in range(60)]


class TestOffsets:
    @pytest.mark.parametrize(
        ("offset", "first"),
        [("first", 0), ("last", 9), ("next", 10), (None, 10), (4, 4), (0, 0), (-3, 0), (10, 10), (99, 10)],
    )
    def test_where_it_begins(self, room, stream, offset, first) -> None:
        bodies = fill(room, 10)
        reader = read(room, stream, **({} if offset is None else {"x_stream_offset": offset}))
        assert reader.got == bodies[first:]
        bodies += fill(room, 2, first=10)
        assert reader.got == bodies[first:]

    @pytest.mark.parametrize("offset", ["first", "last", "next", None, 0, 7, Timestamp(1), Timestamp(2**40), "1h"])
    def test_an_empty_one(self, room, stream, offset) -> None:
        reader = read(room, stream, **({} if offset is None else {"x_stream_offset": offset}))
        assert reader.got == []
        assert reader.offsets() == []
        fill(room, 1)
        assert reader.got == [b"0"]  # rabbit: a time to come is what comes next

    def test_last_is_a_batch(self, room, stream) -> None:
        fill(room, 3)
        for number in range(5):
            room.publish("s", b"batch %d" % number, turn=False)
        finish(room)
        assert read(room, stream, x_stream_offset="last").got == [b"batch %d" % number for number in range(5)]

    def test_last_passes_over_the_mark_of_a_transaction(self, room, stream) -> None:
        fill(room, 2)
        stream.begin_transaction()
        for number in range(70):  # two batches, so that a marker ends it
            room.publish("s", b"t%d" % number, turn=False)
        stream.end_transaction()
        finish(room)
        assert read(room, stream, x_stream_offset="last").got == [b"t%d" % number for number in range(64, 70)]

    def test_next_counts_from_the_consumer_not_from_the_sync(self, room, stream) -> None:
        room.publish("s", b"before", turn=False)
        reader = read(room, stream, turn=False)
        room.publish("s", b"behind", turn=False)
        finish(room)
        assert reader.got == [b"behind"]

    def test_times(self, room, stream) -> None:
        times = []
        for number in range(10):
            times.append(room.clock.time_ms())
            room.publish("s", b"%d" % number)
            room.advance(1000)
        now = room.clock.time_ms()
        for number in range(10):
            seconds = -(-times[number] // 1000)  # the next whole one is behind this message, and before the next
            late = [index for index in range(10) if times[index] >= seconds * 1000]
            got = read(room, stream, x_stream_offset=Timestamp(seconds)).got
            assert got == [b"%d" % index for index in late]
            ago = read(room, stream, x_stream_offset=f"{number + 1}s").got
            assert ago == [b"%d" % index for index in range(10) if times[index] >= now - (number + 1) * 1000]
        assert read(room, stream, x_stream_offset=Timestamp(0)).got == [b"%d" % number for number in range(10)]

    def test_lengths_of_time(self) -> None:
        assert [interval_ms(text) for text in ("1s", "2m", "3h", "4D", "1M", "1Y")] == [
            1000,
            120_000,
            10_800_000,
            345_600_000,
            2_592_000_000,
            31_536_000_000,
        ]
        assert interval_ms("999999999999999999Y") == INTERVAL_MS_MAX
        for text in ("", "5", "s", "0s", "-1s", "1.5s", "1 s", "1S", "1d", "1s ", "1s\n", "٣s", "9" * 40 + "s"):
            assert interval_ms(text) == -1


class TestNames:
    def stored(self, room, stream: Queue, name: str = "me") -> int | None:
        return room.catalogue.stored_offsets.get(stream.id, name)

    def test_goes_on_behind_its_acks(self, room, stream) -> None:
        bodies = fill(room, 10)
        reader = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        reader.ack(4)
        room.turns()
        assert self.stored(room, stream) == 4
        leave(room, reader)
        again = read(room, stream, x_stream_consumer_name="me")
        assert again.got == bodies[4:]
        # What is stored counts, x-stream-offset is for a name that has nothing stored.
        leave(room, again)
        assert read(room, stream, x_stream_offset="first", x_stream_consumer_name="me").got == bodies[4:]
        assert read(room, stream, x_stream_consumer_name="other").got == []

    def test_acks_count_in_order(self, room, stream) -> None:
        fill(room, 10)
        reader = read(room, stream, x_stream_offset=2, x_stream_consumer_name="me")
        reader.ack(3, first=1)
        room.turns()
        assert self.stored(room, stream) is None
        reader.ack()
        room.turns()
        assert self.stored(room, stream) == 6
        reader.ack(4)
        room.turns()
        assert self.stored(room, stream) == 10

    def test_what_is_acked_after_the_consumer_counts(self, room, stream) -> None:
        fill(room, 5)
        reader = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        stream.order.leave(stream, reader)
        stream.remove_consumer(reader)
        reader.ack(3)
        room.turns()
        assert self.stored(room, stream) == 3

    def test_of_two_the_later_one_stores(self, room, stream) -> None:
        fill(room, 6)
        old = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        new = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        new.ack(2)
        old.ack(5)
        room.turns()
        assert self.stored(room, stream) == 2
        leave(room, new)
        assert self.stored(room, stream) == 2

    def test_an_offset_that_is_not_there_any_more(self, room, stream) -> None:
        fill(room, 2)
        room.catalogue.stored_offsets.set(stream.id, "me", 700, lambda error: None)
        reader = read(room, stream, x_stream_consumer_name="me")
        fill(room, 1, first=2)
        assert reader.got == [b"2"]


class TestOneAtATime:
    @pytest.fixture
    def line(self, room) -> Queue:
        return room.queue("s", x_queue_type="stream", x_single_active_consumer=True)

    def test_the_next_goes_on_behind_what_is_acked(self, room, line) -> None:
        bodies = fill(room, 10)
        first = read(room, line, 5, x_stream_offset="first")
        second = read(room, line, x_stream_offset="next")
        assert first.got == bodies[:5]
        assert second.got == []
        first.ack(2)
        room.turns()
        assert first.got == bodies[:7]
        leave(room, first)
        assert second.got == bodies[2:]
        third = read(room, line, x_stream_offset="first")
        bodies += fill(room, 3, first=10)
        assert second.got == bodies[2:]
        assert third.got == []

    def test_the_next_of_an_empty_stream(self, room, line) -> None:
        first = read(room, line, x_stream_offset="first")
        second = read(room, line, x_stream_offset="first")
        leave(room, first)
        assert second.got == []
        assert fill(room, 3) == second.got

    def test_a_line_that_was_empty_begins_anew(self, room, line) -> None:
        bodies = fill(room, 4)
        first = read(room, line, x_stream_offset=2)
        first.ack(2)
        leave(room, first)
        assert read(room, line, x_stream_offset="first").got == bodies

    def test_with_a_name(self, room, line) -> None:
        bodies = fill(room, 6)
        first = read(room, line, 2, x_stream_offset="first", x_stream_consumer_name="me")
        second = read(room, line, x_stream_offset="first", x_stream_consumer_name="me")
        first.ack(2)
        room.turns()
        first.ack(1)
        room.turns()
        leave(room, first)
        assert second.got == bodies[3:]
        second.ack(3)
        room.turns()
        assert room.catalogue.stored_offsets.get(line.id, "me") == 6


class TestRetention:
    def start(self, queue: Queue) -> int:
        return queue.store.log.start_offset()  # type: ignore[union-attr]

    def test_the_oldest_files_go(self, room) -> None:
        queue = room.queue(
            "s",
            x_queue_type="stream",
            x_max_length_bytes=4 * SEGMENT_SIZE_BYTES_MIN,
            x_stream_max_segment_size_bytes=SEGMENT_SIZE_BYTES_MIN,
        )
        bodies = fill(room, 60, LARGE)
        slow = read(room, queue, 2, x_stream_offset="first")
        assert queue.ready_count == 60
        room.storage.maintain()
        room.turns()
        start = self.start(queue)
        assert 30 < start < 50
        assert queue.ready_count == 60 - start == queue.store.record_count
        assert queue.ready_bytes == sum(len(body) for body in bodies[start:])
        # Who stands in what is gone goes on at the start, behind what it had read before that went.
        slow.credit = 1000
        slow.ack(2)
        room.turns()
        read_before = slow.offsets().index(start)
        assert read_before < 20
        assert slow.offsets() == [*range(read_before), *range(start, 60)]
        assert read(room, queue, x_stream_offset="first").got == bodies[start:]
        assert read(room, queue, x_stream_offset=1).got == bodies[start:]

    def test_what_is_too_old_goes(self, room) -> None:
        queue = room.queue("s", x_queue_type="stream", x_max_age="10s")
        fill(room, 3)
        room.advance(9000)
        room.storage.maintain()
        room.turns()
        fill(room, 1, first=3)
        assert queue.ready_count == 4
        room.advance(2000)
        for _ in range(3):
            room.storage.maintain()
            room.turns()
        assert queue.ready_count == 4  # they lie in one file with one that is younger
        room.advance(9000)
        for _ in range(3):
            room.storage.maintain()
            room.turns()
        assert queue.ready_count == 0
        reader = read(room, queue, x_stream_offset="first")
        fill(room, 1, first=4)
        assert reader.got == [b"4"]
        assert reader.offsets() == [4]

    def test_credit_that_comes_when_nothing_is_left(self, room) -> None:
        queue = room.queue("s", x_queue_type="stream", x_max_age="10s")
        fill(room, 5)
        reader = read(room, queue, 2, x_stream_offset="first")
        room.advance(11_000)
        for _ in range(3):
            room.storage.maintain()
            room.turns()
        assert queue.ready_count == 0
        reader.credit = 10
        reader.ack(2)
        room.turns()
        fill(room, 2, first=5)
        assert reader.got[-2:] == [b"5", b"6"]

    def test_rules_change_while_it_runs(self, room, stream) -> None:
        fill(room, 40, LARGE)
        size = SEGMENT_SIZE_BYTES_MIN
        small = {"stream-max-segment-size-bytes": size, "max-length-bytes": 2 * size}
        stream.obey(rules_of(stream.arguments, small))
        fill(room, 20, LARGE, first=40)
        room.storage.maintain()
        room.turns()
        assert stream.ready_count < 20
        assert self.start(stream) == 60 - stream.ready_count
        stream.obey(rules_of(stream.arguments))
        before = stream.ready_count
        fill(room, 20, LARGE, first=60)
        room.storage.maintain()
        room.turns()
        assert stream.ready_count == before + 20

    def test_through_a_restart(self, room) -> None:
        queue = room.queue(
            "s",
            x_queue_type="stream",
            x_max_length_bytes=2 * SEGMENT_SIZE_BYTES_MIN,
            x_stream_max_segment_size_bytes=0,
        )
        bodies = fill(room, 30, LARGE)
        room.storage.maintain()
        room.turns()
        start = self.start(queue)
        assert start > 10
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert queue.ready_count == 30 - start
        assert read(room, queue, x_stream_offset="first").got == bodies[start:]
        bodies += fill(room, 30, LARGE, first=30)
        room.storage.maintain()
        room.turns()
        assert self.start(queue) > 30

    def test_what_they_become(self) -> None:
        arguments = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 10}
        kept = retention_of(rules_of(arguments, {"max-age": "1D", "max-length-bytes": 20}))
        assert (kept.max_age_ms, kept.max_bytes, kept.segment_size_bytes) == (86_400_000, 10, -1)
        kept = retention_of(rules_of(arguments, {"max-age": "1Y", "max-length-bytes": 5}))
        assert (kept.max_age_ms, kept.max_bytes) == (7 * 86_400_000, 5)
        kept = retention_of(rules_of({"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 3_000_000_000}))
        assert (kept.max_age_ms, kept.max_bytes, kept.segment_size_bytes) == (-1, -1, 1 << 30)

    def test_nothing_is_dropped_by_an_append(self, room) -> None:
        queue = room.queue("s", x_queue_type="stream", x_max_length_bytes=1)
        fill(room, 5)
        assert queue.ready_count == 5
        assert retain(queue.store, room.clock.time_ms()) == 0  # the active file stays


class TestRestarts:
    def test_readers_find_what_was_confirmed(self, room, stream) -> None:
        bodies = fill(room, 100)
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert queue.ready_count == 100
        assert read(room, queue, x_stream_offset="first").got == bodies
        assert read(room, queue, x_stream_offset=60).got == bodies[60:]
        reader = read(room, queue)
        fill(room, 1, first=100)
        assert reader.offsets() == [100]

    def test_nothing_counts_as_delivered(self, room, stream) -> None:
        fill(room, 3)
        reader = read(room, stream, x_stream_offset="first")
        reader.ack(3)
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert len(read(room, queue, x_stream_offset="first").got) == 3


class TestRefusals:
    @pytest.mark.parametrize("value", ["abc", "", "5x", True, None, [1], {"a": 1}, 1.5, b"\xff"])
    def test_what_is_no_offset(self, room, stream, value) -> None:
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-offset' for queue 's' in vhost '/': "):
            read(room, stream, x_stream_offset=value)
        assert stream.consumers == []

    @pytest.mark.parametrize("value", ["", 5, None, "x" * 256])
    def test_what_is_no_name(self, room, stream, value) -> None:
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-consumer-name'"):
            read(room, stream, x_stream_consumer_name=value)


class TestTheEnd:
    def test_nothing_is_left_to_a_collector(self, room) -> None:
        """What knows each other lets go of each other: a circle would keep its messages until a collector comes."""
        room.queue("s", x_queue_type="stream")
        fill(room, 3)
        readers = [
            read(room, room.vhost.queues["s"], x_stream_offset="first", x_stream_consumer_name="me") for _ in range(3)
        ]
        for reader in readers:
            reader.ack()
        room.turns()
        leave(room, readers[1])
        gc.collect()
        gc.disable()
        try:
            room.delete(room.vhost.queues["s"])
            for reader in readers:
                reader.entries.clear()  # as a channel's end does
            del reader, readers
            room.turns()
            room.storage.commits.flush()
            room.turns()
            ours = (StreamReader, StreamOrder, Slices)
            left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, ours)]
        finally:
            gc.enable()
        assert left == []
