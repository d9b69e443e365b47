"""Filters on streams: consumers get matching messages in order, and a search does not delay other consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.broker.flow.loop_turn import LOOK_COUNT, SLICE_MS
from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.consumer_arguments import consumer_arguments
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.stream import SHARE_COUNT, StreamOrder
from amqpd.broker.queue.stream_filter import RecordView, StreamFilter
from amqpd.errors import PreconditionFailed
from amqpd.protocol.properties import Properties, encode_properties
from amqpd.routing.selector import parse_selector
from amqpd.storage.log.record import SharedFields

from .stream_room import Reader
from .stream_room import read as read_from


def read(room, queue: Queue, credit: int = 100_000, turn: bool = True, **arguments: object) -> Reader:
    """Read from the first message."""
    return read_from(room, queue, credit, turn, **({"x_stream_offset": "first"} | arguments))


@pytest.fixture
def stream(room) -> Queue:
    return room.queue("s", x_queue_type="stream")


def publish(room, *headers: Mapping[str, object], turn: bool = True, **properties: object) -> list[bytes]:
    """Publish one message for each headers table. The body is a running number. Return the bodies."""
    bodies = []
    for table in headers:
        publish.number += 1  # type: ignore[attr-defined]
        bodies.append(b"%d" % publish.number)  # type: ignore[attr-defined]
        room.publish("s", bodies[-1], turn=False, headers=table, **properties)
    if turn:
        room.turn.schedule()
        room.turns()
    return bodies


publish.number = 0  # type: ignore[attr-defined]

COLOURS = [{"colour": colour, "weight": weight} for weight in range(4) for colour in ("red", "blue")]


class TestSelectors:
    def test_consumer_gets_matching_messages(self, room, stream) -> None:
        bodies = publish(room, *COLOURS)
        readers = [
            read(room, stream, x_filter=text)
            for text in ("colour = 'red'", "weight > 1 AND colour LIKE 'b%'", "p.routing-key = 's'", "missing = 1", "")
        ]
        bodies += publish(room, *COLOURS)
        assert readers[0].got == bodies[0::2]
        assert readers[1].got == [bodies[5], bodies[7], bodies[13], bodies[15]]
        assert readers[2].got == bodies and readers[4].got == bodies
        assert readers[3].got == []
        assert readers[4].place.filter is None
        assert stream.ready_count == 16 and stream.unacked_count == sum(len(each.got) for each in readers)

    def test_offset_advances_without_matching_messages(self, room, stream) -> None:
        publish(room, *COLOURS)
        reader = read(room, stream, x_filter="missing = 1", x_stream_consumer_name="me")
        assert reader.place.offset == 8
        stream.remove_consumer(reader)
        publish(room, {"missing": 1})
        again = read(room, stream, x_filter="missing = 1", x_stream_consumer_name="me", turn=False)
        assert again.place.stored == 8  # stored without an ack: no message was delivered
        room.turns()
        assert len(again.got) == 1
        again.ack(len(again.entries))
        room.turns()
        stream.order.remove_consumer(stream, again)
        assert room.vhost.queue_host.stored_offsets.get(stream.id, "me") == 9

    def test_stored_offset_stays_before_unacked_message(self, room, stream) -> None:
        publish(room, {"a": 1}, {"a": 2}, {"a": 2})
        reader = read(room, stream, x_filter="a = 1", x_stream_consumer_name="me")
        assert len(reader.got) == 1
        stream.order.remove_consumer(stream, reader)
        assert room.vhost.queue_host.stored_offsets.get(stream.id, "me") in (None, 0)

    def test_acks_give_credit_across_skipped_messages(self, room, stream) -> None:
        bodies = publish(room, *COLOURS)
        reader = read(room, stream, 1, x_filter="colour = 'blue'")
        for count in range(1, 5):
            assert reader.got == bodies[1::2][:count]
            reader.ack(len(reader.entries))
            room.turns()

    def test_filter_works_after_restart(self, room, stream) -> None:
        bodies = publish(room, *COLOURS)
        room.restart()
        queue = room.vhost.queues["s"]
        queue.prepare()
        assert read(room, queue, x_filter="colour = 'red'").got == bodies[0::2]

    def test_selector_with_utc_uses_the_current_time(self) -> None:
        data = encode_properties(Properties(timestamp=1))
        view = RecordView(SharedFields(b"", b"", b"s", data, True))
        selector = parse_selector("p.creation-time < UTC()")
        assert selector.depends_on_time and not parse_selector("a = 1").depends_on_time
        assert StreamFilter(selector, frozenset(), False).wants(view)


class TestValues:
    def test_filter_by_one_or_several_values(self, room, stream) -> None:
        values = ("eu", "us", "eu", "asia")
        bodies = publish(room, *[{"x-stream-filter-value": value} for value in values], {"other": 1})
        assert read(room, stream, x_stream_filter="eu").got == [bodies[0], bodies[2]]
        assert read(room, stream, x_stream_filter=["us", "asia"]).got == [bodies[1], bodies[3]]
        assert read(room, stream, x_stream_filter=["us"], x_stream_match_unfiltered=True).got == [bodies[1], bodies[4]]
        assert read(room, stream, x_stream_filter=["us"], x_stream_match_unfiltered=False).got == [bodies[1]]
        assert read(room, stream, x_stream_match_unfiltered=True).got == bodies

    def test_filter_value_that_is_not_a_string_is_ignored(self, room, stream) -> None:
        name = "x-stream-filter-value"
        bodies = publish(room, {name: 5}, {name: "5"}, {"a": name})
        assert read(room, stream, x_stream_filter="5").got == [bodies[1]]
        got = read(room, stream, x_stream_filter="5", x_stream_match_unfiltered=True).got
        assert got == bodies

    def test_selector_and_value_must_both_match(self, room, stream) -> None:
        bodies = publish(room, *[{"x-stream-filter-value": value, "a": n} for n in (1, 2) for value in ("eu", "us")])
        assert read(room, stream, x_stream_filter="eu", x_filter="a = 2").got == [bodies[2]]

    def test_filter_value_header_stays_on_the_message(self, room, stream) -> None:
        publish(room, {"x-stream-filter-value": "eu"})
        reader = read(room, stream, x_stream_filter="eu")
        message = reader.entries[0].message
        assert message is not None
        assert b"x-stream-filter-value" in message.properties() and b"x-stream-offset" in message.properties()


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"x-filter": 5}, "invalid arg 'x-filter' for queue 'q' in vhost '/': {unacceptable_type,signedint}"),
            ({"x-filter": "a = "}, "invalid arg 'x-filter' for queue 'q' in vhost '/': line 1, column 5: the selector"),
            ({"x-filter": "a" * 5000}, "the selector has more than 4096 characters"),
            ({"x-stream-filter": 5}, "invalid arg 'x-stream-filter' for queue 'q' in vhost '/': {unacceptable_type,"),
            ({"x-stream-filter": ["a", 5]}, "{unacceptable_type,signedint}"),
            ({"x-stream-filter": []}, "expected 1 to 1024 values, got 0"),
            ({"x-stream-filter": ["a"] * 1025}, "expected 1 to 1024 values, got 1025"),
            ({"x-stream-match-unfiltered": "yes"}, "{unacceptable_type,longstr}"),
        ],
    )
    def test_invalid_consumer_arguments_are_refused(self, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(PreconditionFailed) as refused:
            consumer_arguments("q", "/", "stream", arguments, b"")
        assert text in refused.value.text

    @pytest.mark.parametrize("value", [16, 255])
    def test_filter_size_bytes_of_16_to_255_is_accepted(self, value: int) -> None:
        rules_of({"x-queue-type": "stream", "x-stream-filter-size-bytes": value})

    def test_other_filter_size_bytes_are_refused(self, room) -> None:
        for value in (15, 256, "16", True):
            with pytest.raises(PreconditionFailed, match="x-stream-filter-size-bytes"):
                room.queue("bad", x_queue_type="stream", x_stream_filter_size_bytes=value)
        with pytest.raises(PreconditionFailed, match="x-stream-filter-size-bytes"):
            room.queue("bad", x_stream_filter_size_bytes=16)


class TestCost:
    def test_dispatch_looks_at_a_bounded_number_of_messages(self, room, stream, monkeypatch) -> None:
        publish(room, *[{"n": n} for n in range(5000)])
        decoded = record_decoded_headers(monkeypatch)
        reader = read(room, stream, x_filter="n = 4999", turn=False)  # this dispatches
        assert reader.place.offset == SHARE_COUNT
        plain = read(room, stream, turn=False)
        assert len(plain.got) > SHARE_COUNT  # a searching consumer leaves others their turn
        room.turns()
        assert len(reader.got) == 1 and len(plain.got) == 5000
        assert len(decoded) <= 2 * 5000

    def test_large_headers_count_for_several_messages(self, room, stream) -> None:
        publish(room, *[{"n": n, "large": "x" * 50_000} for n in range(40)])
        reader = read(room, stream, x_filter="n = 39", turn=False)
        assert reader.place.offset < 5
        room.turns()
        assert len(reader.got) == 1

    def test_all_searching_consumers_share_a_slice_of_the_turn(self, room) -> None:
        """The clock advances with each look. Searches get five milliseconds per turn, however many there are."""
        queues = [room.queue(f"s{number}", x_queue_type="stream") for number in range(12)]
        for queue in queues:
            for n in range(1500):
                room.publish(queue.name, b"", turn=False, headers={"n": n})
        room.turn.schedule()
        room.turns()
        room.clock.per_look_ms = 1
        readers = [read(room, queue, turn=False, x_filter="n = 1499") for queue in queues]
        turns = 0
        while not any(reader.got for reader in readers):
            before = sum(reader.place.offset for reader in readers)
            run_turn(room)
            assert sum(reader.place.offset for reader in readers) - before <= 5 * SHARE_COUNT
            turns += 1
            assert turns < 1000
        assert min(reader.place.offset for reader in readers) > 1500 / 2  # no consumer was left behind
        room.clock.per_look_ms = 0
        room.turns()
        assert [len(reader.got) for reader in readers] == [1] * 12

    def test_consumer_may_leave_while_it_searches(self, room, stream) -> None:
        publish(room, *[{"n": n} for n in range(2000)])
        readers = [read(room, stream, x_filter="n = 1999", turn=False) for _ in range(3)]
        for reader in readers[:2]:
            stream.remove_consumer(reader)
        room.turns()
        assert [len(reader.got) for reader in readers] == [0, 0, 1]
        assert not room.turn.scans.waiting_queues

    def test_stream_deleted_while_a_consumer_searches(self, room, stream) -> None:
        publish(room, *[{"n": n} for n in range(2000)])
        reader = read(room, stream, x_filter="n = 1999", turn=False)
        room.delete(stream)
        room.turns()
        assert reader.got == [] and reader.cancelled_by_broker
        assert not room.turn.scans.waiting_queues

    def test_headers_are_decoded_once_for_all_consumers(self, room, stream, monkeypatch) -> None:
        publish(room, *[{"n": n} for n in range(50)], *[{"n": "same"}] * 50)
        decoded = record_decoded_headers(monkeypatch)
        readers = [read(room, stream, x_filter=f"n = {number} OR n = 'same'", turn=False) for number in range(10)]
        room.turns()
        assert all(len(each.got) == 51 for each in readers)
        assert len(decoded) <= 60  # 50 different ones, and one for the 50 equal ones


def run_turn(room) -> None:
    """Run one turn of the loop."""
    soon = room._soon[:]
    room._soon.clear()
    for call in soon:
        call()


def record_decoded_headers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the headers decoded for filters. The list stays empty with compiled code, which cannot be patched."""
    decoded: list[object] = []
    from amqpd.broker.queue import stream_filter

    decode = stream_filter.decode_headers

    def record_and_decode(data: bytes, start: int, end: int) -> dict[str, object]:
        decoded.append(data)
        return decode(data, start, end)

    monkeypatch.setattr(stream_filter, "decode_headers", record_and_decode)
    return decoded


