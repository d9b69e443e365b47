"""Shared code of the parser tests: a reference parser that uses pamqp, a driver of our parser, and streams.

The reference parser has no fast path. It reads a stream frame by frame with pamqp and keeps partial contents per
channel. For each command it records the byte that completed the command. So a test can check that our parser hands
over each command exactly then, however the stream is split.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pamqp.base
import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header
from hypothesis import strategies as st

from amqpd.errors import FrameError, HardError, PreconditionFailed, SoftError, UnexpectedFrame
from amqpd.protocol.frame import FrameHandler
from amqpd.protocol.frame_parser import FrameParser

PAYLOAD_MAX = 120
BODY_MAX = 700
WHOLE_STREAM = 1 << 40


class Outcome(NamedTuple):
    """The commands of a stream.

    ends: the number of bytes that each command needed. error: code of the connection error.
    """

    commands: list[tuple[Any, ...]]
    ends: list[int]
    error: int
    error_end: int
    unfinished: bool


def method_of(payload: bytes) -> tuple[Any, ...]:
    _, _, value = pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")
    assert isinstance(value, pamqp.base.Frame)
    return (value.name, tuple((name, repr(item)) for name, item in value))


# -- the reference parser ---------------------------------------------------------------------------------------------


class ReferenceParser:
    """The reference parser: AMQP 0-9-1, section 4.2."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.ends: list[int] = []
        self.open: dict[int, dict[str, Any]] = {}
        self.dropped: set[int] = set()

    def parse_stream(self, stream: bytes) -> Outcome:
        at = 0
        while len(stream) - at >= 7:
            kind, channel, size = struct.unpack_from(">BHI", stream, at)
            if size > PAYLOAD_MAX:
                return self.outcome(FrameError.code, at + 7)
            end = at + 8 + size
            if len(stream) < end:
                break
            if stream[end - 1] != 0xCE:
                return self.outcome(FrameError.code, end)
            code = self.frame(kind, channel, stream[at:end], end)
            if code:
                return self.outcome(code, end)
            at = end
        return self.outcome(0, 0)._replace(unfinished=at < len(stream) or bool(self.open))

    def outcome(self, code: int, end: int) -> Outcome:
        return Outcome(self.commands, self.ends, code, end, False)

    def hand_over(self, end: int, *command: Any) -> None:
        self.commands.append(command)
        self.ends.append(end)

    def frame(self, kind: int, channel: int, raw: bytes, end: int) -> int:
        """Handle one whole frame. Return the code of a hard error or 0."""
        payload = raw[7:-1]
        pending = self.open.get(channel)
        if channel in self.dropped:
            if kind == 1 and payload[:4] == CLOSE_OK:
                self.dropped.discard(channel)
                self.hand_over(end, "method", channel, method_of(payload))
            return 0
        if kind not in (1, 2, 3, 8):
            return FrameError.code
        if kind == 8:
            if channel:
                return UnexpectedFrame.code
            return FrameError.code if payload else 0
        if kind == 1:
            return self.method(channel, pending, raw, end)
        if pending is None or ("size" in pending) != (kind == 3):
            return UnexpectedFrame.code
        return self.header(channel, pending, raw, end) if kind == 2 else self.body(channel, pending, raw, end)

    def method(self, channel: int, pending: dict[str, Any] | None, raw: bytes, end: int) -> int:
        payload = raw[7:-1]
        if pending is not None:
            return UnexpectedFrame.code
        if len(payload) < 4:
            return FrameError.code
        _, number, value = pamqp.frame.unmarshal(raw)
        assert number == channel
        if isinstance(value, spec.Basic.Publish):
            self.open[channel] = {"method": method_of(payload)}
        elif isinstance(value, spec.Basic.Ack):
            self.hand_over(end, "ack", channel, value.delivery_tag, bool(value.multiple))
        else:
            self.hand_over(end, "method", channel, method_of(payload))
        return 0

    def header(self, channel: int, pending: dict[str, Any], raw: bytes, end: int) -> int:
        payload = raw[7:-1]
        if len(payload) < 14:
            return FrameError.code
        class_id, weight, size = struct.unpack_from(">HHQ", payload)
        if class_id != 60 or weight:
            return UnexpectedFrame.code
        if size > 512 << 20:
            return FrameError.code
        _, _, value = pamqp.frame.unmarshal(raw)
        assert isinstance(value, pamqp.header.ContentHeader)
        assert value.body_size == size
        if size > BODY_MAX:
            self.hand_over(end, "refused", channel)
            del self.open[channel]
            self.dropped.add(channel)
            return 0
        pending.update(size=size, header=payload, parts=[])
        return self.complete(channel, pending, end)

    def body(self, channel: int, pending: dict[str, Any], raw: bytes, end: int) -> int:
        part = b""  # pamqp reads no empty body frame
        if len(raw) > 8:
            _, _, value = pamqp.frame.unmarshal(raw)
            assert isinstance(value, pamqp.body.ContentBody)
            part = value.value
        if len(part) + sum(map(len, pending["parts"])) > pending["size"]:
            return UnexpectedFrame.code
        if part:
            pending["parts"].append(part)
        return self.complete(channel, pending, end)

    def complete(self, channel: int, pending: dict[str, Any], end: int) -> int:
        if sum(map(len, pending["parts"])) == pending["size"]:
            del self.open[channel]
            parts = tuple(pending["parts"])
            self.hand_over(end, "publish", channel, pending["method"], pending["header"], parts)
        return 0


