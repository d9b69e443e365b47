"""Messages of the broker's own that nobody waits for: copies of the firehose, events. Offered once, at most once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from amqpd.broker.destination import Destination, NotOpenYet
from amqpd.broker.message import Message
from amqpd.broker.publish.offering import offer, prepare
from amqpd.broker.queue.log_opener import when_open
from amqpd.errors import ResourceError

WAITING_MAX: Final = 500
"""Messages that wait for a queue to be opened: it is, before long, and further ones are lost."""


class Unasked:
    """want: asks for the end of a turn, which writes what was offered. lost_count: for its owner to tell and reset."""

    def __init__(self, want: Callable[[], object]) -> None:
        self.lost_count = 0
        self._want = want
        self._waiting_count = 0

    def offer(self, destinations: list[Destination], message: Message) -> None:
        there = [each for each in destinations if not each.gone()]
        try:
            prepare(there)
        except NotOpenYet as error:
            if self._waiting_count < WAITING_MAX:
                self._waiting_count += 1
                when_open(error.destinations, partial(self._opened, there, message))
            else:
                self.lost_count += 1
        except ResourceError:
            if len(there) > 1:  # one that cannot be opened does not keep it from the others
                for each in there:
                    self.offer([each], message)
            else:
                self.lost_count += 1
        else:
            offer(there, message, None)
            self._want()

    def _opened(self, destinations: list[Destination], message: Message) -> None:
        self._waiting_count -= 1
        self.offer(destinations, message)
