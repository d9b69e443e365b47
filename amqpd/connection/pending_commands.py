"""Commands that wait for busy channels, in order. Declarations do not wait for other declarations of the channel.

A connection keeps DEFERRED_BYTES_MAX plus one read at most; then it stops reading (`read_pause.BACKLOG`). Commands
continue through the same `FrameHandler` methods by which they arrived, and `CloseHandler` handles their exceptions.
A command can make its channel busy again, or raise `ProcessingPaused`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from amqpd.broker.consumer import Destination
from amqpd.broker.queue.log_opener import when_open
from amqpd.channel.channel import Channel
from amqpd.channel.interfaces import ChannelState, ConnectionInterface
from amqpd.connection.close_handler import RUNNING
from amqpd.connection.read_pause import BACKLOG
from amqpd.errors import HardError, SoftError
from amqpd.protocol import methods
from amqpd.protocol.frame import FrameHandler

if TYPE_CHECKING:
    from amqpd.connection.connection import Connection

# Bytes of waiting commands above which the connection stops reading.
DEFERRED_BYTES_MAX: Final = 1024 * 1024
# Queues that a connection's publishes may reach before other connections run: some milliseconds of work.
OFFERS_MAX: Final = 8192
# Methods that can run before earlier ones of their channel have their replies.
AHEAD_METHODS: Final = frozenset(
    (methods.QUEUE_DECLARE, methods.QUEUE_BIND, methods.EXCHANGE_DECLARE, methods.EXCHANGE_BIND)
)
_NO_HANDLER: Final = FrameHandler()


class ProcessingPaused(Exception):
    """Raised to stop processing; data that arrives meanwhile is kept unparsed. `Connection.resume_input` continues.

    Raised after start-ok until the password is checked, when the client does not read its replies, when a publish
    meets an alarm, and when other connections must run. Also raised behind connection.close: that data is discarded.
    """


@final
class PendingCommand:
    """A command that arrived while its channel was busy.

    Args:
        kind: 0 for a method, 1 for a publish.
    """

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


def _has_room(channel: Channel) -> bool:
    """Return whether a busy channel waits for commits only, and for few enough of them."""
    return 0 < len(channel.unanswered) < channel.ahead_max


@final
class PendingCommands(ConnectionInterface):
    """The waiting commands of one connection.

    Attributes:
        deferred: waiting commands by channel number.
        unfinished_count: commands that wait for a log to open or are processed in slices.
        close_waits: the client's connection.close waits for all commands before it.
        input_waits: processing is paused (`ProcessingPaused`).

    Args:
        connection: handles the commands as if they had just arrived.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._sink: FrameHandler = connection
        self._turn = connection.turn
        self._control = connection.control
        self._read_pause = connection.read_pause
        self._output = connection.output
        self._parser = connection.parser
        self._channels = connection.channels
        self._close_handler = connection.close_handler
        self.deferred: dict[int, deque[PendingCommand]] = {}
        self.deferred_bytes: i64 = 0
        self.unfinished_count: i64 = 0
        self.close_waits = False
        # Channels that are busy only because processing is paused.
        self.input_waits = False
        self._stalled: list[Channel] = []

    # -- waiting commands ----------------------------------------------------------------------------------------------

    def deferred_publish(
        self, method: bytes, content: bytes, header_size: i64, body_size: i64, frame_payload_max: i64
    ) -> PendingCommand:
        return PendingCommand(1, method, content, header_size, body_size, frame_payload_max, self.parts)

    def enqueue(self, number: i64, item: PendingCommand) -> None:
        """Add a command behind those that wait on its channel."""
        waiting = self.deferred.get(number)
        if waiting is None:
            waiting = deque()
            self.deferred[number] = waiting
        waiting.append(item)
        self.deferred_bytes += item.size_bytes()
        if self.deferred_bytes > DEFERRED_BYTES_MAX:
            self._read_pause.pause(BACKLOG)

    def block(self, channel: Channel, item: PendingCommand | None) -> None:
        """Make the channel busy until processing resumes. `item` is then its first command."""
        if item is not None:
            self.enqueue(channel.number, item)
        channel.busy = True
        self._stalled.append(channel)

    def drop(self, number: i64) -> None:
        """Remove the channel and its waiting commands."""
        self._channels.remove(number)
        deferred = self.deferred.pop(number, None)
        if deferred is not None:
            for item in deferred:
                self.deferred_bytes -= item.size_bytes()
            self._resume_if_short()
        if self.close_waits:
            # Not now: the caller can be in the middle of the channel's commands.
            self._control.call_soon(self._close_if_idle)

    def _resume_if_short(self) -> None:
        if self.deferred_bytes <= DEFERRED_BYTES_MAX and self._read_pause.is_set(BACKLOG):
            self._read_pause.resume_in_later_turn(BACKLOG)

    def _insert_first(self, channel: ChannelState, item: PendingCommand) -> None:
        """Put the command before all that wait on the channel, and continue the channel."""
        if self._is_open(channel):
            waiting = self.deferred.get(channel.number)
            if waiting is None:
                waiting = deque()
                self.deferred[channel.number] = waiting
            waiting.appendleft(item)
            self.deferred_bytes += item.size_bytes()
        self.finish_busy(channel, b"")

    def _is_open(self, channel: ChannelState) -> bool:
        """Return False if the channel closed meanwhile. Another channel can have its number by now."""
        return self._close_handler.state == RUNNING and self._channels.get(channel.number) is channel

    # -- continuing ----------------------------------------------------------------------------------------------------

    def release_stalled(self) -> None:
        """Run the commands of channels that waited only for processing to resume."""
        if self._stalled:
            stalled = self._stalled
            self._stalled = []
            for channel in stalled:
                channel.busy = False
                self._run_waiting(channel.number)
            if self.close_waits:
                self._close_if_idle()

    def is_idle(self) -> bool:
        """Return whether all commands that arrived are done. Cost: 20 ns per channel."""
        if self.deferred or self.unfinished_count > 0:
            return False
        for channel in self._channels.all():  # noqa: SIM110  # a generator would cost a nested function when compiled
            if channel.busy:
                return False
        return True

    def _close_if_idle(self) -> None:
        if self.close_waits and self._close_handler.state == RUNNING and self.is_idle():
            self.close_waits = False
            self._control.on_client_close()

    def _run_waiting(self, number: i64) -> None:
        waiting = self.deferred.pop(number, None)
        if waiting is None:
            return
        while waiting and self._close_handler.state == RUNNING:
            # The waiting commands can include channel.close and channel.open, so look the channel up by number each
            # time.
            current = self._channels.get(number)
            if current is not None and current.busy and not _has_room(current):
                break
            item = waiting.popleft()
            self.deferred_bytes -= item.size_bytes()
            try:
                self._process(number, item)
            except ProcessingPaused:
                self.input_waits = True
                current = self._channels.get(number)
                # If the command itself made the channel busy, `finish_busy` releases it.
                if current is not None and not current.busy:
                    self.block(current, None)
            except Exception as error:  # noqa: BLE001  # close_for logs unknown exceptions
                self._close_handler.close_for(error, number)
            if number in self.deferred:
                break
        if waiting:
            # These stay behind a command that was put back. A closing connection drops them.
            waiting.extendleft(reversed(self.deferred.pop(number, ())))
            self.deferred[number] = waiting
        self._resume_if_short()

    def can_run_ahead(self, channel: Channel, method: i64) -> bool:
        """Return whether a command may run before the earlier commands of its busy channel have their replies.

        These are commands that only add something, and fail without a trace. A command behind one that waits does not
        overtake it. Each loop turn has a budget for them; when it is used up, the commands continue in the next turn.
        """
        if not _has_room(channel) or channel.number in self.deferred or channel.closing:
            return False
        if method not in AHEAD_METHODS:
            return False
        return channel.session.broker.catalogue.declared.budget.take(partial(self._continue_ahead, channel))

    def _continue_ahead(self, channel: Channel) -> None:
        if self._is_open(channel) and _has_room(channel):
            self._run_waiting(channel.number)

    def _process(self, number: i64, item: PendingCommand) -> None:
        sink = self._sink
        if item.kind == 0:
            sink.on_method(number, item.payload)
        elif item.parts is not None:
            sink.on_large_publish(number, item.payload, item.content, item.parts, item.body_size)
        else:
            sink.on_publish(
                number, item.payload, item.content, item.header_size, item.body_size, item.frame_payload_max, False
            )

    # -- called by channels --------------------------------------------------------------------------------------------

    def call_soon(self, function: Callable[[], None]) -> None:
        self._control.call_soon(function)

    def yield_to_others(self) -> None:
        self.fanout_count = OFFERS_MAX + 1
        self.needs_output_check = True
        self._control.call_soon(self._turn.run)  # run the turn now, even if it was postponed

    def finish_busy(self, channel: ChannelState, reply: bytes) -> None:
        channel.busy = False
        if self._is_open(channel):
            if not channel.closing:
                self._output.write(reply)
            self._run_waiting(channel.number)
        if self.close_waits:
            self._close_if_idle()

    def send_reply(self, channel: ChannelState, reply: bytes) -> None:
        if self._is_open(channel):
            if not channel.closing:
                self._output.write(reply)
            current = self._channels.get(channel.number)
            if current is not None and len(current.unanswered) == current.ahead_max // 2:
                self._run_waiting(channel.number)

    def retry_command(self, channel: ChannelState, payload: bytes) -> None:
        self._insert_first(channel, deferred_method(payload))

    def begin_waiting(self, channel: ChannelState) -> None:
        channel.busy = True
        self.unfinished_count += 1

    def finish_waiting(self, channel: ChannelState) -> None:
        self._finish_waiting(channel, None)

    def retry_next_turn(self, channel: ChannelState, payload: bytes) -> None:
        self.begin_waiting(channel)
        self._control.call_soon(partial(self._finish_waiting, channel, deferred_method(payload)))

    def retry_when_open(self, channel: ChannelState, destinations: Sequence[Destination], payload: bytes) -> None:
        self.process_when_open(channel, destinations, deferred_method(payload))

    def process_when_open(
        self, channel: ChannelState, destinations: Sequence[Destination], item: PendingCommand
    ) -> None:
        """Process `item` when the logs of these queues are open; as `retry_when_open`."""
        self.begin_waiting(channel)
        # In a loop turn of its own: the caller of these callbacks is in the middle of a change.
        when_open(destinations, partial(self._control.call_soon, partial(self._finish_waiting, channel, item)))

    def _finish_waiting(self, channel: ChannelState, item: PendingCommand | None) -> None:
        self.unfinished_count -= 1
        if item is not None:
            self._insert_first(channel, item)
        else:
            self.finish_busy(channel, b"")

    def fail_channel(self, channel: ChannelState, error: SoftError) -> None:
        channel.busy = False
        if self._is_open(channel):
            self._close_handler.fail_channel(channel.number, error)
            self._run_waiting(channel.number)
        if self.close_waits:
            self._close_if_idle()

    def fail_channel_number(self, number: i64, error: SoftError) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            self.fail_channel(channel, error)

    def fail(self, error: HardError) -> None:
        self._close_handler.fail(error)

    def free_channel(self, channel: ChannelState) -> None:
        self.drop(channel.number)
        self._parser.accept_channel(channel.number)

    def dispose(self) -> None:
        """Break reference cycles after the socket is closed: see Connection.dispose."""
        self._stalled.clear()
        self._sink = _NO_HANDLER
