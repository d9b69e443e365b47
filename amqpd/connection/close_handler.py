"""A connection's state, and the one place where an error becomes a close.

SoftError closes the channel, HardError the connection; an OSError, which is a disk's, closes it with 506; anything else
is a bug of the broker (541, traceback in the log).

States: handshake (until connection.open-ok), running, closing (connection.close is sent or answered: everything but
close-ok is discarded), closed (the socket is gone).

A connection's channels by their numbers.
"""

from __future__ import annotations

import logging
from typing import Final, final

from mypy_extensions import i64

from amqpd.channel import handlers
from amqpd.channel.channel import Channel
from amqpd.channel.frame_writer import Output
from amqpd.connection.interfaces import ChannelZeroBase
from amqpd.connection.read_pause import ReadPause
from amqpd.errors import FrameError, HardError, InternalError, NotAllowed, ResourceError, SoftError
from amqpd.protocol import methods
from amqpd.protocol.frame_parser import FrameParser


@final
class ChannelTable:
    """count_max: as negotiated; 0: no limit. A channel stays until both sides have closed it."""

    def __init__(self) -> None:
        self.by_number: dict[int, Channel] = {}
        self.count_max: i64 = 0
        # The one asked for last: most often it is asked for again.
        self._last_number: i64 = -1
        self._last: Channel | None = None

    def get(self, number: i64) -> Channel | None:
        if number == self._last_number:
            return self._last
        channel = self.by_number.get(number)
        if channel is not None:
            self._last_number = number
            self._last = channel
        return channel

    def check_count(self) -> None:
        """Raises: NotAllowed where there is no room for another."""
        if self.count_max > 0 and len(self.by_number) >= self.count_max:
            raise NotAllowed(
                f"number of channels opened ({len(self.by_number)}) has reached the negotiated channel_max "
                f"({self.count_max})"
            )

    def add(self, channel: Channel) -> None:
        self.by_number[channel.number] = channel

    def forget(self, number: i64) -> None:
        self.by_number.pop(number, None)
        self._last_number = -1
        self._last = None

    def all(self) -> list[Channel]:
        """A snapshot: they may end while one goes through them."""
        return list(self.by_number.values())


log = logging.getLogger(__name__)

CLOSE_OK_FRAME: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"

HANDSHAKE: Final = 0
RUNNING: Final = 1
CLOSING: Final = 2
CLOSED: Final = 3


@final
class CloseHandler:
    """Of one connection, whose name it has for the log."""

    def __init__(
        self,
        name: str,
        control: ChannelZeroBase,
        gate: ReadPause,
        output: Output,
        parser: FrameParser,
        channels: ChannelTable,
    ) -> None:
        self.name = name
        self.state: i64 = HANDSHAKE
        self._control = control
        self._gate = gate
        self._output = output
        self._parser = parser
        self._channels = channels

    def enter(self, state: i64) -> None:
        """The connection's next state: each is entered by this call alone."""
        self.state = state
        if state >= CLOSING:
            self._output.closing = True
            self._gate.closing = True

    def close_for(self, error: Exception, number: i64) -> None:
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
        channel = self._channels.get(number)
        if channel is None or channel.closing:
            return
        about: dict[str, object] = {
            "connection": self.name,
            "channel": number,
            "vhost": channel.session.vhost.name,
        }
        log.info("a channel is closed: %s", error.reply_text, extra=about)
        handlers.channel_close_ok(channel)
        channel.closing = True
        self._parser.ignore_channel(number)
        close = methods.ChannelClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self._output.write(methods.frame(number, close))

    def fail(self, error: HardError) -> None:
        """connection.close; in the handshake only for those who asked for it, otherwise the socket just closes."""
        if self.state < CLOSING:
            self._control.fail(error)

    def shut(self, error: HardError) -> None:
        """Sends connection.close and waits for its answer; the control's timer bounds the wait."""
        self.enter(CLOSING)
        log.warning("a connection is closed: %s", error.reply_text, extra={"connection": self.name})
        self._control.release()
        close = methods.ConnectionClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self._output.write(methods.frame(0, close))
        # The answer has to be heard, whatever the publisher was held for.
        self._gate.disable()
        rest = self._parser.take_unparsed()
        if not isinstance(error, FrameError) and CLOSE_OK_FRAME in rest:
            self._control.finished()
