"""confirm.select."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.channel.confirms import Confirms
from amqpd.errors import PreconditionFailed
from amqpd.protocol import commands
from amqpd.protocol.commands import ConfirmSelect, ConfirmSelectOk

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel


def select(channel: Channel, command: ConfirmSelect) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.session.turn, channel.output, channel.number)
    if not command.no_wait:
        channel.output.send(channel.number, ConfirmSelectOk())


HANDLERS: dict[int, Any] = {commands.CONFIRM_SELECT: select}
