"""A connection: what is read from one socket goes to its channels.

The connection is the parser's sink. Publishes and acks go straight to their channel; channel 0 and everything
before connection.open-ok to channel_zero.py; every other method to the handlers of its class. `run` catches their
exceptions, as do pending commands, and only `close_handler.py` turns an exception into a close.

Its parts have an idea each: `output` (what waits to be written), `gate` (why it is not read), `channels` (by number),
`backlog` (commands behind busy channels), `ending` (its state, and how it closes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.session import Session
from amqpd.channel.channel import Channel
from amqpd.channel.events import channel_created
from amqpd.channel.handlers import check_known, dispatch
from amqpd.connection.close_handler import (
    CLOSE_OK_FRAME,
    CLOSED,
    CLOSING,
    HANDSHAKE,
    RUNNING,
    ChannelTable,
    CloseHandler,
)
from amqpd.connection.interfaces import ChannelZeroBase, TransportBase
from amqpd.connection.pending_commands import (
    OFFERS_MAX,
    PendingCommand,
    PendingCommands,
    ProcessingPaused,
    deferred_ack,
    deferred_method,
)
from amqpd.connection.read_pause import ALARM, OUTPUT, SHARING, ReadPause
from amqpd.connection.socket_writer import SocketWriter
from amqpd.errors import AmqpError, ChannelError, CommandInvalid, ContentTooLarge, FrameError, SoftError
from amqpd.protocol import methods
from amqpd.protocol.field_table import read_u32
from amqpd.protocol.frame import BASIC_PUBLISH, FRAME_OVERHEAD_BYTES, FrameHandler
from amqpd.protocol.frame_parser import FrameParser

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost

# Answers that gather in one turn before the peer's further questions wait.
OUTPUT_BYTES_MAX: Final = 2 * 1024 * 1024
# What a peer may send before it has logged in.
LOGIN_BYTES_MAX: Final = 16 * 1024


@final
class Connection(FrameHandler):
    """One client. name: peer and own address, for logs and lists. sink_frame_max: bytes of a frame, until tuned."""

    def __init__(
        self, broker: Broker, wire: TransportBase, control: ChannelZeroBase, name: str, sink_frame_max: int
    ) -> None:
        turn: LoopTurn = broker.turn
        self.broker = broker
        self.turn = turn
        self.wire = wire
        self.control = control
        self.name = name
        self.gate = ReadPause(wire, turn)
        self.output = SocketWriter(wire, turn, self.gate, control)
        self.parser = FrameParser(self, sink_frame_max, broker.message_size_max_bytes)
        self.channels = ChannelTable()
        self.ending = CloseHandler(name, control, self.gate, self.output, self.parser, self.channels)
        self.backlog = PendingCommands(
            self, turn, control, self.gate, self.output, self.parser, self.channels, self.ending
        )
        self.gate.on_resume = self.resume_input
        # From connection.open on.
        self.opened: Session | None = None
        self.client_properties: dict[str, object] = {}
        self.capabilities: dict[str, object] = {}
        self.heartbeat_s: i64 = 0
        # Something came since the heartbeats looked.
        self.received = False
        self.received_bytes: i64 = 0
        self.publishes = False
        self.published_count: i64 = 0
        # What it sent since the turn with that number began.
        self._turn_number: i64 = 0
        self._turn_bytes: i64 = 0
        # What comes while nothing is worked off.
        self._input: list[bytes] = []
        # Of unfinished bodies, as the broker knows it.
        self._kept_bytes: i64 = 0

    @property
    def session(self) -> Session:
        session = self.opened
        assert session is not None  # channels exist only after connection.open
        return session

    def open(self, user: User, vhost: VHost) -> None:
        self.opened = Session(self.broker, vhost, user, self.name, self.wire.peer, self.capabilities)
        self.ending.enter(RUNNING)

    def set_frame_max(self, frame_max: int) -> None:
        """After tune-ok. frame_max: bytes of a whole frame; the peer may send eight more, as RabbitMQ lets it."""
        self.output.frame_payload_max = frame_max - FRAME_OVERHEAD_BYTES
        self.parser.frame_payload_max = frame_max

    def forget_routes(self) -> None:
        """Permissions have changed."""
        for channel in self.channels.all():
            channel.publisher.forget_routes()

    def let_go(self) -> None:
        """The socket is gone. Every circle of references through the connection is opened here or by its control's and
        its transport's `let_go`, so that it goes with the last that still names it (a turn, a commit under way), and
        needs no collector.
        """
        self.ending.enter(CLOSED)
        self.parser.dispose()
        self.gate.let_go()
        self.output.dispose()
        self.backlog.let_go()
        self._input.clear()

    # -- bytes -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the socket. Raises nothing."""
        self.received = True
        self.received_bytes += len(data)
        ending = self.ending
        if ending.state >= CLOSING:
            self._receive_closing(data)
            return
        if self.backlog.input_waits:
            self._input.append(data)
            if ending.state == HANDSHAKE and self.received_bytes > LOGIN_BYTES_MAX:
                ending.fail(FrameError("too much before the login"))
            return
        self.parser.feed_data(data)
        turn = self.turn
        alone = turn.begin_read(len(data))
        try:
            self.run()
            if self._turn_number != turn.number:
                self._turn_number = turn.number
                self._turn_bytes = 0
            self._turn_bytes += len(data)
            if turn.account_read(len(data), self._turn_bytes) and ending.state == RUNNING:
                self.gate.pause_for_turn()
        finally:
            if alone:  # whatever happens here: nobody else works this turn off
                turn.end_read()

    def run(self) -> None:
        """Works off what was received."""
        parser = self.parser
        while True:
            try:
                parser.parse()
                break
            except ProcessingPaused:
                self.backlog.input_waits = True
                break
            except Exception as error:  # noqa: BLE001  # what nobody expects is logged there
                self.ending.close_for(error, parser.channel)
                if not isinstance(error, SoftError):
                    break
        turn = self.turn
        if self.publishes and (turn.crowded or turn.commits.unsynced_bytes > turn.unsynced_bytes_max):
            self.gate.hold_for_sync()
        if parser.buffered_bytes != self._kept_bytes:
            self._keep_account()

    def _receive_closing(self, data: bytes) -> None:
        """connection.close is out: only its answer is of interest, wherever it stands among pipelined frames."""
        self._input.clear()
        if CLOSE_OK_FRAME in data or (len(data) < 12 and CLOSE_OK_FRAME.endswith(data)):
            self.control.finished()

    def resume_input(self) -> None:
        """Works off what came meanwhile: a client may send its whole handshake at once, or a thousand basic.get."""
        backlog = self.backlog
        gate = self.gate
        output = self.output
        if not backlog.input_waits:
            return
        if gate.holds(ALARM):
            return  # `release_from_alarm` comes here again
        if gate.holds(OUTPUT) and (output.write_paused or output.output_bytes() >= OUTPUT_BYTES_MAX):
            return  # `flush` comes here again
        gate.resume(OUTPUT | SHARING)
        backlog.input_waits = False
        backlog.release_stalled()
        if backlog.input_waits:
            return
        rest = self.take_input()
        if rest and self.ending.state < CLOSING:
            self.parser.feed_data(rest)
            self.turn.schedule()
            self.run()

    def take_input(self) -> bytes:
        """What came and is not worked off yet: whoever takes it does that."""
        rest = self.parser.take_unparsed() + b"".join(self._input)
        self._input.clear()
        return rest

    def _share_loop(self) -> None:
        """A read of small publishes to a thousand queues each is seconds of work; it is done in slices.

        Raises: InputWaits.
        """
        self.backlog.fanout_count = 0
        self.gate.pause(SHARING)
        self.control.soon(self.resume_input)
        raise ProcessingPaused

    def _check_output(self) -> None:
        """A peer that asks and does not read is not listened to until it does. Raises: InputWaits."""
        if self.output.output_bytes() >= OUTPUT_BYTES_MAX and self.ending.state == RUNNING:
            self.gate.pause(OUTPUT)
            raise ProcessingPaused

    # -- unfinished bodies -------------------------------------------------------------------------------------------

    def _keep_account(self) -> None:
        """What is kept of unfinished bodies has become more or less."""
        parser = self.parser
        bodies = self.broker.unfinished_bodies
        while parser.buffered_bytes > bodies.limit_bytes and parser.newest_channel() > 0:
            # One connection alone, by bodies on several channels: their frames are mixed, so none can wait for another.
            text = f"more than {bodies.limit_bytes} bytes of messages that are not complete"
            number = parser.newest_channel()
            self.ending.fail_channel(number, ContentTooLarge(text, BASIC_PUBLISH))
            parser.ignore_channel(number)  # whatever state it was in
        kept = parser.buffered_bytes
        self._kept_bytes = kept
        bodies.changed(self.gate, kept, parser.oldest_serial() if kept > 0 else 0)
        if kept > 0 and self.turn.alarmed:
            self.control.hold_for_alarm()

    def drop_bodies(self) -> None:
        """The connection ends: nothing that was begun will be complete."""
        self.parser.drop_partial_contents()
        if self._kept_bytes > 0:
            self._keep_account()

    # -- commands ----------------------------------------------------------------------------------------------------

    def on_large_publish(self, number: i64, method: bytes, header: bytes, parts: list[bytes], body_size: i64) -> None:
        # Beside the arguments: one more of them would cost every publish a call, as it is not the sink's.
        self.backlog.parts = parts
        try:
            self.on_publish(number, method, header, len(header), body_size, 0, False)
        finally:
            self.backlog.parts = None

    def on_publish(
        self,
        number: i64,
        method: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        same_as_last: bool,
    ) -> None:
        channel = self.channels.get(number)
        if channel is None:
            raise _not_open(BASIC_PUBLISH)
        if channel.closing:
            return
        if channel.busy:
            item = PendingCommand(1, method, content, header_size, body_size, frame_payload_max, self.backlog.parts)
            self.backlog.enqueue(number, item)
            return
        self.publishes = True
        if self.turn.alarmed:
            self.control.hold_for_alarm()
            if body_size > 0:  # rabbit: a message without a body needs no memory to speak of
                # First of what waits on its channel; all that came behind it waits as bytes.
                item = PendingCommand(1, method, content, header_size, body_size, frame_payload_max, self.backlog.parts)
                self.backlog.block(channel, item)
                raise ProcessingPaused
        self.published_count += 1
        try:
            channel.publish(method, content, header_size, body_size, frame_payload_max, same_as_last)
        except LogNotOpen as waits:
            self.published_count -= 1
            item = PendingCommand(1, method, content, header_size, body_size, frame_payload_max, self.backlog.parts)
            self.backlog.wait_with(channel, waits.destinations, item)
            return
        except AmqpError as error:
            error.method = BASIC_PUBLISH
            raise
        if self.backlog.needs_output_check:
            self._look_behind()

    def _look_behind(self) -> None:
        """A publish has come back, or reached several queues. Raises: InputWaits."""
        if self.output.returned:
            self.output.returned = False
            self._check_output()
        self.backlog.needs_output_check = False
        if self.backlog.fanout_count > OFFERS_MAX:
            self._share_loop()

    def on_ack(self, number: i64, tag: i64, multiple: bool) -> None:
        channel = self.channels.get(number)
        if channel is None:
            raise _not_open(methods.BASIC_ACK)
        if channel.closing:
            return
        if channel.busy:
            self.backlog.enqueue(number, deferred_ack(tag, multiple))
            return
        try:
            channel.ack(tag, multiple)
        except SoftError as error:
            error.method = methods.BASIC_ACK
            raise

    def on_method(self, number: i64, payload: bytes) -> None:
        method = read_u32(payload, 0)
        if number == 0 or self.ending.state == HANDSHAKE:
            self.control.on_method(number, method, payload)
            return
        channel = self.channels.get(number)
        if channel is not None and channel.busy and method != methods.CHANNEL_CLOSE_OK:
            self.backlog.enqueue(number, deferred_method(payload))
            return
        if method == methods.CHANNEL_OPEN:
            self._open_channel(channel, number)
        elif channel is None:
            if method != methods.CHANNEL_CLOSE_OK:
                check_known(method)
                raise _not_open(method)
            raise CommandInvalid("unimplemented method", method)
        elif channel.closing:
            self._closing_channel(channel, method)
        else:
            dispatch(channel, method, payload)
        self._check_output()

    def _open_channel(self, channel: Channel | None, number: i64) -> None:
        """channel.open. Raises: ChannelError when it is open, NotAllowed when there are too many."""
        if channel is not None:
            if not channel.closing:
                raise ChannelError("second 'channel.open' seen", methods.CHANNEL_OPEN)
            if not channel.crossed:
                # The client has not answered our close yet: it must not use the number before.
                return
            # Its own close was answered, and it leaves ours unanswered.
            self.backlog.forget(channel)
        self.channels.check_count()
        self.broker.admission.open_channel(self.session.user.name)
        self.channels.add(Channel(self.session, self.output, self.backlog, number))
        self.broker.channels.opened_count += 1
        channel_created(self.session, number)
        self.output.send(number, methods.ChannelOpenOk())

    def _closing_channel(self, channel: Channel, method: i64) -> None:
        """We have closed it, and wait for the client's answer."""
        if method == methods.CHANNEL_CLOSE_OK:
            self.backlog.forget(channel)
        elif method == methods.CHANNEL_CLOSE:
            # Both closes have crossed: a client that sent its own still answers ours (spec: 1.5.2.5).
            self.output.send(channel.number, methods.ChannelCloseOk())
            channel.crossed = True

    def on_publish_started(self, number: i64) -> None:
        if number == 0 or self.channels.get(number) is None:
            raise _not_open(BASIC_PUBLISH)

    def publish_error(self, number: i64, method: bytes) -> AmqpError | None:
        channel = self.channels.get(number)
        if channel is None or channel.busy or channel.closing:
            return None  # what a busy channel waits for may be the exchange itself
        error = channel.publish_error(method)
        if error is not None:
            error.method = BASIC_PUBLISH
        return error


def _not_open(method: i64) -> AmqpError:
    return ChannelError("expected 'channel.open'", method)
