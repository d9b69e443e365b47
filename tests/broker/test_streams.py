"""Streams: delivery to several consumers, the offset header, x-stream-offset, names, single active consumer."""

from __future__ import annotations

import pytest

from amqpd.broker.queue import stream as stream_slices
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import ACKED_MAX, NAMES_MAX
from amqpd.broker.stream_message import INTERVAL_MS_MAX, interval_ms
from amqpd.protocol.field_table import Timestamp
from amqpd.protocol.properties import decode_properties

from .stream_room import fill, fill_fast, finish, leave, read


@pytest.fixture
def stream(room) -> Queue:
    return room.queue("s", x_queue_type="stream")


class TestReading:
    def test_every_consumer_gets_every_message(self, room, stream) -> None:
        bodies = fill(room, 10)
        readers = [read(room, stream, x_stream_offset="first") for _ in range(3)]
        assert [each.got for each in readers] == [bodies] * 3
        bodies += fill(room, 5, first=10)
        assert [each.got for each in readers] == [bodies] * 3
        assert stream.ready_count == 15
        assert readers[0].offsets() == list(range(15))

    def test_acks_give_credit(self, room, stream) -> None:
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

    def test_unsynced_message_is_not_delivered(self, room, stream) -> None:
        reader = read(room, stream)
        room.publish("s", b"1", turn=False)
        stream.dispatch()
        assert reader.got == []
        finish(room)
        assert reader.got == [b"1"]

    def test_slow_consumer_does_not_delay_others(self, room, stream) -> None:
        slow = read(room, stream, 1, x_stream_offset="first")
        bodies = fill_fast(room, 3000)
        fast = read(room, stream, 5000, x_stream_offset="first")
        assert slow.got == bodies[:1]
        assert fast.got == bodies

    def test_transient_message_survives_restart(self, room, stream) -> None:
        room.publish("s", b"1", persistent=False)
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert queue.ready_count == 1
        assert read(room, queue, x_stream_offset="first").got == [b"1"]

    @pytest.mark.parametrize("names", [("s", "z"), ("s", "a")])
    def test_transient_message_stays_transient_in_a_bound_queue(self, room, stream, names) -> None:
        """The order of the two destinations does not matter."""
        for name in names[1:]:
            room.queue(name)
        room.exchange("x", "fanout")
        for name in sorted(("s", names[1])):
            room.bind("x", room.vhost.queues[name])
        room.publish("k", b"1", exchange="x", persistent=False)
        room.restart()
        for name, count in zip(names, (1, 0), strict=True):
            room.vhost.queues[name].prepare()
            assert room.vhost.queues[name].ready_count == count

    def test_expiration_is_ignored(self, room, stream) -> None:
        room.publish("s", b"1", expiration="10")
        room.advance(50)
        assert read(room, stream, x_stream_offset="first").got == [b"1"]

    def test_consumers_at_near_offsets_share_reads(self, room, stream) -> None:
        fill(room, 50)
        readers = [read(room, stream, x_stream_offset=offset) for offset in (0, 5, 20)]
        assert [each.offsets() for each in readers] == [list(range(first, 50)) for first in (0, 5, 20)]
        assert (
            len(stream.order._shared.slices._idle) == 1
        )  # the other consumers used the messages that the first had read

    def test_many_consumers_at_different_offsets(self, room, stream) -> None:
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

    def test_memory_of_a_stream_is_bounded(self, room, stream) -> None:
        fill(room, 100, 20_000)
        stream.order.memory.bytes_max = 64 * 1024
        reader = read(room, stream, x_stream_offset="first")
        slices = stream.order._shared.slices
        assert len(reader.got) == 100
        assert slices._recent == []  # after the last read nothing is cached when memory is short

    def test_delete_cancels_the_consumers(self, room, stream) -> None:
        fill(room, 3)
        reader = read(room, stream, 1, x_stream_offset="first")
        assert room.delete(stream) == 3
        assert reader.cancelled_by_broker
        reader.ack()
        room.turns()


