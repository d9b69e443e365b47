"""The parser on long streams: linear cost, large bodies, and publishers that repeat their last publish in part."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pamqp.base
import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header
import pytest
from reference_parser import (
    Driver,
    ReferenceParser,
    header_payload,
    publish_frames,
    raw_frame,
)

from amqpd.protocol.frame import FrameHandler
from amqpd.protocol.frame_parser import FrameParser


def big_stream(size: int) -> bytes:
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    return method + raw_frame(2, 1, header_payload(size, b"\0\0")) + raw_frame(3, 1, bytes(size))


class CountingHandler(FrameHandler):
    def __init__(self) -> None:
        self.bodies: list[int] = []

    def on_publish(
        self,
        channel: int,
        method: bytes,
        content: bytes,
        header_size: int,
        body_size: int,
        frame_payload_max: int,
        same_as_last: bool,
    ) -> None:
        self.bodies.append(body_size)

    def on_publish_started(self, channel: int) -> None:
        pass


def bytewise_s(size: int, processor_s: Callable[..., float]) -> float:
    sink = CountingHandler()
    parser = FrameParser(sink, 1 << 20, 1 << 20)
    stream = big_stream(size)

    def push() -> None:
        for position in range(len(stream)):
            parser.feed_data(stream[position : position + 1])
            parser.parse()

    took = processor_s(push)
    assert sink.bodies == [size]
    return took


def test_one_byte_at_a_time_costs_linear_time(processor_s: Callable[..., float]) -> None:
    """128 KiB byte by byte are joined once per frame. 8 times the bytes may cost 8 times as much, not 64 times."""
    small = min(bytewise_s(1 << 14, processor_s) for _ in range(3))
    large = min(bytewise_s(1 << 17, processor_s) for _ in range(2))
    assert large < 24 * small, f"{large:.3f} s for 128 KiB, {small:.4f} s for 16 KiB"


class LargePublishHandler(FrameHandler):
    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes, list[bytes], int]] = []

    def on_publish_started(self, channel: int) -> None:
        pass

    def on_large_publish(self, channel: int, method: bytes, header: bytes, parts: list[bytes], body_size: int) -> None:
        self.taken.append((channel, header, parts, body_size))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1 << 30, 65536, 1009])
def test_a_large_body_stays_in_its_parts(chunk: int) -> None:
    """Frames of all sizes are mixed with frames of another channel. Only small parts are joined."""
    sizes = [131064, 1, 2, 3, 20_000, 0, 16384, 131064, *[7] * 30_000, 100_000]
    body = bytes(range(256)) * (sum(sizes) // 256 + 1)
    body = body[: sum(sizes)]
    header = raw_frame(2, 1, header_payload(len(body), b"\x10\x00\x02"))
    stream = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1) + header
    at = 0
    for size in sizes:
        stream += raw_frame(3, 1, body[at : at + size])
        at += size
    sink = LargePublishHandler()
    parser = FrameParser(sink, 131072, 1 << 24)
    for start in range(0, len(stream), chunk):
        assert not sink.taken
        parser.feed_data(stream[start : start + chunk])
        parser.parse()
    ((channel, seen_header, parts, body_size),) = sink.taken
    assert (channel, seen_header, body_size) == (1, header, len(body))
    assert b"".join(parts) == body
    assert len(parts) <= 8, [len(part) for part in parts]
    assert not parser.is_mid_command()


def repetitive_stream(seed: int) -> bytes:
    """Thousands of publishes that repeat some of their fields for a while, then others."""
    random = Random(seed)
    channels, keys = [1, 2], ["a", "b.c"]
    properties = [b"\0\0", b"\x10\0\x02", b"\x10\0\x01", b"\x08\0\x07", b"\x20\0\0\0\0\x09\x03keyI\0\0\0\x07"]
    stream = b""
    chosen: list[Any] = [1, "a", b"\0\0", 5]
    for _ in range(6):
        changing = [random.random() < share for share in (0.2, 0.3, 0.5, 0.6)]
        how_often = random.choice([0.02, 0.3, 1.0])
        parts: list[bytes] = []
        for number in range(random.choice([10, 300, 700])):
            if random.random() < how_often:
                fresh = [
                    random.choice(channels),
                    random.choice(keys),
                    random.choice([*properties, b"\x01\0\4%04d" % (number % 1000)]),
                    random.choice([0, 1, 5, 9, 60]),
                ]
                chosen = [new if change else old for new, change, old in zip(fresh, changing, chosen, strict=True)]
            channel, key, property_bytes, size = chosen
            body = [random.randbytes(size)] if size else []
            if size > 9 and random.random() < 0.1:
                body = [body[0][:7], body[0][7:]]
            parts += [frame for _, frame in publish_frames(channel, key, False, property_bytes, body)]
        stream += b"".join(parts)
    return stream


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_long_streams_that_repeat_some_parts(seed: int) -> None:
    """The parser's expectation of a repeated publish never changes the commands."""
    stream = repetitive_stream(seed)
    expected = ReferenceParser().parse_stream(stream)
    assert expected.error == 0 and not expected.unfinished
    random = Random(seed)
    for longest in (1 << 30, 3000, 150):
        driver = Driver(lambda number: number % 97 == 0)
        at = 0
        while at < len(stream):
            size = random.randint(1, longest)
            driver.feed(stream[at : at + size])
            at += size
        assert driver.error is None
        assert driver.sink.commands == expected.commands
        assert driver.sink.same_as_last > 0


def test_other_properties_of_the_same_size_are_detected() -> None:
    """Body sizes differ and the properties change sometimes; `same_as_last` must be correct."""
    frames: list[tuple[int, bytes]] = []
    for number in range(600):
        priority = 1 if number % 50 == 49 else number // 300
        body = bytes(1 + number % 7)
        frames += publish_frames(1, "a", False, b"\x08\0" + bytes((priority,)), [body])
    stream = b"".join(frame for _, frame in frames)
    driver = Driver()
    driver.feed(stream)
    assert driver.sink.commands == ReferenceParser().parse_stream(stream).commands
    assert driver.sink.same_as_last > 400
