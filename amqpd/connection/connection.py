"""A client connection: it passes received commands to its channels.

The frame parser calls the `Connection`. Publishes and acks go straight to their channel. channel_zero.py handles
channel 0 and everything before connection.open-ok. channel/handlers.py handles all other methods.

Exceptions are caught in `Connection.run` and in pending_commands.py. `CloseHandler` alone turns them into closes.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from amqpd.connection.pending_commands import (
    OFFERS_MAX,
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
    from amqpd.connection.channel_zero import ChannelZero
    from amqpd.connection.transport import Transport

# A client with this much output in one turn must wait until it is sent.
OUTPUT_BYTES_MAX: Final = 2 * 1024 * 1024
# Bytes accepted before the login.
LOGIN_BYTES_MAX: Final = 16 * 1024


@final
class Connection(FrameHandler):
    """One client connection.

    Attributes:
        name: addresses of peer and broker, for logs and lists.
        read_pause: reasons for which the socket is not read.
        output: bytes that wait to be written.
        channels: channels by number.
        close_handler: state of the connection, and how it closes.
        pending_commands: commands that wait for busy channels.
        opened: the session, from connection.open on.
        received: bytes arrived since the last heartbeat tick.

    Args:
        sink_frame_max: maximum frame size in bytes before tune-ok.
    """

    def __init__(self, broker: Broker, wire: Transport, control: ChannelZero, name: str, sink_frame_max: int) -> None:
        turn: LoopTurn = broker.turn
        self.broker = broker
        self.turn = turn
        self.wire = wire
        self.control = control
        self.name = name
        self.read_pause = ReadPause(wire, turn)
        self.output = SocketWriter(wire, turn, self.read_pause, control)
        self.parser = FrameParser(self, sink_frame_max, broker.message_size_max_bytes)
        self.channels = ChannelTable()
        self.close_handler = CloseHandler(self)
        self.pending_commands = PendingCommands(self)
        self.read_pause.on_resume = self.resume_input
        self.opened: Session | None = None
        self.client_properties: dict[str, object] = {}
        self.capabilities: dict[str, object] = {}
        self.heartbeat_s: i64 = 0
        self.received = False
        self.received_bytes: i64 = 0
        self.publishes = False
        self.published_count: i64 = 0
        # Number of the last turn in which data arrived, and the bytes received in it.
        self._turn_number: i64 = 0
        self._turn_bytes: i64 = 0
        # Data received while processing is paused.
        self._input: list[bytes] = []
        # Bytes of incomplete message bodies, as last reported to `PartialBodyMemory`.
        self._reported_body_bytes: i64 = 0

    @property
    def session(self) -> Session:
        session = self.opened
        assert session is not None  # channels exist only after connection.open
        return session

    def set_client_properties(self, properties: Mapping[str, object]) -> None:
        self.client_properties = dict(properties)
        capabilities = properties.get("capabilities")
        self.capabilities = dict(capabilities) if isinstance(capabilities, dict) else {}

    def open(self, user: User, vhost: VHost) -> None:
        self.opened = Session(self.broker, vhost, user, self.name, self.wire.peer, self.capabilities)
        self.close_handler.set_state(RUNNING)

    def set_frame_max(self, frame_max: int) -> None:
        """Apply tune-ok.

        Args:
            frame_max: size of a whole frame in bytes. The client may send 8 more, as with RabbitMQ.
        """
        self.output.frame_payload_max = frame_max - FRAME_OVERHEAD_BYTES
        self.parser.frame_payload_max = frame_max

    def clear_route_cache(self) -> None:
        """Drop cached routes, because permissions changed."""
        for channel in self.channels.all():
            channel.publisher.forget_routes()

    def dispose(self) -> None:
        """Break all reference cycles after the socket is closed.

        Together with `ChannelZero.on_socket_closed` and `Transport.connection_lost`. Reference counting then frees the
        connection when the last turn or commit that refers to it ends; no garbage collection is needed.
        """
        self.close_handler.set_state(CLOSED)
        self.parser.dispose()
        self.read_pause.dispose()
        self.output.dispose()
        self.pending_commands.dispose()
        self._input.clear()

    # -- bytes -------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the socket. Raises nothing."""
        self.received = True
        self.received_bytes += len(data)
        ending = self.close_handler
        if ending.state >= CLOSING:
            self._receive_closing(data)
            return
        if self.pending_commands.close_waits:
            return  # nothing may follow connection.close
        if self.pending_commands.input_waits:
            self._input.append(data)
            if ending.state == HANDSHAKE and self.received_bytes > LOGIN_BYTES_MAX:
                ending.fail(FrameError("too much data before the login"))
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
                self.read_pause.pause_for_turn()
        finally:
            if alone:  # no other call ends this turn
                turn.end_read()

    def run(self) -> None:
        """Parse and process the received bytes."""
        parser = self.parser
        while True:
            try:
                parser.parse()
                break
            except ProcessingPaused:
                self.pending_commands.input_waits = True
                break
            except Exception as error:  # noqa: BLE001  # close_for logs unknown exceptions
                self.close_handler.close_for(error, parser.channel)
                if not isinstance(error, SoftError):
                    break
        turn = self.turn
        if self.publishes and (turn.is_republisher_full or turn.commits.unsynced_bytes > turn.unsynced_bytes_max):
            self.read_pause.pause_until_synced()
        if parser.buffered_bytes != self._reported_body_bytes:
            self._report_partial_bodies()

    def _receive_closing(self, data: bytes) -> None:
        """Look for close-ok after our connection.close. All other bytes are ignored."""
        self._input.clear()
        if CLOSE_OK_FRAME in data or (len(data) < 12 and CLOSE_OK_FRAME.endswith(data)):
            self.control.close_socket()

    def resume_input(self) -> None:
        """Process the data that arrived during a pause, unless another reason still applies."""
        backlog = self.pending_commands
        gate = self.read_pause
        output = self.output
        if not backlog.input_waits:
            return
        if gate.is_set(ALARM):
            return  # the end of the alarm calls this again
        if gate.is_set(OUTPUT) and (output.write_paused or output.output_bytes() >= OUTPUT_BYTES_MAX):
            return  # `flush` calls this again
        gate.resume(OUTPUT | SHARING)
        backlog.input_waits = False
        backlog.release_stalled()
        if backlog.input_waits:
            return
        rest = self.take_input()
        if rest and self.close_handler.state < CLOSING:
            self.parser.feed_data(rest)
            self.turn.schedule()
            self.run()

    def take_input(self) -> bytes:
        """Return and remove the unprocessed data. The caller must process it, except behind connection.close."""
        rest = self.parser.take_unparsed() + b"".join(self._input)
        self._input.clear()
        return rest

    def _yield_loop(self) -> None:
        """Let other connections run: publishes to thousands of queues each can take seconds.

        Raises:
            ProcessingPaused: always.
        """
        self.pending_commands.fanout_count = 0
        self.read_pause.pause(SHARING)
        self.control.call_soon(self.resume_input)
        raise ProcessingPaused

    def _check_output(self) -> None:
        """Pause processing if the client does not read its replies.

        Raises:
            ProcessingPaused: OUTPUT_BYTES_MAX bytes wait.
        """
        if self.output.output_bytes() >= OUTPUT_BYTES_MAX and self.close_handler.state == RUNNING:
            self.read_pause.pause(OUTPUT)
            raise ProcessingPaused

    # -- unfinished bodies -------------------------------------------------------------------------------------------

    def _report_partial_bodies(self) -> None:
        """Report the bytes of incomplete bodies to `PartialBodyMemory`."""
        parser = self.parser
        bodies = self.broker.unfinished_bodies
        while parser.buffered_bytes > bodies.limit_bytes and parser.newest_channel() > 0:
            # A single connection exceeds the limit with bodies on several channels. Their frames are interleaved,
            # so none can wait for another.
            text = f"more than {bodies.limit_bytes} bytes of incomplete messages"
            number = parser.newest_channel()
            self.close_handler.fail_channel(number, ContentTooLarge(text, BASIC_PUBLISH))
            parser.ignore_channel(number)  # also if the channel was not open
        kept = parser.buffered_bytes
        self._reported_body_bytes = kept
        bodies.update(self.read_pause, kept, parser.oldest_serial() if kept > 0 else 0)
        if kept > 0 and self.turn.alarmed:
            self.control.pause_for_alarm()

    def drop_partial_bodies(self) -> None:
        """Drop incomplete bodies, because the connection ends."""
        self.parser.drop_partial_contents()
        if self._reported_body_bytes > 0:
            self._report_partial_bodies()

    # -- commands ----------------------------------------------------------------------------------------------------

    def on_large_publish(self, number: i64, method: bytes, header: bytes, parts: list[bytes], body_size: i64) -> None:
        # `parts` is no argument of on_publish: mypyc calls a method slower if its signature differs from the base
        # class.
        self.pending_commands.parts = parts
        try:
            self.on_publish(number, method, header, len(header), body_size, 0, False)
        finally:
            self.pending_commands.parts = None

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
            item = self.pending_commands.deferred_publish(method, content, header_size, body_size, frame_payload_max)
            self.pending_commands.enqueue(number, item)
            return
        self.publishes = True
        if self.turn.alarmed:
            self.control.pause_for_alarm()
            if body_size > 0:  # rabbit: publishes without a body are not blocked
                # The first pending command of its channel. Data behind it waits unparsed.
                item = self.pending_commands.deferred_publish(
                    method, content, header_size, body_size, frame_payload_max
                )
                self.pending_commands.block(channel, item)
                raise ProcessingPaused
        self.published_count += 1
        try:
            channel.publish(method, content, header_size, body_size, frame_payload_max, same_as_last)
        except LogNotOpen as waits:
            self.published_count -= 1
            item = self.pending_commands.deferred_publish(method, content, header_size, body_size, frame_payload_max)
            self.pending_commands.process_when_open(channel, waits.destinations, item)
            return
        except AmqpError as error:
            error.method = BASIC_PUBLISH
            raise
        if self.pending_commands.needs_output_check:
            self._check_after_publish()

    def _check_after_publish(self) -> None:
        """Check output and fan-out after a publish that was returned or reached several queues.

        Raises:
            ProcessingPaused: too much output waits, or too many queues were reached.
        """
        if self.output.returned:
            self.output.returned = False
            self._check_output()
        self.pending_commands.needs_output_check = False
        if self.pending_commands.fanout_count > OFFERS_MAX:
            self._yield_loop()

    def on_ack(self, number: i64, tag: i64, multiple: bool) -> None:
        channel = self.channels.get(number)
        if channel is None:
            raise _not_open(methods.BASIC_ACK)
        if channel.closing:
            return
        if channel.busy:
            self.pending_commands.enqueue(number, deferred_ack(tag, multiple))
            return
        try:
            channel.ack(tag, multiple)
        except SoftError as error:
            error.method = methods.BASIC_ACK
            raise

    def on_method(self, number: i64, payload: bytes) -> None:
        method = read_u32(payload, 0)
        if number == 0 or self.close_handler.state == HANDSHAKE:
            self.control.on_method(number, method, payload)
            return
        channel = self.channels.get(number)
        if channel is not None and channel.busy and method != methods.CHANNEL_CLOSE_OK:
            if self.pending_commands.can_run_ahead(channel, method) and dispatch(channel, method, payload, True):
                self._check_output()
            else:
                self.pending_commands.enqueue(number, deferred_method(payload))
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
        """Handle channel.open.

        Raises:
            ChannelError: the channel is open.
            NotAllowed: channel_max channels are open.
        """
        if channel is not None:
            if not channel.closing:
                raise ChannelError("second 'channel.open' seen", methods.CHANNEL_OPEN)
            if not channel.is_close_crossed:
                # The client has not answered our channel.close yet, so it must not reuse the number.
                return
            # The client's own close was answered; it does not answer ours.
            self.pending_commands.free_channel(channel)
        self.channels.check_count()
        self.broker.admission.open_channel(self.session.user.name)
        self.channels.add(Channel(self.session, self.output, self.pending_commands, number))
        self.broker.channels.opened_count += 1
        channel_created(self.session, number)
        self.output.send(number, methods.ChannelOpenOk())

    def _closing_channel(self, channel: Channel, method: i64) -> None:
        """Handle a method on a channel that the broker closed and whose close-ok is due."""
        if method == methods.CHANNEL_CLOSE_OK:
            self.pending_commands.free_channel(channel)
        elif method == methods.CHANNEL_CLOSE:
            # Both closes crossed. A client that sent its own still answers ours (spec: 1.5.2.5).
            self.output.send(channel.number, methods.ChannelCloseOk())
            channel.is_close_crossed = True

    def on_publish_started(self, number: i64) -> None:
        if number == 0 or self.channels.get(number) is None:
            raise _not_open(BASIC_PUBLISH)

    def publish_error(self, number: i64, method: bytes) -> AmqpError | None:
        channel = self.channels.get(number)
        if channel is None or channel.busy or channel.closing:
            return None  # the channel may wait for the exchange itself
        error = channel.publisher.publish_error(method)
        if error is not None:
            error.method = BASIC_PUBLISH
        return error


def _not_open(method: i64) -> AmqpError:
    return ChannelError("expected 'channel.open'", method)