class TestOffsetHeader:
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
    def test_offset_header_is_added_to_the_publishers_headers(self, room, stream, properties, size) -> None:
        for _ in range(3):
            room.publish("s", b"x" * size, **properties)
        reader = read(room, stream, x_stream_offset="first")
        assert reader.got == [b"x" * size] * 3
        for offset, message in enumerate(reader.messages):
            decoded = decode_properties(message.properties())
            expected = dict(properties.get("headers", {})) | {"x-stream-offset": offset}
            assert decoded.headers == expected
            for name, value in properties.items():
                assert name == "headers" or getattr(decoded, name) == value
            assert decoded.delivery_mode == 2
            assert message.envelope.routing_key == "s"

    def test_varying_sizes_and_properties(self, room, stream) -> None:
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
    def test_first_message_for_each_offset_argument(self, room, stream, offset, first) -> None:
        bodies = fill(room, 10)
        reader = read(room, stream, **({} if offset is None else {"x_stream_offset": offset}))
        assert reader.got == bodies[first:]
        bodies += fill(room, 2, first=10)
        assert reader.got == bodies[first:]

    @pytest.mark.parametrize("offset", ["first", "last", "next", None, 0, 7, Timestamp(1), Timestamp(2**40), "1h"])
    def test_empty_stream_with_each_offset_argument(self, room, stream, offset) -> None:
        reader = read(room, stream, **({} if offset is None else {"x_stream_offset": offset}))
        assert reader.got == []
        assert reader.offsets() == []
        fill(room, 1)
        assert reader.got == [b"0"]  # RabbitMQ: a time in the future means the next message

    def test_last_is_the_last_batch(self, room, stream) -> None:
        fill(room, 3)
        for number in range(5):
            room.publish("s", b"batch %d" % number, turn=False)
        finish(room)
        assert read(room, stream, x_stream_offset="last").got == [b"batch %d" % number for number in range(5)]

    def test_last_skips_the_marker_of_a_transaction(self, room, stream) -> None:
        fill(room, 2)
        stream.begin_transaction()
        for number in range(70):  # two batches, so a marker ends the transaction
            room.publish("s", b"t%d" % number, turn=False)
        stream.end_transaction()
        finish(room)
        assert read(room, stream, x_stream_offset="last").got == [b"t%d" % number for number in range(64, 70)]

    def test_next_is_the_first_message_published_after_consume(self, room, stream) -> None:
        room.publish("s", b"before", turn=False)
        reader = read(room, stream, turn=False)
        room.publish("s", b"behind", turn=False)
        finish(room)
        assert reader.got == [b"behind"]

    def test_timestamp_and_interval_offsets(self, room, stream) -> None:
        times = []
        for number in range(10):
            times.append(room.clock.time_ms())
            room.publish("s", b"%d" % number)
            room.advance(1000)
        now = room.clock.time_ms()
        for number in range(10):
            seconds = -(-times[number] // 1000)  # the next whole second is after this message and before the next one
            late = [index for index in range(10) if times[index] >= seconds * 1000]
            got = read(room, stream, x_stream_offset=Timestamp(seconds)).got
            assert got == [b"%d" % index for index in late]
            ago = read(room, stream, x_stream_offset=f"{number + 1}s").got
            assert ago == [b"%d" % index for index in range(10) if times[index] >= now - (number + 1) * 1000]
        assert read(room, stream, x_stream_offset=Timestamp(0)).got == [b"%d" % number for number in range(10)]

    def test_interval_strings(self) -> None:
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


class TestNamedConsumers:
    def stored(self, room, stream: Queue, name: str = "me") -> int | None:
        return room.catalogue.stored_offsets.get(stream.id, name)

    def test_named_consumer_continues_after_its_acks(self, room, stream) -> None:
        bodies = fill(room, 10)
        reader = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        reader.ack(4)
        room.turns()
        assert self.stored(room, stream) == 4
        leave(room, reader)
        second = read(room, stream, x_stream_consumer_name="me")
        assert second.got == bodies[4:]
        # The stored offset wins. x-stream-offset applies only to a name without a stored offset.
        leave(room, second)
        assert read(room, stream, x_stream_offset="first", x_stream_consumer_name="me").got == bodies[4:]
        assert read(room, stream, x_stream_consumer_name="other").got == []

    def test_offset_that_stays_unacked_does_not_keep_the_later_acks(self, room, stream) -> None:
        """At 1,000 messages a second they took 8 GB a day."""
        count = 3 * ACKED_MAX
        fill_fast(room, count)
        reader = read(room, stream, ACKED_MAX // 2, x_stream_offset="first", x_stream_consumer_name="me")
        for _ in range(count // 100):
            reader.ack(min(100, len(reader.entries) - 2), first=1)
            room.turns()
            assert len(reader.place._acked) <= ACKED_MAX
        assert len(reader.got) == count
        reader.ack(len(reader.entries) - 2, first=1)
        assert len(reader.place._unacked) <= 2 * ACKED_MAX
        assert reader.place.committed() == 0
        reader.ack()
        assert reader.place.committed() == count - 1
        reader.ack()
        assert reader.place.committed() == count

    def test_offset_is_stored_only_for_acks_in_order(self, room, stream) -> None:
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

    def test_acks_after_cancel_are_stored(self, room, stream) -> None:
        fill(room, 5)
        reader = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        stream.remove_consumer(reader)
        reader.ack(3)
        room.turns()
        assert self.stored(room, stream) == 3

    def test_later_of_two_consumers_with_a_name_stores_the_offset(self, room, stream) -> None:
        fill(room, 6)
        old = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        new = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        new.ack(2)
        old.ack(3)
        room.turns()
        assert self.stored(room, stream) == 2
        new.ack(3)
        leave(room, new)
        assert self.stored(room, stream) == 5
        old.ack(1)  # its consumer was replaced, so this ack must not set the offset back
        room.turns()
        assert self.stored(room, stream) == 5

    def test_earlier_consumer_stores_its_offset_when_the_later_one_has_ended(self, room, stream) -> None:
        """A new version of a program fails at once, and the old one continues for days."""
        fill(room, 6)
        old = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        leave(room, read(room, stream, x_stream_offset="first", x_stream_consumer_name="me"))
        old.ack(5)
        room.turns()
        assert self.stored(room, stream) == 5

    def test_name_that_was_forgotten_has_one_reader(self, room, stream) -> None:
        fill(room, 6)
        old = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        for number in range(NAMES_MAX):
            leave(room, read(room, stream, x_stream_consumer_name=f"name {number}"))
        new = read(room, stream, x_stream_offset="first", x_stream_consumer_name="me")
        new.ack(4)
        room.turns()
        old.ack(2)
        room.turns()
        assert self.stored(room, stream) == 4

    def test_only_the_last_names_are_remembered(self, room, stream) -> None:
        for number in range(NAMES_MAX + 9):
            leave(room, read(room, stream, x_stream_consumer_name=f"name {number}"))
        assert len(stream.order._shared.names) == NAMES_MAX

    def test_stored_offset_beyond_the_end_means_next(self, room, stream) -> None:
        fill(room, 2)
        room.catalogue.stored_offsets.set(stream.id, "me", 700, lambda error: None)
        reader = read(room, stream, x_stream_consumer_name="me")
        fill(room, 1, first=2)
        assert reader.got == [b"2"]


class TestSingleActiveConsumer:
    @pytest.fixture
    def single(self, room) -> Queue:
        return room.queue("s", x_queue_type="stream", x_single_active_consumer=True)

    def test_next_consumer_continues_after_the_acks(self, room, single) -> None:
        bodies = fill(room, 10)
        first = read(room, single, 5, x_stream_offset="first")
        second = read(room, single, x_stream_offset="next")
        assert first.got == bodies[:5]
        assert second.got == []
        first.ack(2)
        room.turns()
        assert first.got == bodies[:7]
        leave(room, first)
        assert second.got == bodies[2:]
        third = read(room, single, x_stream_offset="first")
        bodies += fill(room, 3, first=10)
        assert second.got == bodies[2:]
        assert third.got == []

    def test_next_consumer_of_an_empty_stream(self, room, single) -> None:
        first = read(room, single, x_stream_offset="first")
        second = read(room, single, x_stream_offset="first")
        leave(room, first)
        assert second.got == []
        assert fill(room, 3) == second.got

    def test_consumer_after_all_have_left_starts_at_its_offset(self, room, single) -> None:
        bodies = fill(room, 4)
        first = read(room, single, x_stream_offset=2)
        first.ack(2)
        leave(room, first)
        assert read(room, single, x_stream_offset="first").got == bodies

    def test_named_single_active_consumers(self, room, single) -> None:
        bodies = fill(room, 6)
        first = read(room, single, 2, x_stream_offset="first", x_stream_consumer_name="me")
        second = read(room, single, x_stream_offset="first", x_stream_consumer_name="me")
        first.ack(2)
        room.turns()
        first.ack(1)
        room.turns()
        assert room.catalogue.stored_offsets.get(single.id, "me") == 3, "a waiting consumer has the name already"
        leave(room, first)
        assert second.got == bodies[3:]
        second.ack(3)
        room.turns()
        assert room.catalogue.stored_offsets.get(single.id, "me") == 6