# -- the parser ---------------------------------------------------------------------------------------------------


class HandlerError(SoftError):
    """An error that a handler may raise."""


class Recorder(FrameHandler):
    """Records its calls in the reference parser's form. Raises for every command that `fails_at` selects."""

    def __init__(self, fails_at: Callable[[int], bool]) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.dropped: set[int] = set()
        self.closed: list[int] = []
        self.started: list[int] = []
        self.headers: dict[int, tuple[bytes, bytes]] = {}
        self.same_as_last = 0
        self.fails_at = fails_at

    def note(self, *command: Any) -> None:
        self.commands.append(command)
        if self.fails_at(len(self.commands)):
            raise HandlerError("a handler refuses")

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
        if channel in self.dropped:
            return
        consumed, number, header = pamqp.frame.unmarshal(content)
        assert isinstance(header, pamqp.header.ContentHeader)
        assert (consumed, number, header.body_size) == (header_size, channel, body_size)
        constant = content[:11] + content[19:header_size]
        if same_as_last and id(method) in self.headers:
            self.same_as_last += 1
            assert self.headers[id(method)][1] == constant
        parts = []
        rest = content[consumed:]
        while rest:
            consumed, number, part = pamqp.frame.unmarshal(rest)
            assert isinstance(part, pamqp.body.ContentBody)
            assert number == channel
            assert part.value, "an empty body frame"
            parts.append(part.value)
            rest = rest[consumed:]
        assert frame_payload_max == max(map(len, parts), default=0)
        assert body_size == sum(map(len, parts))
        self.note("publish", channel, method_of(method), content[7 : header_size - 1], tuple(parts))
        # Like a channel, keep nothing of a refused publish. Keep the method object, so that no other gets its id.
        self.headers[id(method)] = (method, constant)

    def on_ack(self, channel: int, tag: int, multiple: bool) -> None:
        if channel not in self.dropped:
            self.note("ack", channel, tag, multiple)

    def on_method(self, channel: int, payload: bytes) -> None:
        if payload[:4] == CLOSE_OK and channel in self.dropped:
            self.dropped.discard(channel)
            self.closed.append(channel)
        elif channel in self.dropped:
            return
        if payload[:4] == b"\0\x3c\0\x50":  # an ack on the slow path
            _, _, ack = pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")
            assert isinstance(ack, spec.Basic.Ack)
            self.note("ack", channel, ack.delivery_tag, bool(ack.multiple))
        else:
            self.note("method", channel, method_of(payload))

    def on_publish_started(self, channel: int) -> None:
        self.started.append(channel)


