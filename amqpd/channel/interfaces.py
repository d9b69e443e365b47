"""Interfaces between channels and their connection.

The connection derives from these classes, so that channels need not import it. A channel that waits is `busy`:
for a commit of metadata, for a log that is opened, or for a publish to many queues. The connection then queues
the channel's later commands in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from amqpd.broker.consumer import Destination
    from amqpd.errors import HardError, SoftError


class ChannelState:
    """The part of a channel that its connection uses.

    Attributes:
        closing: the broker sent channel.close and waits for close-ok.
        is_close_crossed: the client's channel.close crossed ours on the way, and was answered.
        busy: the channel waits; its later commands are queued.
    """

    def __init__(self, number: i64) -> None:
        self.number = number
        self.closing = False
        self.is_close_crossed = False
        self.busy = False


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionInterface:
    """The methods of a connection that its channels call. They do nothing for a channel that has closed meanwhile.

    Attributes:
        parts: the body of the large publish that is being processed.
        fanout_count: queues reached by publishes to several queues, since the connection last let others run.
        needs_output_check: a publish was returned or reached several queues. The connection then checks its output
            and `fanout_count`.
        channel_wide_qos: new channels begin with the specification's meaning of basic.qos: global=false sets one
            window for the channel.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] | None = None
        self.fanout_count: i64 = 0
        self.needs_output_check = False
        self.channel_wide_qos = False

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call `function` in the next loop turn."""
        raise NotImplementedError

    def yield_to_others(self) -> None:
        """Pause reading after the current publish, so that other connections get their turn."""
        raise NotImplementedError

    def begin_waiting(self, channel: ChannelState) -> None:
        """Make the channel busy until `finish_waiting`. A connection.close of the client waits too."""
        raise NotImplementedError

    def finish_waiting(self, channel: ChannelState) -> None:
        """End `begin_waiting` and run the queued commands."""
        raise NotImplementedError

    def finish_busy(self, channel: ChannelState, reply: bytes) -> None:
        """Send `reply` for the command that made the channel busy, then run the queued commands."""
        raise NotImplementedError

    def send_reply(self, channel: ChannelState, reply: bytes) -> None:
        """Send `reply` for a command of a channel that remains busy. Run its next declarations if it has room."""
        raise NotImplementedError

    def retry_command(self, channel: ChannelState, payload: bytes) -> None:
        """Run the command that made the channel busy once more, before the queued commands."""
        raise NotImplementedError

    def retry_next_turn(self, channel: ChannelState, payload: bytes) -> None:
        """Run the command once more in the next loop turn. Until then the channel waits as after `begin_waiting`."""
        raise NotImplementedError

    def retry_when_open(self, channel: ChannelState, destinations: Sequence[Destination], payload: bytes) -> None:
        """Run the command once more when the logs of these queues are open.

        Until then the channel waits as after `begin_waiting`, so the command is done before a later close.
        """
        raise NotImplementedError

    def fail_channel(self, channel: ChannelState, error: SoftError) -> None:
        """Close the busy channel with an error."""
        raise NotImplementedError

    def fail_channel_number(self, number: i64, error: SoftError) -> None:
        """Close the channel with an error at any time, busy or not."""
        raise NotImplementedError

    def fail(self, error: HardError) -> None:
        """Close the connection with an error."""
        raise NotImplementedError

    def free_channel(self, channel: ChannelState) -> None:
        """Free the number of a channel that is closed on both sides, and drop its queued commands."""
        raise NotImplementedError
