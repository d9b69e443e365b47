"""The assembler against a plain cutter made of pamqp: the same commands, whole, in pieces, and one byte at a time.

The plain cutter knows no fast road. It reads a stream frame by frame with pamqp and keeps what is unfinished per
channel; for every command it notes behind which byte of the stream the command was complete. So the test can demand
that the assembler hands over neither later nor earlier than that, wherever the chunks of the stream end.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

import pamqp.base
import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from amqpd.errors import FrameError, HardError, PreconditionFailed, SoftError, UnexpectedFrame
from amqpd.protocol.assembler import Assembler
from amqpd.protocol.frames import CommandSink

PAYLOAD_MAX = 120
BODY_MAX = 700
ALL_AT_ONCE = 1 << 40


class Outcome(NamedTuple):
    """What a stream comes to. ends: for each command the number of bytes it needed; error: code of the hard error."""

    commands: list[tuple[Any, ...]]
    ends: list[int]
    error: int
    error_end: int
    unfinished: bool


def method_of(payload: bytes) -> tuple[Any, ...]:
    _, _, value = pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")
    assert isinstance(value, pamqp.base.Frame)
    return (value.name, tuple((name, repr(item)) for name, item in value))


# -- the plain cutter ------------------------------------------------------------------------------------------------


class Plain:
    """AMQP 0-9-1 section 4.2, read as it stands."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.ends: list[int] = []
        self.open: dict[int, dict[str, Any]] = {}
        self.dropped: set[int] = set()

    def cut(self, stream: bytes) -> Outcome:
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
        """One whole frame; returns the code of a hard error or 0."""
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


# -- the assembler ---------------------------------------------------------------------------------------------------


class Hiccup(SoftError):
    """What a handler may raise."""


class Recorder(CommandSink):
    """Notes what it is called with, in the plain cutter's words; raises for every command that `hiccup` picks."""

    def __init__(self, hiccup: Callable[[int], bool]) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.dropped: set[int] = set()
        self.closed: list[int] = []
        self.started: list[int] = []
        self.headers: dict[int, tuple[bytes, bytes]] = {}
        self.alike = 0
        self.hiccup = hiccup

    def note(self, *command: Any) -> None:
        self.commands.append(command)
        if self.hiccup(len(self.commands)):
            raise Hiccup("a handler refuses")

    def on_publish(
        self,
        channel: int,
        method: bytes,
        content: bytes,
        header_size: int,
        body_size: int,
        frame_payload_max: int,
        alike: bool,
    ) -> None:
        if channel in self.dropped:
            return
        consumed, number, header = pamqp.frame.unmarshal(content)
        assert isinstance(header, pamqp.header.ContentHeader)
        assert (consumed, number, header.body_size) == (header_size, channel, body_size)
        constant = content[:11] + content[19:header_size]
        if alike and id(method) in self.headers:
            self.alike += 1
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
        # As a channel does: nothing is kept of a publish that was refused. The object is, so that nobody gets its id.
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
        if payload[:4] == b"\0\x3c\0\x50":  # the slow road's ack
            _, _, ack = pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")
            assert isinstance(ack, spec.Basic.Ack)
            self.note("ack", channel, ack.delivery_tag, bool(ack.multiple))
        else:
            self.note("method", channel, method_of(payload))

    def on_publish_started(self, channel: int) -> None:
        self.started.append(channel)


