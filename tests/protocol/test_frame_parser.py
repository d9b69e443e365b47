"""The parser compared with the reference parser: the same commands for whole streams, pieces and single bytes."""

from __future__ import annotations

import struct

import pamqp.base
import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from profiles import examples
from reference_parser import (
    BODY_MAX,
    PAYLOAD_MAX,
    PUBLISHES,
    Driver,
    HandlerError,
    Recorder,
    ReferenceParser,
    check,
    header_payload,
    method_frames,
    pieces,
    publish_frames,
    raw_frame,
    streams,
)

from amqpd.errors import FrameError, PreconditionFailed
from amqpd.protocol.frame_parser import FrameParser

PROFILE = settings(
    deadline=None, max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
QUICK = publish_frames(1, "q", False, b"\x10\0\x02", [b"hello"])
SHORT_HEADER = QUICK[0][1] + raw_frame(2, 1, b"")
PART_OF_BODY = b"".join(frame for _, frame in publish_frames(1, "q", False, b"\0\0", [b"a" * 50, b"b" * 50])[:3])


@given(streams(), st.lists(st.integers(1, 60), max_size=40))
@example(SHORT_HEADER, [])
@example(PART_OF_BODY + raw_frame(99, 1, b"") + bytes(50), [len(PART_OF_BODY) - 58])
@PROFILE
def test_commands_do_not_depend_on_how_the_stream_is_split(stream: bytes, sizes: list[int]) -> None:
    expected = ReferenceParser().parse_stream(stream)
    whole = Driver()
    whole.feed(stream)
    check(whole, expected)
    split_driver = Driver()
    for piece in pieces(stream, sizes):
        split_driver.feed(piece)
    check(split_driver, expected)
    assert str(split_driver.error) == str(whole.error), "the error text depends on the chunks"


@given(streams())
@example(SHORT_HEADER)
@example(PART_OF_BODY + method_frames(2, spec.Tx.Commit())[0][1])
@example(QUICK[0][1] + raw_frame(2, 1, header_payload(BODY_MAX + 1, b"\0\0")))
@PROFILE
def test_each_command_is_handed_over_with_its_last_byte(stream: bytes) -> None:
    """No command waits in a buffer for more bytes."""
    expected = ReferenceParser().parse_stream(stream)
    driver = Driver()
    for position in range(len(stream)):
        driver.feed(stream[position : position + 1])
        if driver.error is not None:
            assert position + 1 == expected.error_end
            break
        expected_count = sum([end <= position + 1 for end in expected.ends])
        assert len(driver.sink.commands) == expected_count, f"after {position + 1} bytes"
    check(driver, expected)


@given(streams(), st.integers(2, 5))
@PROFILE
def test_parsing_continues_after_an_error_of_the_handler(stream: bytes, every: int) -> None:
    """An exception of the handler loses no command and repeats none."""
    expected = ReferenceParser().parse_stream(stream)
    driver = Driver(lambda number: number % every == 0)
    driver.feed(stream)
    check(driver, expected)
    assert driver.handler_errors == sum(
        [number % every == 0 and command[0] != "refused" for number, command in enumerate(expected.commands, 1)]
    )


@given(st.lists(PUBLISHES, min_size=1, max_size=6))
@PROFILE
def test_fast_and_slow_path_agree(units: list[list[tuple[int, bytes]]]) -> None:
    """A heartbeat within a content and a content on another channel are legal and force the slow path."""
    ack = (1, pamqp.frame.marshal(spec.Basic.Ack(delivery_tag=3, multiple=True), 1))
    heartbeat = raw_frame(8, 0, b"")
    fast = Driver()
    fast.feed(b"".join([frame for unit in [*units, [ack]] for _, frame in unit]))
    slow = Driver()
    slow.feed(pamqp.frame.marshal(spec.Basic.Publish(routing_key="never ends"), 9) + heartbeat)
    slow.feed(raw_frame(2, 9, header_payload(1, b"\0\0")))
    slow.feed(b"".join([frame + heartbeat for unit in [*units, [ack]] for _, frame in unit]))
    assert fast.sink.commands == slow.sink.commands
    assert fast.error is None
    assert slow.error is None


def test_a_frame_that_is_too_large_is_rejected_at_its_header() -> None:
    driver = Driver()
    driver.feed(struct.pack(">BHI", 3, 1, PAYLOAD_MAX + 1))
    assert isinstance(driver.error, FrameError)
    assert f"frame_too_large,{PAYLOAD_MAX + 1},{PAYLOAD_MAX - 8}" in str(driver.error)


def test_the_channel_of_a_channel_error_is_known() -> None:
    sink = Recorder(lambda _: False)
    parser = FrameParser(sink, PAYLOAD_MAX, BODY_MAX)
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 7)
    parser.feed_data(method + raw_frame(2, 7, header_payload(5000, b"\0\0")))
    with pytest.raises(PreconditionFailed, match="message size 5000 is larger than configured max size 700"):
        parser.parse()
    assert parser.channel == 7


def test_a_publish_is_reported_before_its_content() -> None:
    """A channel that is not open causes the error at once, not when the content is complete."""
    driver = Driver()
    driver.feed(QUICK[0][1])
    assert driver.sink.started == [1]
    assert not driver.sink.commands
    for _, frame in QUICK[1:]:
        driver.feed(frame)
    assert [command[0] for command in driver.sink.commands] == ["publish"]


def test_unparsed_bytes_can_be_taken_and_fed_again() -> None:
    """The login takes the unparsed bytes and feeds them again after its decision."""
    driver = Driver(lambda number: number == 1)
    method = pamqp.frame.marshal(spec.Tx.Select(), 1)
    driver.parser.feed_data(method + method + method[:5])
    with pytest.raises(HandlerError):
        driver.parser.parse()
    rest = driver.parser.take_unparsed()
    assert rest == method + method[:5]
    assert not driver.parser.is_mid_command()
    driver.feed(rest)
    driver.feed(method[5:])
    assert len(driver.sink.commands) == 3


def test_take_unparsed_returns_partial_frames() -> None:
    driver = Driver()
    method = pamqp.frame.marshal(spec.Tx.Select(), 1)
    for piece in (method[:3], method[3:6], method[6:8]):
        driver.feed(piece)
    assert driver.parser.take_unparsed() == method[:8]
    assert not driver.parser.is_mid_command()


def test_the_content_of_an_ignored_channel_is_not_kept() -> None:
    """The broker has closed the channel."""
    driver = Driver()
    driver.feed(QUICK[0][1] + raw_frame(2, 1, header_payload(600, b"\0\0")))
    assert driver.parser.is_mid_command()
    driver.parser.ignore_channel(1)
    driver.sink.dropped.add(1)
    assert not driver.parser.is_mid_command()
    for _ in range(4):
        driver.feed(raw_frame(3, 1, b"x" * 100))
        assert not driver.parser.is_mid_command()
    driver.feed(pamqp.frame.marshal(spec.Channel.CloseOk(), 1) + b"".join(frame for _, frame in QUICK))
    assert [command[0] for command in driver.sink.commands] == ["method", "publish"]


def test_an_ignored_channel_does_not_count_as_incomplete() -> None:
    """The body of a publish never arrives, and its channel is closed because of an earlier publish."""
    driver = Driver()
    publish = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    driver.feed(publish + raw_frame(2, 1, header_payload(BODY_MAX + 1, b"\0\0")))
    driver.feed(publish + raw_frame(2, 1, header_payload(1, b"\0\0")))
    assert not driver.parser.is_mid_command()