MESSAGES = st.lists(
    st.fixed_dictionaries({"n": st.integers(0, 3)}, optional={"x-stream-filter-value": st.sampled_from(["a", "b", 1])}),
    max_size=12,
)

READERS = st.tuples(
    st.sampled_from([None, "n > 1", "n = 0 OR n = 3"]),
    st.sampled_from([None, ["a"], ["a", "b"]]),
    st.booleans(),
    st.integers(1, 5),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(MESSAGES, max_size=4),
    readers=st.lists(READERS, max_size=4),
)
def test_random_readers_get_matching_messages_in_order(tmp_path_factory, batches, readers) -> None:
    from tests.broker.conftest import Room

    room = Room(tmp_path_factory.mktemp("data"))
    stream = room.queue("s", x_queue_type="stream")
    consumers = []
    expected_bodies: list[list[bytes]] = []
    for selector, values, unfiltered, credit in readers:
        arguments: dict[str, object] = {"x_stream_match_unfiltered": unfiltered}
        if selector is not None:
            arguments["x_filter"] = selector
        if values is not None:
            arguments["x_stream_filter"] = values
        consumers.append(read(room, stream, credit, **arguments))
        expected_bodies.append([])
    for batch in batches:
        for body, headers in zip(publish(room, *batch), batch, strict=True):
            for (selector, values, unfiltered, _), expected in zip(readers, expected_bodies, strict=True):
                value = headers.get("x-stream-filter-value")
                fits = values is None or (value in values if isinstance(value, str) else unfiltered)
                if fits and (selector is None or (headers["n"] > 1 if selector == "n > 1" else headers["n"] in (0, 3))):
                    expected.append(body)
        for each in consumers:
            if each.entries:
                each.ack(len(each.entries))
        room.turns()
    for _ in range(60):
        for each in consumers:
            if each.entries:
                each.ack(len(each.entries))
        room.turns()
    assert [each.got for each in consumers] == expected_bodies
    assert isinstance(stream.order, StreamOrder)
    room.storage.close(clean=False)


def test_clock_is_read_more_often_for_larger_messages(room, stream) -> None:
    scans = room.turn.scans
    for size, steps in ((0, LOOK_COUNT), (100, LOOK_COUNT), (600, LOOK_COUNT / 2), (120_000, 1)):
        scans.begin(stream, room.turn.number + size)
        assert not scans.is_used_up
        room.clock.now_ms += SLICE_MS
        count = 0
        while not scans.is_used_up:
            scans.step(size)
            count += 1
        assert count == steps


def test_selectors_parsed_per_turn_are_bounded(room) -> None:
    scans = room.turn.scans
    assert scans.can_parse(1, 4000)  # at least one
    assert not scans.can_parse(1, 1)
    assert [scans.can_parse(2, 600) for _ in range(4)] == [True, True, False, False]
    assert scans.can_parse(3, 600)