class Driver:
    """Feeds an assembler as a connection does: goes on after a soft error, ends at a hard one."""

    def __init__(self, hiccup: Callable[[int], bool] = lambda _: False) -> None:
        self.sink = Recorder(hiccup)
        self.assembler = Assembler(self.sink, PAYLOAD_MAX, BODY_MAX)
        self.error: HardError | None = None
        self.hiccups = 0

    def feed(self, chunk: bytes) -> None:
        if self.error is not None:
            return
        self.assembler.push(chunk)
        while True:
            try:
                self.assembler.run()
            except Hiccup:
                self.hiccups += 1
            except PreconditionFailed:
                channel = self.assembler.channel
                self.sink.commands.append(("refused", channel))
                self.sink.dropped.add(channel)
                self.assembler.drop_channel(channel)
            except HardError as error:
                self.error = error
                return
            else:
                break
            finally:
                for channel in self.sink.closed:
                    self.assembler.take_channel(channel)
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
    # rabbit: a content is complete with its last byte; an empty body frame behind that is one too many
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
    """Units in order on their channels, the channels' frames interleaved; sometimes something wrong in between."""
    units = draw(st.lists(GOOD, max_size=10))
    odd = draw(st.one_of(st.none(), st.none(), TOO_LARGE, WRONG, WRONG))
    if odd is not None:
        units.insert(draw(st.integers(0, len(units))), odd)
    queues: dict[int, list[bytes]] = {}
    order: list[int] = []
    for unit in units:
        for channel, frame in unit:
            queues.setdefault(channel, []).append(frame)
            order.append(channel)
    if draw(st.booleans()):  # each channel keeps its own order, whatever the others do
        order = list(draw(st.permutations(order)))
    stream = b"".join([queues[channel].pop(0) for channel in order])
    if odd is not None and draw(st.booleans()):
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
        assert driver.assembler.mid_frame() == expected.unfinished


PROFILE = settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
QUICK = publish_frames(1, "q", False, b"\x10\0\x02", [b"hello"])
SHORT_HEADER = QUICK[0][1] + raw_frame(2, 1, b"")
PART_OF_BODY = b"".join(frame for _, frame in publish_frames(1, "q", False, b"\0\0", [b"a" * 50, b"b" * 50])[:3])


@given(streams(), st.lists(st.integers(1, 60), max_size=40))
@example(SHORT_HEADER, [])
@example(PART_OF_BODY + raw_frame(99, 1, b"") + bytes(50), [len(PART_OF_BODY) - 58])
@PROFILE
def test_whole_and_in_pieces(stream: bytes, sizes: list[int]) -> None:
    expected = Plain().cut(stream)
    whole = Driver()
    whole.feed(stream)
    check(whole, expected)
    cut = Driver()
    for piece in pieces(stream, sizes):
        cut.feed(piece)
    check(cut, expected)
    assert str(cut.error) == str(whole.error), "the text depends on where chunks end"


@given(streams())
@example(SHORT_HEADER)
@example(PART_OF_BODY + method_frames(2, spec.Tx.Commit())[0][1])
@example(QUICK[0][1] + raw_frame(2, 1, header_payload(BODY_MAX + 1, b"\0\0")))
@PROFILE
def test_one_byte_at_a_time_nothing_is_late(stream: bytes) -> None:
    """Every command comes with the byte that completes it: nobody waits for an answer to what lies in a buffer."""
    expected = Plain().cut(stream)
    driver = Driver()
    for position in range(len(stream)):
        driver.feed(stream[position : position + 1])
        if driver.error is not None:
            assert position + 1 == expected.error_end
            break
        due = sum([end <= position + 1 for end in expected.ends])
        assert len(driver.sink.commands) == due, f"after {position + 1} bytes"
    check(driver, expected)


@given(streams(), st.integers(2, 5))
@PROFILE
def test_goes_on_behind_what_a_handler_refused(stream: bytes, every: int) -> None:
    """An exception of the sink loses no command and repeats none."""
    expected = Plain().cut(stream)
    driver = Driver(lambda number: number % every == 0)
    driver.feed(stream)
    check(driver, expected)
    assert driver.hiccups == sum(
        [number % every == 0 and command[0] != "refused" for number, command in enumerate(expected.commands, 1)]
    )


@given(st.lists(PUBLISHES, min_size=1, max_size=6))
@PROFILE
def test_fast_and_slow_road_agree(units: list[list[tuple[int, bytes]]]) -> None:
    """A heartbeat between the frames of a content, a content pending elsewhere: both are legal, neither is fast."""
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


