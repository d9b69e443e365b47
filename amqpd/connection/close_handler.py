"""Closing of channels and connections, and the table of a connection's channels.

`CloseHandler.close_for` is the one place where an exception becomes a close:

- SoftError: channel.close.
- HardError: connection.close.
- OSError of the disk: connection.close with 506.
- Any other exception is a bug: connection.close with 541, and a traceback in the log.

States of a connection: HANDSHAKE until connection.open-ok, RUNNING, CLOSING after connection.close in either
direction (everything except close-ok is ignored), CLOSED without a socket.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.channel import handlers
from amqpd.channel.channel import Channel
from amqpd.errors import FrameError, HardError, InternalError, NotAllowed, ResourceError, SoftError
from amqpd.protocol import methods

if TYPE_CHECKING:
    from amqpd.connection.connection import Connection


@final
class ChannelTable:
    """The channels of a connection by number. A channel stays until both sides have closed it.

    Attributes:
        count_max: the negotiated channel_max; 0 for no limit.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, Channel] = {}
        self.count_max: i64 = 0
        # The last channel looked up, which is usually the next one too.
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
        """Raise NotAllowed if the table is full."""
        if self.count_max > 0 and len(self.by_number) >= self.count_max:
            raise NotAllowed(
                f"number of channels opened ({len(self.by_number)}) has reached the negotiated channel_max "
                f"({self.count_max})"
            )

    def add(self, channel: Channel) -> None:
        self.by_number[channel.number] = channel

    def remove(self, number: i64) -> None:
        self.by_number.pop(number, None)
        self._last_number = -1
        self._last = None

    def all(self) -> list[Channel]:
        """Return a snapshot, because channels can close during a loop over them."""
        return list(self.by_number.values())


log = logging.getLogger(__name__)

CLOSE_OK_FRAME: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"

HANDSHAKE: Final = 0
RUNNING: Final = 1
CLOSING: Final = 2
CLOSED: Final = 3


@final
class CloseHandler:
    """The state of one connection, and how it is closed."""

    def __init__(self, connection: Connection) -> None:
        self.name = connection.name
        self.state: i64 = HANDSHAKE
        self._control = connection.control
        self._read_pause = connection.read_pause
        self._output = connection.output
        self._parser = connection.parser
        self._channels = connection.channels

    def set_state(self, state: i64) -> None:
        """Set the state. No other code does."""
        self.state = state
        if state >= CLOSING:
            self._output.closing = True
            self._read_pause.closing = True

    def close_for(self, error: Exception, number: i64) -> None:
        """Close the channel or the connection because of an exception."""
        if isinstance(error, SoftError):
            self.fail_channel(number, error)
        elif isinstance(error, HardError):
            self.fail(error)
        elif isinstance(error, OSError):
            log.error("a command failed: %s", error, extra={"connection": self.name})
            self.fail(ResourceError(str(error.strerror)))
        else:
            log.error("a bug in amqpd, please report it", exc_info=error, extra={"connection": self.name})
            self.fail(InternalError(type(error).__name__))

    def fail_channel(self, number: i64, error: SoftError) -> None:
        """Send channel.close. The channel then waits for the client's close-ok."""
        if self.state != RUNNING:
            return
        channel = self._channels.get(number)
        if channel is None or channel.closing:
            return
        about: dict[str, object] = {"connection": self.name, "channel": number, "vhost": channel.session.vhost.name}
        log.info("a channel is closed: %s", error.reply_text, extra=about)
        handlers.release_channel(channel)
        channel.closing = True
        self._parser.ignore_channel(number)
        close = methods.ChannelClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self._output.write(methods.frame(number, close))

    def fail(self, error: HardError) -> None:
        """Close the connection with an error.

        In the handshake most errors only close the socket: see `ChannelZero.fail`.
        """
        if self.state < CLOSING:
            self._control.fail(error)

    def shut(self, error: HardError) -> None:
        """Send connection.close and wait for close-ok. `ChannelZero` limits the wait."""
        self.set_state(CLOSING)
        log.warning("a connection is closed: %s", error.reply_text, extra={"connection": self.name})
        self._control.release()
        close = methods.ConnectionClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self._output.write(methods.frame(0, close))
        # The client's close-ok must be read, even if the connection was paused.
        self._read_pause.disable()
        rest = self._parser.take_unparsed()
        if not isinstance(error, FrameError) and CLOSE_OK_FRAME in rest:
            self._control.close_socket()
