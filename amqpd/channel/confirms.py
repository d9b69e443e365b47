"""Confirm mode: basic.ack and basic.nack for what a channel has published.

A publish is acked once every log that it has to be in is safe (publishing/unconfirmed.py); one that a queue has refused
is nacked at once, one whose log failed when that is known. An ack may stand for all before it, so it must not name one
that was nacked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from amqpd.broker.publish.confirms import Unconfirmed

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import Turn
    from amqpd.channel.frame_writer import Output


@final
class Confirms(Unconfirmed):
    """Of one channel, from its confirm.select on. Its sequences are the client's: the first publish is 1."""

    def __init__(self, turn: Turn, output: Output, number: i64) -> None:
        super().__init__(turn)
        self._output = output
        self._number = number
        # Refused and not yet passed by a confirm.
        self._nacked: set[int] = set()

    def nack(self) -> None:
        """A queue has refused the last publish. What comes before it may still wait for its log."""
        self._nacked.add(self.sequence)
        self._output.send_nack(self._number, self.sequence, False)

    def confirmed(self, first: i64, last: i64) -> None:
        if self._nacked:
            last = self._skip_nacked(last)
        if last >= first:
            self._output.send_ack(self._number, last, last > first)

    def refused(self, first: i64, last: i64) -> None:
        if self._nacked:
            last = self._skip_nacked(last)  # it has been told of those
        if last >= first:
            self._output.send_nack(self._number, last, last > first)

    def _skip_nacked(self, sequence: i64) -> i64:
        """The last sequence up to this one that is to be acked."""
        last = sequence
        nacked = self._nacked
        while last in nacked:
            last -= 1
        self._nacked = {each for each in nacked if each > sequence}
        return last