def test_a_frame_that_is_too_large_is_refused_at_its_header() -> None:
    driver = Driver()
    driver.feed(struct.pack(">BHI", 3, 1, PAYLOAD_MAX + 1))
    assert isinstance(driver.error, FrameError)
    assert f"frame_too_large,{PAYLOAD_MAX + 1},{PAYLOAD_MAX - 8}" in str(driver.error)


def test_the_soft_error_names_its_channel() -> None:
    sink = Recorder(lambda _: False)
    assembler = Assembler(sink, PAYLOAD_MAX, BODY_MAX)
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 7)
    assembler.push(method + raw_frame(2, 7, header_payload(5000, b"\0\0")))
    with pytest.raises(PreconditionFailed, match="message size 5000 is larger than configured max size 700"):
        assembler.run()
    assert assembler.channel == 7


def test_a_publish_is_announced_before_its_content() -> None:
    """So that a channel that is not open is told at once, and not when the content is complete."""
    driver = Driver()
    driver.feed(QUICK[0][1])
    assert driver.sink.started == [1]
    assert not driver.sink.commands
    for _, frame in QUICK[1:]:
        driver.feed(frame)
    assert [command[0] for command in driver.sink.commands] == ["publish"]


def test_what_a_handler_left_can_be_taken_back() -> None:
    """The login takes the rest of the bytes and pushes it again when it is decided."""
    driver = Driver(lambda number: number == 1)
    method = pamqp.frame.marshal(spec.Tx.Select(), 1)
    driver.assembler.push(method + method + method[:5])
    with pytest.raises(Hiccup):
        driver.assembler.run()
    rest = driver.assembler.take_rest()
    assert rest == method + method[:5]
    assert not driver.assembler.mid_frame()
    driver.feed(rest)
    driver.feed(method[5:])
    assert len(driver.sink.commands) == 3


def test_take_rest_finds_unfinished_frames() -> None:
    driver = Driver()
    method = pamqp.frame.marshal(spec.Tx.Select(), 1)
    for piece in (method[:3], method[3:6], method[6:8]):
        driver.feed(piece)
    assert driver.assembler.take_rest() == method[:8]
    assert not driver.assembler.mid_frame()


def test_dropped_channels_hold_nothing() -> None:
    """Content for a channel that the broker has closed is not gathered."""
    driver = Driver()
    driver.feed(QUICK[0][1] + raw_frame(2, 1, header_payload(600, b"\0\0")))
    assert driver.assembler.mid_frame()
    driver.assembler.drop_channel(1)
    driver.sink.dropped.add(1)
    assert not driver.assembler.mid_frame()
    for _ in range(4):
        driver.feed(raw_frame(3, 1, b"x" * 100))
        assert not driver.assembler.mid_frame()
    driver.feed(pamqp.frame.marshal(spec.Channel.CloseOk(), 1) + b"".join(frame for _, frame in QUICK))
    assert [command[0] for command in driver.sink.commands] == ["method", "publish"]


def test_dropped_channels_are_not_waited_for() -> None:
    """A publish whose body never comes, on a channel that was closed for the one before it."""
    driver = Driver()
    publish = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    driver.feed(publish + raw_frame(2, 1, header_payload(BODY_MAX + 1, b"\0\0")))
    driver.feed(publish + raw_frame(2, 1, header_payload(1, b"\0\0")))
    assert not driver.assembler.mid_frame()


def big_stream(size: int) -> bytes:
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1)
    return method + raw_frame(2, 1, header_payload(size, b"\0\0")) + raw_frame(3, 1, bytes(size))


class Count(CommandSink):
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
        alike: bool,
    ) -> None:
        self.bodies.append(body_size)

    def on_publish_started(self, channel: int) -> None:
        """Nothing to note."""


