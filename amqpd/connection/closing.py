"""A connection's state, and the one place where an error becomes a close.

SoftError closes the channel, HardError the connection; an OSError, which is a disk's, closes it with 506; anything else
is a bug of the broker (541, traceback in the log).

States: handshake (until connection.open-ok), running, closing (connection.close is sent or answered: everything but
close-ok is discarded), closed (the socket is gone).
"""

from __future__ import annotations

import logging
from typing import Final, final

from mypy_extensions import i64

from amqpd.channel import on_channel
from amqpd.channel.frame_writer import Output
from amqpd.connection.channels import Channels
from amqpd.connection.interfaces import Control
from amqpd.connection.read_pause import ReadGate
from amqpd.errors import FrameError, HardError, InternalError, ResourceError, SoftError
from amqpd.protocol import commands
from amqpd.protocol.frame_parser import Assembler

log = logging.getLogger(__name__)

CLOSE_OK_FRAME: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"

HANDSHAKE: Final = 0
RUNNING: Final = 1
CLOSING: Final = 2
CLOSED: Final = 3


@final
class Ending:
    """Of one connection, whose name it has for the log."""

    def __init__(
        self,
        name: str,
        control: Control,
        gate: ReadGate,
        output: Output,
        assembler: Assembler,
        channels: Channels,
    ) -> None:
        self.name = name
        self.state: i64 = HANDSHAKE
        self._control = control
        self._gate = gate
        self._output = output
        self._assembler = assembler
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
        on_channel.release(channel)
        channel.closing = True
        self._assembler.drop_channel(number)
        close = commands.ChannelClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self._output.write(commands.frame(number, close))

    def fail(self, error: HardError) -> None:
        """connection.close; in the handshake only for those who asked for it, otherwise the socket just closes."""
        if self.state < CLOSING:
            self._control.fail(error)

    def shut(self, error: HardError) -> None:
        """Sends connection.close and waits for its answer; the control's timer bounds the wait."""
        self.enter(CLOSING)
        log.warning("a connection is closed: %s", error.reply_text, extra={"connection": self.name})
        self._control.release()
        close = commands.ConnectionClose(error.code, error.reply_text, error.method >> 16, error.method & 0xFFFF)
        self._output.write(commands.frame(0, close))
        # The answer has to be heard, whatever the publisher was held for.
        self._gate.open_for_good()
        rest = self._assembler.take_rest()
        if not isinstance(error, FrameError) and CLOSE_OK_FRAME in rest:
            self._control.finished()