class Driver:
    """Feeds a parser as a connection does: continues after a channel error, stops at a connection error."""

    def __init__(self, fails_at: Callable[[int], bool] = lambda _: False) -> None:
        self.sink = Recorder(fails_at)
        self.parser = FrameParser(self.sink, PAYLOAD_MAX, BODY_MAX)
        self.error: HardError | None = None
        self.handler_errors = 0

    def feed(self, chunk: bytes) -> None:
        if self.error is not None:
            return
        self.parser.feed_data(chunk)
        while True:
            try:
                self.parser.parse()
            except HandlerError:
                self.handler_errors += 1
            except PreconditionFailed:
                channel = self.parser.channel
                self.sink.commands.append(("refused", channel))
                self.sink.dropped.add(channel)
                self.parser.ignore_channel(channel)
            except HardError as error:
                self.error = error
                return
            else:
                break
            finally:
                for channel in self.sink.closed:
                    self.parser.accept_channel(channel)
                self.sink.closed.clear()


# -- streams ---------------------------------------------------------------------------------------------------------

CLOSE_OK = b"\0\x14\0\x29"


def raw_frame(kind: int, channel: int, payload: bytes, end: int = 0xCE, size: int | None = None) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes((end,))


def header_payload(size: int, properties: bytes, class_id: int = 60, weight: int = 0) -> bytes:
    return struct.pack(">HHQ", class_id, weight, size) + properties


def publish_frames(
    channel: int, key: str, mandatory: bool, properties: bytes, parts: Sequence[bytes]
) -> list[tuple[int, bytes]]:
    method = spec.Basic.Publish(exchange="e" if mandatory else "", routing_key=key, mandatory=mandatory)
    frames = [pamqp.frame.marshal(method, channel)]
    frames.append(raw_frame(2, channel, header_payload(sum(map(len, parts)), properties)))
    frames += [raw_frame(3, channel, part) for part in parts]
    return [(channel, frame) for frame in frames]


def method_frames(channel: int, method: Any) -> list[tuple[int, bytes]]:
    return [(channel, pamqp.frame.marshal(method, channel))]


