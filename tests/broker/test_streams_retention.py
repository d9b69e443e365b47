"""Stream retention, restarts, invalid arguments, and memory after the stream is deleted."""

from __future__ import annotations

import gc

import pytest

from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import SEGMENT_SIZE_BYTES_MIN, LogChunks, StreamOrder, StreamReader, retention_of
from amqpd.errors import PreconditionFailed
from amqpd.storage.retention import retain

from .stream_room import LARGE, fill, leave, read


@pytest.fixture
def stream(room) -> Queue:
    return room.queue("s", x_queue_type="stream")


class TestRetention:
    def start(self, queue: Queue) -> int:
        return queue.store.log.start_offset()  # type: ignore[union-attr]

    def test_oldest_segments_are_removed(self, room) -> None:
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
        # A consumer in the removed part continues at the start, after the messages it had already read ahead.
        slow.credit = 1000
        slow.ack(2)
        room.turns()
        read_before = slow.offsets().index(start)
        assert read_before < 20
        assert slow.offsets() == [*range(read_before), *range(start, 60)]
        assert read(room, queue, x_stream_offset="first").got == bodies[start:]
        assert read(room, queue, x_stream_offset=1).got == bodies[start:]

    def test_messages_over_max_age_are_removed(self, room) -> None:
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
        assert queue.ready_count == 4  # they are in one segment with a younger message
        room.advance(9000)
        for _ in range(3):
            room.storage.maintain()
            room.turns()
        assert queue.ready_count == 0
        reader = read(room, queue, x_stream_offset="first")
        fill(room, 1, first=4)
        assert reader.got == [b"4"]
        assert reader.offsets() == [4]

    def test_ack_after_all_messages_were_removed(self, room) -> None:
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

    def test_retention_policy_is_set_and_cleared(self, room, stream) -> None:
        fill(room, 40, LARGE)
        size = SEGMENT_SIZE_BYTES_MIN
        small = {"stream-max-segment-size-bytes": size, "max-length-bytes": 2 * size}
        stream.apply_config(rules_of(stream.arguments, small))
        fill(room, 20, LARGE, first=40)
        room.storage.maintain()
        room.turns()
        assert stream.ready_count < 20
        assert self.start(stream) == 60 - stream.ready_count
        stream.apply_config(rules_of(stream.arguments))
        before = stream.ready_count
        fill(room, 20, LARGE, first=60)
        room.storage.maintain()
        room.turns()
        assert stream.ready_count == before + 20

    def test_retention_after_restart(self, room) -> None:
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

    def test_retention_of_arguments_and_policy(self) -> None:
        arguments = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 10}
        retention = retention_of(rules_of(arguments, {"max-age": "1D", "max-length-bytes": 20}))
        assert (retention.max_age_ms, retention.max_bytes, retention.segment_size_bytes) == (86_400_000, 10, -1)
        retention = retention_of(rules_of(arguments, {"max-age": "1Y", "max-length-bytes": 5}))
        assert (retention.max_age_ms, retention.max_bytes) == (7 * 86_400_000, 5)
        retention = retention_of(rules_of({"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 3_000_000_000}))
        assert (retention.max_age_ms, retention.max_bytes, retention.segment_size_bytes) == (-1, -1, 1 << 30)

    def test_append_over_max_length_bytes_drops_nothing(self, room) -> None:
        queue = room.queue("s", x_queue_type="stream", x_max_length_bytes=1)
        fill(room, 5)
        assert queue.ready_count == 5
        assert retain(queue.store, room.clock.time_ms()) == 0  # the active segment stays


class TestRestarts:
    def test_confirmed_messages_survive_restart(self, room, stream) -> None:
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

    def test_acked_messages_are_delivered_again_after_restart(self, room, stream) -> None:
        fill(room, 3)
        reader = read(room, stream, x_stream_offset="first")
        reader.ack(3)
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert len(read(room, queue, x_stream_offset="first").got) == 3


class TestErrors:
    @pytest.mark.parametrize("value", ["abc", "", "5x", True, None, [1], {"a": 1}, 1.5, b"\xff"])
    def test_invalid_offset_is_refused(self, room, stream, value) -> None:
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-offset' for queue 's' in vhost '/': "):
            read(room, stream, x_stream_offset=value)
        assert stream.consumers == []

    @pytest.mark.parametrize("value", ["", 5, None, "x" * 256])
    def test_invalid_consumer_name_is_refused(self, room, stream, value) -> None:
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-consumer-name'"):
            read(room, stream, x_stream_consumer_name=value)


class TestGarbage:
    def test_deleted_stream_leaves_no_reference_cycle(self, room) -> None:
        """A reference cycle would keep the messages in memory until the garbage collector runs."""
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
                reader.entries.clear()  # as the end of a channel does
            del reader, readers
            room.turns()
            room.storage.commits.flush()
            room.turns()
            stream_classes = (StreamReader, StreamOrder, LogChunks)
            left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, stream_classes)]
        finally:
            gc.enable()
        assert left == []
