"""A connection: channels on one socket, and the one place where an error becomes a close.

States: handshake (until connection.open-ok; any fault there closes the socket without a word, but for the exceptions
in handshake.py), running, closing (connection.close sent: everything but close-ok is discarded), closed.

The connection is the assembler's sink. Publishes and acks go straight to their channel; every other method is decoded
and handed to the `on_*` module of its class. What a handler raises is caught in `run`, and in `work_off` for commands
that waited, and becomes a close in `_close_for` alone: SoftError closes the channel, HardError the connection, anything
else is a bug of the broker (541, traceback in the log).

Output gathers in `out` and is written once per loop turn by `flush`. A peer that does not read gets at most
OUTPUT_BYTES_MAX of it plus what the transport holds; then its consumers rest until it does.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from amqpd.broker.destination import Destination, NotOpenYet
from amqpd.broker.flow.turn import Turn
from amqpd.broker.message import Message
from amqpd.broker.queues.opening import when_open
from amqpd.broker.session import Session
from amqpd.channel import dispatch, on_channel, resolve
from amqpd.channel.channel import Channel, ChannelConsumer
from amqpd.channel.route import Route
from amqpd.channel.spread import Spread
from amqpd.connection.read_gate import ALARM, BACKLOG, BODIES, OUTPUT, PACED, SHARING, SYNC, ReadGate
from amqpd.errors import (
    NO_ROUTE,
    AmqpError,
    ChannelError,
    ContentTooLarge,
    FrameError,
    HardError,
    InternalError,
    NotAllowed,
    PreconditionFailed,
    ResourceError,
    SoftError,
)
from amqpd.protocol import commands
from amqpd.protocol.assembler import BASIC_PUBLISH, FRAME_OVERHEAD_BYTES, LARGE_BODY_BYTES, Assembler, CommandSink
from amqpd.protocol.codec import read_u32

if TYPE_CHECKING:
    from amqpd.auth.backends import User
    from amqpd.broker.broker import Broker
    from amqpd.broker.catalogue.vhost import VHost

log = logging.getLogger(__name__)

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CLOSE_OK_FRAME: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"

HANDSHAKE: Final = 0
RUNNING: Final = 1
CLOSING: Final = 2
CLOSED: Final = 3

# Commands kept for a busy channel before reading stops.
DEFERRED_BYTES_MAX: Final = 1024 * 1024
# Output is set aside in pieces of this size.
CUT_BYTES: Final = 128 * 1024
# What one write hands to the kernel, which takes a millisecond for it; the rest of large bodies goes with later turns.
WRITE_BYTES_MAX: Final = 1024 * 1024
# Answers that gather in one turn before the peer's further questions wait.
OUTPUT_BYTES_MAX: Final = 2 * 1024 * 1024
# Queues that one connection's publishes may reach before the others have their turn: some milliseconds.
OFFERS_MAX: Final = 8192
# What a peer may send before it has logged in.
LOGIN_BYTES_MAX: Final = 16 * 1024
_ACK: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x50"
_NACK: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x78"


class InputWaits(Exception):
    """Nothing more is worked off for now; what comes is kept as bytes. `Connection.resume_input` goes on.

    Behind start-ok until the password is checked, while the peer does not read what it has asked for, behind a publish
    that met an alarm, and while other connections have their turn.
    """


@final
class Deferred:
    """A command that came while its channel was busy."""

    def __init__(
        self,
        kind: i64,
        payload: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        parts: list[bytes] | None = None,
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.content = content
        self.header_size = header_size
        self.body_size = body_size
        self.frame_payload_max = frame_payload_max
        self.parts = parts

    def size_bytes(self) -> i64:
        size: i64 = len(self.payload) + len(self.content)
        return size if self.parts is None else size + self.body_size


@final
class Connection(CommandSink):
    """One client. transport: write(bytes), close(), abort(), pause_reading(), resume_reading()."""

    def __init__(self, broker: Broker, turn: Turn, transport: Any, name: str, sink_frame_max: int) -> None:
        self.broker = broker
        self.turn = turn
        self.transport = transport
        self.gate = ReadGate(transport)
        self.name = name
        self.state: i64 = HANDSHAKE
        self.out = BytesWriter()
        self.cut_bytes: i64 = 0
        self._cuts: list[bytes | memoryview] = []
        # The body of the large publish that is being handed on.
        self.parts: list[bytes] | None = None
        self.flush_wanted = False
        self.write_paused = False
        self.starved: list[ChannelConsumer] = []
        self.assembler = Assembler(self, sink_frame_max, broker.message_size_max_bytes)
        self.channels: dict[int, Channel] = {}
        self.channel_max: i64 = 0
        self.frame_payload_max: i64 = 0
        self.heartbeat_s: i64 = 0
        self.received = False
        self.sent = False
        self.publishes = False
        # A publish came back: the output has grown by what the peer sent.
        self.returned = False
        # Queues that its publishes reached beyond one each since it last had the loop to itself.
        self.offers: i64 = 0
        # What it sent since the turn with that number began.
        self._turn_number: i64 = 0
        self._turn_bytes: i64 = 0
        # Commands that wait for a log to be opened, or reach very many; whether the client's close waits for them.
        self.unfinished_count: i64 = 0
        self.close_waits = False
        # basic.qos global=false means one window per channel, as the specification has it.
        self.channel_wide_qos = False
        self.deferred: dict[int, list[Deferred]] = {}
        self.deferred_bytes: i64 = 0
        self.client_properties: dict[str, object] = {}
        self.capabilities: dict[str, object] = {}
        self.received_bytes: i64 = 0
        self.sent_bytes: i64 = 0
        self.delivered_count: i64 = 0
        self.published_count: i64 = 0
        # Of unfinished bodies, as the broker knows it.
        self.kept_bytes: i64 = 0
        self._input_waits = False
        self._input: list[bytes] = []
        # Channels whose waiting commands wait for the same reason.
        self._stalled: list[Channel] = []
        self._last_number: i64 = -1
        self._last_channel: Channel | None = None
        self._session: Session | None = None
        # Whoever follows the handshake, a channel-0 method, the end: see handshake.py.
        self.control: Any = None

    @property
    def session(self) -> Session:
        session = self._session
        assert session is not None  # channels exist only after connection.open
        return session

    @property
    def vhost(self) -> VHost:
        return self.session.vhost

    @property
    def user(self) -> User:
        return self.session.user

    def vhost_or_none(self) -> VHost | None:
        """None before connection.open."""
        return None if self._session is None else self._session.vhost

    def open(self, user: User, vhost: VHost) -> None:
        self._session = Session(self.broker, vhost, user, self.name)
        self.state = RUNNING

    def let_go(self) -> None:
        """The socket is gone. Every circle of references through the connection is opened here or by its control's and
        its transport's `let_go`, so that it goes with the last that still names it (a turn, a commit under way), and
        needs no collector.
        """
        self.state = CLOSED
        self.assembler.let_go()
        self.starved.clear()
        self._stalled.clear()
        self._input.clear()
        self._cuts.clear()
        self.cut_bytes = 0
        self.out = BytesWriter()

    # -- in ----------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the socket. Raises nothing."""
        self.received = True
        self.received_bytes += len(data)
        if self.state >= CLOSING:
            self._receive_closing(data)
            return
        if self._input_waits:
            self._input.append(data)
            if self.state == HANDSHAKE and self.received_bytes > LOGIN_BYTES_MAX:
                self.fail(FrameError("too much before the login"))
            return
        self.assembler.push(data)
        turn = self.turn
        alone = turn.begin_read(len(data))
        try:
            self.run()
            if self._turn_number != turn.number:
                self._turn_number = turn.number
                self._turn_bytes = 0
            self._turn_bytes += len(data)
            if turn.took(len(data), self._turn_bytes) and self.state == RUNNING:
                self._pace()
        finally:
            if alone:  # whatever happens here: nobody else works this turn off
                turn.finish_read()

    def run(self) -> None:
        """Works off what was received."""
        assembler = self.assembler
        while True:
            try:
                assembler.run()
                break
            except InputWaits:
                self._input_waits = True
                break
            except Exception as error:  # noqa: BLE001  # what nobody expects is logged there
                self._close_for(error, assembler.channel)
                if not isinstance(error, SoftError):
                    break
        turn = self.turn
        if self.publishes and turn.storage.unsynced_bytes > turn.unsynced_bytes_max and not self.gate.holds(SYNC):
            self.gate.hold(SYNC)
            turn.hold(self)
        if assembler.kept_bytes != self.kept_bytes:
            self._keep_account()

    def _keep_account(self) -> None:
        """What is kept of unfinished bodies has become more or less."""
        assembler = self.assembler
        bodies = self.broker.unfinished_bodies
        while assembler.kept_bytes > bodies.limit_bytes and assembler.newest_channel() > 0:
            # One connection alone, by bodies on several channels: their frames are mixed, so none can wait for another.
            text = f"more than {bodies.limit_bytes} bytes of messages that are not complete"
            number = assembler.newest_channel()
            self.fail_channel(number, ContentTooLarge(text, BASIC_PUBLISH))
            assembler.drop_channel(number)  # whatever state it was in
        kept = assembler.kept_bytes
        self.kept_bytes = kept
        bodies.changed(self, kept, assembler.oldest() if kept > 0 else 0)
        if kept > 0 and self.turn.alarmed:
            self.control.hold_for_alarm()

    def read_bodies(self, on: bool) -> None:
        """Whether there is room for more of an unfinished body."""
        if not on:
            self.gate.hold(BODIES)
        elif self.gate.holds(BODIES):
            self.release_in_turn(BODIES)

    def drop_bodies(self) -> None:
        """The connection ends: nothing that was begun will be complete."""
        self.assembler.drop_contents()
        if self.kept_bytes > 0:
            self._keep_account()

    def _receive_closing(self, data: bytes) -> None:
        """connection.close is out: only its answer is of interest, wherever it stands among pipelined frames."""
        if CLOSE_OK_FRAME in data or (len(data) < 12 and CLOSE_OK_FRAME.endswith(data)):
            self.control.finished()

    def release(self) -> None:
        """What was unsynced is on disk."""
        self.release_in_turn(SYNC)

    def release_in_turn(self, reason: i64) -> None:
        """With all the others that were held for this reason: each in its turn."""
        self._pace()
        self.gate.release(reason)

    def _pace(self) -> None:
        if self.state == RUNNING and not self.gate.holds(PACED):
            self.gate.hold(PACED)
            self.turn.pace(self)

    def read_on(self) -> None:
        self.gate.release(PACED)
        if self._input_waits and not self.gate.holds(SHARING):
            self.resume_input()

    def channel(self, number: i64) -> Channel | None:
        if number == self._last_number:
            return self._last_channel
        channel = self.channels.get(number)
        if channel is not None:
            self._last_number = number
            self._last_channel = channel
        return channel

    def add_channel(self, number: int) -> None:
        self.channels[number] = Channel(self, number)

    def forget_channel(self, number: i64) -> None:
        self.channels.pop(number, None)
        self._last_number = -1
        self._last_channel = None
        deferred = self.deferred.pop(number, None)
        if deferred is not None:
            for item in deferred:
                self.deferred_bytes -= item.size_bytes()
            self._shorten_backlog()

    def on_large_publish(self, number: i64, method: bytes, header: bytes, parts: list[bytes], body_size: i64) -> None:
        # Beside the arguments: one more of them would cost every publish a call, as it is not the sink's.
        self.parts = parts
        try:
            self.on_publish(number, method, header, len(header), body_size, 0, False)
        finally:
            self.parts = None

    def on_publish(
        self,
        number: i64,
        method: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        alike: bool,
    ) -> None:
        channel = self.channel(number)
        if channel is None:
            raise _not_open(BASIC_PUBLISH)
        if channel.closing:
            return
        if channel.busy:
            self._defer(number, Deferred(1, method, content, header_size, body_size, frame_payload_max, self.parts))
            return
        self.publishes = True
        if self.turn.alarmed:
            self.control.hold_for_alarm()
            if body_size > 0:  # rabbit: a message without a body needs no memory to speak of
                # First of what waits on its channel; all that came behind it waits as bytes.
                self._defer(number, Deferred(1, method, content, header_size, body_size, frame_payload_max, self.parts))
                channel.busy = True
                self._stalled.append(channel)
                raise InputWaits
        self.published_count += 1
        try:
            channel.publish(method, content, header_size, body_size, frame_payload_max, alike)
        except NotOpenYet as waits:
            self.published_count -= 1
            later = Deferred(1, method, content, header_size, body_size, frame_payload_max, self.parts)
            self.wait_for_logs(channel, waits.destinations, later)
            return
        if self.returned:
            self.returned = False
            self._check_output()
        if self.offers > OFFERS_MAX:
            self._share_loop()

    def on_ack(self, number: i64, tag: i64, multiple: bool) -> None:
        channel = self.channel(number)
        if channel is None:
            raise _not_open(commands.BASIC_ACK)
        if channel.closing:
            return
        if channel.busy:
            writer = BytesWriter()
            writer.write(b"\x00\x3c\x00\x50")
            write_i64_be(writer, tag)
            writer.append(1 if multiple else 0)
            self._defer(number, Deferred(0, writer.getvalue(), b"", 0, 0, 0))
            return
        try:
            channel.ack(tag, multiple)
        except SoftError as error:
            error.method = commands.BASIC_ACK
            raise

    def on_method(self, number: i64, payload: bytes) -> None:
        method = read_u32(payload, 0)
        if number == 0 or self.state == HANDSHAKE:
            self.control.on_method(number, method, payload)
            return
        channel = self.channel(number)
        if channel is not None and channel.busy and method != commands.CHANNEL_CLOSE_OK:
            self._defer(number, Deferred(0, payload, b"", 0, 0, 0))
            return
        dispatch.dispatch(self, channel, number, method, payload)
        self._check_output()

    def on_publish_started(self, number: i64) -> None:
        if number == 0 or self.channel(number) is None:
            raise _not_open(BASIC_PUBLISH)

    def refusal(self, number: i64, method: bytes) -> AmqpError | None:
        channel = self.channel(number)
        if channel is None or channel.busy or channel.closing:
            return None  # what a busy channel waits for may be the exchange itself
        return channel.refusal(method)

    def resume_input(self) -> None:
        """Works off what came meanwhile: a client may send its whole handshake at once, or a thousand basic.get."""
        if not self._input_waits:
            return
        if self.gate.holds(ALARM):
            return  # `release_from_alarm` comes here again
        if self.gate.holds(OUTPUT) and (self.write_paused or self.output_bytes() >= OUTPUT_BYTES_MAX):
            return  # `flush` comes here again
        self.gate.release(OUTPUT | SHARING)
        self._input_waits = False
        if self._stalled:
            stalled = self._stalled
            self._stalled = []
            for channel in stalled:
                channel.busy = False
                self.work_off(channel)
            if self._input_waits:
                return
        rest = self.assembler.take_rest() + b"".join(self._input)
        self._input.clear()
        if rest and self.state < CLOSING:
            self.assembler.push(rest)
            self.turn.want()
            self.run()

    def want_share(self) -> None:
        """The others have their turn behind the publish at work."""
        self.offers = OFFERS_MAX + 1
        self.control.soon(self.turn.run)  # at once, also where it was put off

    def _share_loop(self) -> None:
        """A read of small publishes to a thousand queues each is seconds of work; it is done in slices.

        Raises: InputWaits.
        """
        self.offers = 0
        self.gate.hold(SHARING)
        self.control.soon(self.resume_input)
        raise InputWaits

    def _check_output(self) -> None:
        """A peer that asks and does not read is not listened to until it does. Raises: InputWaits."""
        if self.output_bytes() >= OUTPUT_BYTES_MAX and self.state == RUNNING:
            self.gate.hold(OUTPUT)
            raise InputWaits

    # -- busy channels -----------------------------------------------------------------------------------------------

    def _defer(self, number: i64, item: Deferred) -> None:
        waiting = self.deferred.get(number)
        if waiting is None:
            waiting = []
            self.deferred[number] = waiting
        waiting.append(item)
        self.deferred_bytes += item.size_bytes()
        if self.deferred_bytes > DEFERRED_BYTES_MAX:
            self.gate.hold(BACKLOG)

    def _shorten_backlog(self) -> None:
        if self.deferred_bytes <= DEFERRED_BYTES_MAX and self.gate.holds(BACKLOG):
            self.release_in_turn(BACKLOG)

    def finish_busy(self, channel: Channel, reply: bytes) -> None:
        """What the channel waited for is done: answers, then works off what came meanwhile."""
        channel.busy = False
        if self.state != RUNNING or self.channels.get(channel.number) is not channel:
            # Closed on both sides meanwhile; the number may be another channel's by now.
            return
        if not channel.closing:
            self.write(reply)
        self.work_off(channel)

    def try_again(self, channel: Channel, payload: bytes) -> None:
        """The command that made the channel busy is handed over once more, before those that came behind it."""
        self._again(channel, self.deferred_method(payload))

    def deferred_method(self, payload: bytes) -> Deferred:
        return Deferred(0, payload, b"", 0, 0, 0)

    def wait_for_logs(self, channel: Channel, destinations: list[Destination], item: Deferred) -> None:
        """The command needs queues whose logs are being opened: it is given once more when they are. The channel's
        later ones wait behind it, and so does connection.close: what was published before it is published.
        """
        channel.busy = True
        self.unfinished_count += 1
        # In a turn of the loop by itself: whoever opens is in the midst of something.
        when_open(destinations, partial(self.control.soon, partial(self.finish_waiting, channel, item)))

    def spread(self, channel: Channel, route: Route, message: Message) -> None:
        """The publish goes to its queues in slices, the channel's later commands wait behind it."""
        Spread(channel, route, message).start()

    def finish_waiting(self, channel: Channel, item: Deferred | None) -> None:
        """What the channel waited for is done, or is to be done now: `item`."""
        self.unfinished_count -= 1
        if item is not None:
            self._again(channel, item)
        else:
            self.finish_busy(channel, b"")
        if self.unfinished_count == 0 and self.close_waits:
            self.close_waits = False
            self.control.closed_by_client()

    def _again(self, channel: Channel, item: Deferred) -> None:
        if self.state == RUNNING and self.channels.get(channel.number) is channel:
            waiting = self.deferred.get(channel.number)
            if waiting is None:
                waiting = []
                self.deferred[channel.number] = waiting
            waiting.insert(0, item)
            self.deferred_bytes += item.size_bytes()
        self.finish_busy(channel, b"")

    def work_off(self, channel: Channel) -> None:
        waiting = self.deferred.pop(channel.number, None)
        if waiting is None:
            return
        number: i64 = channel.number
        index = 0
        while index < len(waiting) and self.state == RUNNING:
            # A client may send close, open and more behind what the channel waited for: the number is what counts.
            current = self.channels.get(number)
            if current is not None and current.busy:
                break
            item = waiting[index]
            index += 1
            self.deferred_bytes -= item.size_bytes()
            try:
                if item.kind == 1 and item.parts is not None:
                    self.on_large_publish(number, item.payload, item.content, item.parts, item.body_size)
                elif item.kind == 1:
                    self.on_publish(
                        number,
                        item.payload,
                        item.content,
                        item.header_size,
                        item.body_size,
                        item.frame_payload_max,
                        False,
                    )
                else:
                    self.on_method(number, item.payload)
            except InputWaits:
                self._input_waits = True
                current = self.channels.get(number)
                # One that the command itself has made busy is released by `finish_busy`.
                if current is not None and not current.busy:
                    current.busy = True
                    self._stalled.append(current)
            except Exception as error:  # noqa: BLE001  # what nobody expects is logged there
                self._close_for(error, number)
        if index < len(waiting):
            # Behind one that an alarm has sent back. Of a connection that is closing nothing more is asked.
            self.deferred[number] = self.deferred.pop(number, []) + waiting[index:]
        self._shorten_backlog()

    def fail_commit(self, channel: Channel) -> None:
        """A log failed under a transaction: nothing of it is promised. rabbit: 406, in these words."""
        channel.busy = False
        if self.state == RUNNING and self.channels.get(channel.number) is channel:
            self.fail_channel(channel.number, PreconditionFailed("partial tx completion", commands.TX_COMMIT))
            self.work_off(channel)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _close_for(self, error: Exception, number: i64) -> None:
        """What a command of that channel has raised closes the channel, or the connection."""
        if isinstance(error, SoftError):
            self.fail_channel(number, error)
        elif isinstance(error, HardError):
            self.fail(error)
        elif isinstance(error, OSError):
            log.error("a command failed: %s", error, extra={"connection": self.name})
            self.fail(ResourceError(str(error.strerror)))
        else:
            log.error("a bug of the broker", exc_info=error, extra={"connection": self.name})
            self.fail(InternalError(type(error).__name__))

    def fail_channel(self, number: i64, error: SoftError) -> None:
        """channel.close, and the channel is left to its client's close-ok."""
        if self.state != RUNNING:
            return
        channel = self.channels.get(number)
        if channel is None or channel.closing:
            return
        about: dict[str, object] = {"connection": self.name, "channel": number, "vhost": self.vhost.name}
        log.info("a channel is closed: %s", error.reply_text, extra=about)
        on_channel.release(channel)
        channel.closing = True
        self.assembler.drop_channel(number)
        close = commands.ChannelClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self.write(commands.frame(number, close))

    def fail(self, error: HardError) -> None:
        """connection.close; in the handshake only for those who asked for it, otherwise the socket just closes."""
        if self.state >= CLOSING:
            return
        self.control.fail(error)

    def shut(self, error: HardError) -> None:
        """Sends connection.close and waits for its answer; the control's timer bounds the wait."""
        self.state = CLOSING
        log.warning("a connection is closed: %s", error.reply_text, extra={"connection": self.name})
        self.control.release()
        close = commands.ConnectionClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self.write(commands.frame(0, close))
        # The answer has to be heard, whatever the publisher was held for.
        self.gate.open_for_good()
        rest = self.assembler.take_rest()
        self._input.clear()
        if not isinstance(error, FrameError) and CLOSE_OK_FRAME in rest:
            self.control.finished()

    # -- out ---------------------------------------------------------------------------------------------------------

    def want_flush(self) -> None:
        self.flush_wanted = True
        self.turn.flush_later(self)

    def write(self, data: bytes) -> None:
        """Adds whole frames to the output."""
        self.out.write(data)
        if not self.flush_wanted:
            self.want_flush()

    def send(self, number: int, command: commands.Command) -> None:
        self.write(commands.frame(number, command))

    def flush(self) -> None:
        self.flush_wanted = False
        if self._cuts or len(self.out) > 0:
            self.sent = True
            if not self._cuts:
                self.sent_bytes += len(self.out)
                self.transport.write(self._take_output())
            else:
                if len(self.out) > 0:
                    self.cut_output()
                if self.cut_bytes > WRITE_BYTES_MAX and self.state == RUNNING:
                    self._write_slice()
                else:
                    cuts = self._cuts
                    self._cuts = []
                    self.sent_bytes += self.cut_bytes
                    self.cut_bytes = 0
                    self.transport.writelines(cuts)
        if self.starved and not self.write_paused:
            self.resume_consumers()
        if self.gate.holds(OUTPUT):
            # When the transport has taken it, or says that it cannot.
            self.control.soon(self.resume_input)

    def _write_slice(self) -> None:
        """The first of what was set aside. The rest follows in the next turn, or when the socket has taken this."""
        cuts = self._cuts
        size: i64 = 0
        count: i64 = 0
        while size < WRITE_BYTES_MAX:  # there is more than that
            size += len(cuts[count])
            count += 1
        self._cuts = cuts[count:]
        self.cut_bytes -= size
        self.sent_bytes += size
        self.transport.writelines(cuts[:count])
        if self._cuts and not self.write_paused:
            self.want_flush()

    def _take_output(self) -> bytes:
        out = self.out
        data = out.getvalue()
        if len(data) > 2 * CUT_BYTES:
            self.out = BytesWriter()
        else:
            out.truncate(0)
        return data

    def cut_output(self) -> None:
        """Sets the output so far aside: one buffer that grows to a mebibyte would be two of them large."""
        self.cut_bytes += len(self.out)
        self._cuts.append(self._take_output())

    def write_content(self, number: i64, message: Message) -> None:
        """Adds the message's header and body frames to the output; a large body in parts that nobody joins."""
        if message.parts is None or message.body_size <= LARGE_BODY_BYTES:
            message.write_content(self.out, number, self.frame_payload_max)
        else:
            if len(self.out) > 0:
                self.cut_output()
            for piece in message.pieces(number, self.frame_payload_max):
                self._cuts.append(piece)
                self.cut_bytes += len(piece)
        if not self.flush_wanted:
            self.want_flush()

    def output_bytes(self) -> i64:
        """What waits for the end of the turn."""
        size: i64 = len(self.out)
        return size + self.cut_bytes

    def resume_consumers(self) -> None:
        """There is room to write again."""
        starved = self.starved
        if starved:
            self.starved = []
            for consumer in starved:
                consumer.queue.activate(consumer)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._cuts and not self.flush_wanted:
            self.want_flush()
        self.resume_consumers()
        if self.gate.holds(OUTPUT):
            self.resume_input()

    def send_ack(self, number: i64, sequence: i64, multiple: bool) -> None:
        self._send_answer(_ACK, number, sequence, 1 if multiple else 0)

    def send_nack(self, number: i64, sequence: i64) -> None:
        self._send_answer(_NACK, number, sequence, 0)

    def send_nack_multiple(self, number: i64, sequence: i64) -> None:
        self._send_answer(_NACK, number, sequence, 1)

    def _send_answer(self, method: bytes, number: i64, sequence: i64, bits: int) -> None:
        out = self.out
        out.append(1)
        out.append(number >> 8)
        out.append(number & 0xFF)
        out.write(method)
        write_i64_be(out, sequence)
        out.append(bits)
        out.append(0xCE)
        if not self.flush_wanted:
            self.want_flush()

    def send_return(self, number: i64, message: Message) -> None:
        """basic.return: no queue took a mandatory message. It precedes the message's confirm."""
        envelope = message.envelope
        back = commands.BasicReturn(NO_ROUTE, "NO_ROUTE", envelope.exchange, envelope.routing_key)
        self.returned = True
        self.write(commands.frame(number, back))
        self.write_content(number, message)

    def send_cancel(self, number: i64, tag: str) -> None:
        if self.state == RUNNING:
            self.write(self.cancel_frame(number, tag))

    def cancel_frame(self, number: i64, tag: str) -> bytes:
        """basic.cancel from the broker; empty for a client that has not asked for it."""
        if self.capabilities.get("consumer_cancel_notify") is not True:
            return b""
        return commands.frame(number, commands.BasicCancel(tag, True))

    # -- routes ------------------------------------------------------------------------------------------------------

    def resolve(self, method: bytes) -> tuple[Route, bool]:
        """A publish method's bytes to a route, and whether it may be cached."""
        return resolve.resolve(self, method)

    def forget_routes(self) -> None:
        for channel in self.channels.values():
            channel.forget_routes()

    def check_channel_count(self) -> None:
        if self.channel_max > 0 and len(self.channels) >= self.channel_max:
            raise NotAllowed(
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({self.channel_max})"
            )

    def set_frame_max(self, frame_max: int) -> None:
        """After tune-ok. frame_max: bytes of a whole frame; the peer may send eight more, as RabbitMQ lets it."""
        self.frame_payload_max = frame_max - FRAME_OVERHEAD_BYTES
        self.assembler.frame_payload_max = frame_max


def _not_open(method: i64) -> AmqpError:
    return ChannelError("expected 'channel.open'", method)