CHANNELS = st.integers(1, 3)
PROPERTIES = st.sampled_from(
    [b"\0\0", b"\x10\0\x02", b"\x10\0\x01", b"\x80\0\x0atext/plain", b"\x20\0\0\0\0\x09\x03keyI\0\0\0\x07"]
)
PARTS = st.one_of(
    st.just([]),
    st.binary(min_size=1, max_size=PAYLOAD_MAX).map(lambda body: [body]),
    # RabbitMQ: a content is complete with its last byte; an empty body frame after that is one too many
    st.builds(
        lambda parts, last: [*parts, last],
        st.lists(st.binary(max_size=PAYLOAD_MAX), max_size=4),
        st.binary(min_size=1, max_size=PAYLOAD_MAX),
    ),
)
PUBLISHES = st.builds(publish_frames, CHANNELS, st.text("ab.", max_size=8), st.booleans(), PROPERTIES, PARTS)
METHODS = st.builds(
    method_frames,
    CHANNELS,
    st.sampled_from(
        [
            spec.Basic.Ack(delivery_tag=5, multiple=False),
            spec.Basic.Ack(delivery_tag=1 << 40, multiple=True),
            spec.Basic.Nack(delivery_tag=3, multiple=True, requeue=True),
            spec.Basic.Get(queue="q"),
            spec.Queue.Declare(queue="q", arguments={"x-max-length": 5}),
            spec.Tx.Commit(),
            spec.Channel.CloseOk(),
        ]
    ),
)
HEARTBEATS = st.just([(0, raw_frame(8, 0, b""))])
TOO_LARGE = st.builds(
    lambda channel, size, parts: [
        (channel, pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), channel)),
        (channel, raw_frame(2, channel, header_payload(size, b"\0\0"))),
        *[(channel, raw_frame(3, channel, b"x" * part)) for part in parts],
    ],
    CHANNELS,
    st.integers(BODY_MAX + 1, BODY_MAX + 100),
    st.lists(st.integers(0, PAYLOAD_MAX), max_size=4),
)
WRONG = st.builds(
    lambda channel, frame: [(channel, frame(channel))],
    CHANNELS,
    st.sampled_from(
        [
            lambda channel: raw_frame(99, channel, b"abc"),
            lambda channel: raw_frame(0, channel, b""),
            lambda channel: raw_frame(1, channel, b"\0\x3c\0\x28", end=0xCD),
            lambda channel: raw_frame(3, channel, b"abc", end=0),
            lambda channel: raw_frame(2, channel, b"", size=PAYLOAD_MAX + 1),
            lambda channel: raw_frame(1, channel, b"\0\x3c\0\x28" + bytes(PAYLOAD_MAX)),
            lambda channel: raw_frame(1, channel, b"\0\x3c\0"),
            lambda channel: raw_frame(1, channel, b""),
            lambda channel: raw_frame(2, channel, header_payload(3, b"\0\0")),
            lambda channel: raw_frame(2, channel, header_payload(3, b"\0\0", class_id=50)),
            lambda channel: raw_frame(2, channel, header_payload(3, b"\0\0", weight=1)),
            lambda channel: raw_frame(2, channel, header_payload((1 << 64) - 1, b"\0\0")),
            lambda channel: raw_frame(2, channel, header_payload(3, b"")),
            lambda channel: raw_frame(2, channel, b""),
            lambda channel: raw_frame(3, channel, b"loose"),
            lambda channel: raw_frame(3, channel, b""),
            lambda channel: raw_frame(8, channel, b""),
            lambda _channel: raw_frame(8, 0, b"x"),
            lambda channel: pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), channel),
            lambda channel: pamqp.frame.marshal(spec.Tx.Select(), channel),
        ]
    ),
)
GOOD = st.one_of(PUBLISHES, PUBLISHES, PUBLISHES, METHODS, METHODS, HEARTBEATS)


@st.composite
def streams(draw: Callable[..., Any]) -> bytes:
    """Commands in order on their channels, with the channels' frames interleaved; sometimes one unit is wrong."""
    units = draw(st.lists(GOOD, max_size=10))
    wrong_unit = draw(st.one_of(st.none(), st.none(), TOO_LARGE, WRONG, WRONG))
    if wrong_unit is not None:
        units.insert(draw(st.integers(0, len(units))), wrong_unit)
    queues: dict[int, list[bytes]] = {}
    order: list[int] = []
    for unit in units:
        for channel, frame in unit:
            queues.setdefault(channel, []).append(frame)
            order.append(channel)
    if draw(st.booleans()):  # each channel keeps its own order
        order = list(draw(st.permutations(order)))
    stream = b"".join([queues[channel].pop(0) for channel in order])
    if wrong_unit is not None and draw(st.booleans()):
        return stream
    return stream[: len(stream) - draw(st.integers(0, min(len(stream), 9)))]


def pieces(stream: bytes, sizes: Iterable[int]) -> list[bytes]:
    found = []
    at = 0
    for size in sizes:
        if at >= len(stream):
            break
        found.append(stream[at : at + size])
        at += size
    if at < len(stream):
        found.append(stream[at:])
    return found


def check(driver: Driver, expected: Outcome) -> None:
    assert driver.sink.commands == expected.commands
    assert (driver.error.code if driver.error else 0) == expected.error
    if not expected.error:
        assert driver.parser.is_mid_command() == expected.unfinished