def bytewise_s(size: int) -> float:
    sink = Count()
    assembler = Assembler(sink, 1 << 20, 1 << 20)
    stream = big_stream(size)
    begun = time.process_time()
    for position in range(len(stream)):
        assembler.push(stream[position : position + 1])
        assembler.run()
    took = time.process_time() - begun
    assert sink.bodies == [size]
    return took


def test_one_byte_at_a_time_costs_linear_time() -> None:
    """128 KiB byte by byte: one join per frame. Eight times the bytes may cost eight times as much, not sixty-four."""
    small = min(bytewise_s(1 << 14) for _ in range(3))
    large = min(bytewise_s(1 << 17) for _ in range(2))
    assert large < 24 * small, f"{large:.3f} s for 128 KiB, {small:.4f} s for 16 KiB"


class Large(CommandSink):
    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes, list[bytes], int]] = []

    def on_publish_started(self, channel: int) -> None:
        """Nothing to note."""

    def on_large_publish(self, channel: int, method: bytes, header: bytes, parts: list[bytes], body_size: int) -> None:
        self.taken.append((channel, header, parts, body_size))


@pytest.mark.parametrize("chunk", [1 << 30, 65536, 1009])
def test_a_large_body_stays_in_the_parts_it_came_in(chunk: int) -> None:
    """Frames of every size, some on another channel between them; small ones are joined, the others are not touched."""
    sizes = [131064, 1, 2, 3, 20_000, 0, 16384, 131064, *[7] * 30_000, 100_000]
    body = bytes(range(256)) * (sum(sizes) // 256 + 1)
    body = body[: sum(sizes)]
    header = raw_frame(2, 1, header_payload(len(body), b"\x10\x00\x02"))
    stream = pamqp.frame.marshal(spec.Basic.Publish(routing_key="q"), 1) + header
    at = 0
    for size in sizes:
        stream += raw_frame(3, 1, body[at : at + size])
        at += size
    sink = Large()
    assembler = Assembler(sink, 131072, 1 << 24)
    for start in range(0, len(stream), chunk):
        assert not sink.taken
        assembler.push(stream[start : start + chunk])
        assembler.run()
    ((channel, seen, parts, body_size),) = sink.taken
    assert (channel, seen, body_size) == (1, header, len(body))
    assert b"".join(parts) == body
    assert len(parts) <= 8, [len(part) for part in parts]
    assert not assembler.mid_frame()


def habits(seed: int) -> bytes:
    """Thousands of publishes of somebody who is alike for a while in one thing, then in another."""
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


@pytest.mark.parametrize("seed", range(6))
def test_long_streams_that_are_alike_in_this_or_that(seed: int) -> None:
    """What the assembler expects of a stream, and gives up again, changes nothing of what it hands over."""
    stream = habits(seed)
    plain = Plain().cut(stream)
    assert plain.error == 0 and not plain.unfinished
    random = Random(seed)
    for longest in (1 << 30, 3000, 150):
        driver = Driver(lambda number: number % 97 == 0)
        at = 0
        while at < len(stream):
            size = random.randint(1, longest)
            driver.feed(stream[at : at + size])
            at += size
        assert driver.error is None
        assert driver.sink.commands == plain.commands
        assert driver.sink.alike > 0


def test_properties_of_the_same_size_are_not_the_same() -> None:
    """Bodies of another size each, properties that change now and then: the one thing that is expected to stay."""
    frames: list[tuple[int, bytes]] = []
    for number in range(600):
        priority = 1 if number % 50 == 49 else number // 300
        body = bytes(1 + number % 7)
        frames += publish_frames(1, "a", False, b"\x08\0" + bytes((priority,)), [body])
    stream = b"".join(frame for _, frame in frames)
    driver = Driver()
    driver.feed(stream)
    assert driver.sink.commands == Plain().cut(stream).commands
    assert driver.sink.alike > 400
