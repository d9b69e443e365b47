"""Selectors that come with a command: what it takes to understand them, spread over turns.

A new selector costs up to 5 ms (one that is among the last ones nothing), and a read may bring dozens of commands
that have one. So many characters of new ones are taken in a turn; a command that brings more is given once more in
the next one. Its channel is busy meanwhile, everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from amqpd.protocol.commands import Command, encode
from amqpd.routing.jms_topic import ERLANG_ARGUMENT, TEXT_ARGUMENTS
from amqpd.routing.selector import remembered

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel

ARGUMENTS: Final = ["x-filter", *TEXT_ARGUMENTS, ERLANG_ARGUMENT]


def wait_for_share(channel: Channel, command: Command, arguments: Mapping[str, object]) -> bool:
    """True: the command waits for the next turn, and is to do nothing now. For handlers, before they do anything."""
    size = 0
    for name in ARGUMENTS:
        text = arguments.get(name)
        if isinstance(text, str) and not remembered(text):
            size += len(text)
    turn = channel.session.turn
    if size == 0 or turn.scans.may_parse(turn.number, size):
        return False
    channel.owner.try_later(channel, encode(command))
    return True
