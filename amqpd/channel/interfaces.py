"""What a channel asks of the connection that it is one of, besides its output.

A channel that waits (for a declaration's commit, a log that is being opened, a publish to very many queues) is `busy`:
its owner keeps its later commands in their order, and is told when they may go on. Channels know this base class, the
connection's side derives from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from amqpd.broker.consumer import Destination
    from amqpd.errors import HardError, SoftError


class ChannelState:
    """A channel as its owner sees it."""

    def __init__(self, number: i64) -> None:
        self.number = number
        # Closed by the broker, waiting for the client's close-ok.
        self.closing = False
        # The client closed it while our own close was on the way, and was answered.
        self.crossed = False
        # It waits, and its later commands behind it.
        self.busy = False


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionInterface:
    """Of all channels of one connection. Of a channel that has been closed meanwhile nothing is done any more."""

    def __init__(self) -> None:
        # The body of the large publish that is being handed on.
        self.parts: list[bytes] | None = None
        # Queues that publishes reached beyond one each since this connection last had the loop to itself.
        self.fanout_count: i64 = 0
        # A publish came back or reached several queues: its connection looks at its output and at `offers` behind it.
        self.needs_output_check = False
        # basic.qos global=false means one window per channel, as the specification has it.
        self.channel_wide_qos = False

    def call_soon(self, function: Callable[[], None]) -> None:
        """Calls it in the next turn of the loop."""
        raise NotImplementedError

    def yield_to_others(self) -> None:
        """The others have their turn behind the publish at work."""
        raise NotImplementedError

    def begin_waiting(self, channel: ChannelState) -> None:
        """The channel is busy until `finish_waiting`, and so long a client's connection.close waits too."""
        raise NotImplementedError

    def finish_waiting(self, channel: ChannelState) -> None:
        """What it waited for is done; its later commands go on."""
        raise NotImplementedError

    def finish_busy(self, channel: ChannelState, reply: bytes) -> None:
        """What the channel waited for is done: sends `reply`, then works off what came meanwhile."""
        raise NotImplementedError

    def retry_command(self, channel: ChannelState, payload: bytes) -> None:
        """The command that made the channel busy is given once more, before those that came behind it."""
        raise NotImplementedError

    def retry_next_turn(self, channel: ChannelState, payload: bytes) -> None:
        """The command is given once more in the next turn of the loop. Until then as `begin_waiting` has it."""
        raise NotImplementedError

    def retry_when_open(self, channel: ChannelState, destinations: Sequence[Destination], payload: bytes) -> None:
        """The command needs queues whose logs are being opened: it is given once more when they are. Until then as
        `begin_waiting` has it: what came before a close is done before it.
        """
        raise NotImplementedError

    def fail_channel(self, channel: ChannelState, error: SoftError) -> None:
        """Closes the channel, which is busy no more."""
        raise NotImplementedError

    def fail_channel_number(self, number: i64, error: SoftError) -> None:
        """Closes the channel of this number, out of the blue."""
        raise NotImplementedError

    def fail(self, error: HardError) -> None:
        """Closes the connection."""
        raise NotImplementedError

    def forget(self, channel: ChannelState) -> None:
        """The channel is closed on both sides: its number is free, what came for it before is thrown away."""
        raise NotImplementedError
