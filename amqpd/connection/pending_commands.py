"""Commands that wait behind busy channels, in their order, and go on when what the channel waits for is done.

Kept is at most DEFERRED_BYTES_MAX and what was in one read: then the connection is not read (`read_gate.BACKLOG`).
Commands continue through the calls of the sink that they arrived by; an exception becomes a close (close_handler.py). A
command may make its channel busy again, or meet a reason to work off nothing more for now (`ProcessingPaused`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from amqpd.broker.consumer import Destination
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.queue.log_opener import when_open
from amqpd.channel.channel import Channel
from amqpd.channel.frame_writer import Output
from amqpd.channel.interfaces import ChannelState, ConnectionInterface
from amqpd.connection.close_handler import RUNNING, ChannelTable, CloseHandler
from amqpd.connection.interfaces import ChannelZeroBase
from amqpd.connection.read_pause import BACKLOG, ReadPause
from amqpd.errors import HardError, SoftError
from amqpd.protocol.frame import FrameHandler
from amqpd.protocol.frame_parser import FrameParser

# Commands kept for a busy channel before reading stops.
DEFERRED_BYTES_MAX: Final = 1024 * 1024
# Queues that one connection's publishes may reach before the others have their turn: some milliseconds.
OFFERS_MAX: Final = 8192
_NO_SINK: Final = FrameHandler()


class ProcessingPaused(Exception):
    """Nothing more is worked off for now; what comes is kept as bytes. `Connection.resume_input` goes on.

    Behind start-ok until the password is checked, while the peer does not read what it has asked for, behind a publish
    that met an alarm, and while other connections have their turn.
    """


@final
class PendingCommand:
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


def deferred_method(payload: bytes) -> PendingCommand:
    return PendingCommand(0, payload, b"", 0, 0, 0)


def deferred_ack(tag: i64, multiple: bool) -> PendingCommand:
    writer = BytesWriter()
    writer.write(b"\x00\x3c\x00\x50")
    write_i64_be(writer, tag)
    writer.append(1 if multiple else 0)
    return deferred_method(writer.getvalue())


@final
class PendingCommands(ConnectionInterface):
    """Of one connection. sink: takes the commands as if they had just come."""

    def __init__(
        self,
        sink: FrameHandler,
        turn: LoopTurn,
        control: ChannelZeroBase,
        gate: ReadPause,
        output: Output,
        parser: FrameParser,
        channels: ChannelTable,
        ending: CloseHandler,
    ) -> None:
        super().__init__()
        self._sink = sink
        self._turn = turn
        self._control = control
        self._gate = gate
        self._output = output
        self._parser = parser
        self._channels = channels
        self._ending = ending
        self.deferred: dict[int, list[PendingCommand]] = {}
        self.deferred_bytes: i64 = 0
        # Commands that wait for a log to be opened, or reach very many; whether the client's close waits for them.
        self.unfinished_count: i64 = 0
        self.close_waits = False
        # Nothing is worked off for now (InputWaits), and the channels whose waiting commands wait for that alone.
        self.input_waits = False
        self._stalled: list[Channel] = []

    # -- what waits --------------------------------------------------------------------------------------------------

    def enqueue(self, number: i64, item: PendingCommand) -> None:
        """Behind all that waits on its channel."""
        waiting = self.deferred.get(number)
        if waiting is None:
            waiting = []
            self.deferred[number] = waiting
        waiting.append(item)
        self.deferred_bytes += item.size_bytes()
        if self.deferred_bytes > DEFERRED_BYTES_MAX:
            self._gate.pause(BACKLOG)

    def block(self, channel: Channel, item: PendingCommand | None) -> None:
        """The channel waits until input goes on, and `item` is the first that does then."""
        if item is not None:
            self.enqueue(channel.number, item)
        channel.busy = True
        self._stalled.append(channel)

    def drop(self, number: i64) -> None:
        """The channel of this number is gone, and what waits behind it."""
        self._channels.forget(number)
        deferred = self.deferred.pop(number, None)
        if deferred is not None:
            for item in deferred:
                self.deferred_bytes -= item.size_bytes()
            self._shorten()

    def _shorten(self) -> None:
        if self.deferred_bytes <= DEFERRED_BYTES_MAX and self._gate.holds(BACKLOG):
            self._gate.release_in_turn(BACKLOG)

    def _first(self, channel: ChannelState, item: PendingCommand) -> None:
        """The item goes before all that waits on the channel, and the channel goes on."""
        if self._is_open(channel):
            waiting = self.deferred.get(channel.number)
            if waiting is None:
                waiting = []
                self.deferred[channel.number] = waiting
            waiting.insert(0, item)
            self.deferred_bytes += item.size_bytes()
        self.finish_busy(channel, b"")

    def _is_open(self, channel: ChannelState) -> bool:
        """False: closed on both sides meanwhile; the number may be another channel's by now."""
        return self._ending.state == RUNNING and self._channels.get(channel.number) is channel

    # -- what goes on ------------------------------------------------------------------------------------------------

    def release_stalled(self) -> None:
        """Input goes on: first with what waits on channels for that."""
        if self._stalled:
            stalled = self._stalled
            self._stalled = []
            for channel in stalled:
                channel.busy = False
                self._work_off(channel.number)

    def _work_off(self, number: i64) -> None:
        waiting = self.deferred.pop(number, None)
        if waiting is None:
            return
        index = 0
        while index < len(waiting) and self._ending.state == RUNNING:
            # A client may send close, open and more behind what the channel waited for: the number is what counts.
            current = self._channels.get(number)
            if current is not None and current.busy:
                break
            item = waiting[index]
            index += 1
            self.deferred_bytes -= item.size_bytes()
            try:
                self._give(number, item)
            except ProcessingPaused:
                self.input_waits = True
                current = self._channels.get(number)
                # One that the command itself has made busy is released by `finish_busy`.
                if current is not None and not current.busy:
                    self.block(current, None)
            except Exception as error:  # noqa: BLE001  # what nobody expects is logged there
                self._ending.close_for(error, number)
        if index < len(waiting):
            # Behind one that an alarm has sent back. Of a connection that is closing nothing more is asked.
            self.deferred[number] = self.deferred.pop(number, []) + waiting[index:]
        self._shorten()

    def _give(self, number: i64, item: PendingCommand) -> None:
        sink = self._sink
        if item.kind == 0:
            sink.on_method(number, item.payload)
        elif item.parts is not None:
            sink.on_large_publish(number, item.payload, item.content, item.parts, item.body_size)
        else:
            sink.on_publish(
                number, item.payload, item.content, item.header_size, item.body_size, item.frame_payload_max, False
            )

    # -- asked by channels -------------------------------------------------------------------------------------------

    def call_soon(self, function: Callable[[], None]) -> None:
        self._control.soon(function)

    def yield_to_others(self) -> None:
        self.fanout_count = OFFERS_MAX + 1
        self.needs_output_check = True
        self._control.soon(self._turn.run)  # at once, also where it was put off

    def finish_busy(self, channel: ChannelState, reply: bytes) -> None:
        channel.busy = False
        if self._is_open(channel):
            if not channel.closing:
                self._output.write(reply)
            self._work_off(channel.number)

    def retry_command(self, channel: ChannelState, payload: bytes) -> None:
        self._first(channel, deferred_method(payload))

    def begin_waiting(self, channel: ChannelState) -> None:
        channel.busy = True
        self.unfinished_count += 1

    def finish_waiting(self, channel: ChannelState) -> None:
        self._finish_waiting(channel, None)

    def retry_next_turn(self, channel: ChannelState, payload: bytes) -> None:
        self.begin_waiting(channel)
        self._control.soon(partial(self._finish_waiting, channel, deferred_method(payload)))

    def retry_when_open(self, channel: ChannelState, destinations: Sequence[Destination], payload: bytes) -> None:
        self.wait_with(channel, destinations, deferred_method(payload))

    def wait_with(self, channel: ChannelState, destinations: Sequence[Destination], item: PendingCommand) -> None:
        """As `wait_for_logs`: `item` needs these queues."""
        self.begin_waiting(channel)
        # In a turn of the loop by itself: whoever opens is in the midst of something.
        when_open(destinations, partial(self._control.soon, partial(self._finish_waiting, channel, item)))

    def _finish_waiting(self, channel: ChannelState, item: PendingCommand | None) -> None:
        self.unfinished_count -= 1
        if item is not None:
            self._first(channel, item)
        else:
            self.finish_busy(channel, b"")
        if self.unfinished_count == 0 and self.close_waits:
            self.close_waits = False
            self._control.closed_by_client()

    def fail_channel(self, channel: ChannelState, error: SoftError) -> None:
        channel.busy = False
        if self._is_open(channel):
            self._ending.fail_channel(channel.number, error)
            self._work_off(channel.number)

    def fail_channel_number(self, number: i64, error: SoftError) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            self.fail_channel(channel, error)

    def fail(self, error: HardError) -> None:
        self._ending.fail(error)

    def forget(self, channel: ChannelState) -> None:
        self.drop(channel.number)
        self._parser.accept_channel(channel.number)

    def let_go(self) -> None:
        """The socket is gone: see Connection.let_go."""
        self._stalled.clear()
        self._sink = _NO_SINK
