"""Answers that wait for the disk.

What is declared, bound or deleted is answered when its rows are committed (catalogue/declared.py). Until then the
channel is busy: its later commands keep their order, other channels go on. So it is while a name that the command asks
for is on its way; then the command is given once more.

A commit that fails closes the connection with 506: the client must not believe in what a restart would not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from amqpd.broker.catalogue.declared import Coming, OnItsWay
from amqpd.broker.queues.queue import Queue
from amqpd.channel.channel import Channel
from amqpd.errors import ResourceError
from amqpd.protocol.commands import Command, encode
from amqpd.storage.metadata.metadata import Change


def reply_made(channel: Channel, command: Command, coming: Coming | None, reply: bytes) -> None:
    """Makes what is coming, then sends `reply` (empty: nothing, no-wait). None: it is there already."""
    if coming is None or not coming.changes:
        if coming is not None:
            coming.apply()
        if reply:
            channel.output.write(reply)
        return
    channel.session.broker.declared.make(coming, partial(_made, channel, command, reply))
    channel.busy = True


def _made(channel: Channel, command: Command, reply: bytes, error: BaseException | None) -> None:
    if error is None:
        channel.owner.finish_busy(channel, reply)
    elif isinstance(error, OnItsWay):
        # What it leads to has gone meanwhile: the command finds that out.
        channel.owner.try_again(channel, encode(command))
    else:
        _fail(channel, f"metadata could not be written: {error}")


def reply_removed(channel: Channel, changes: Sequence[Change], reply: bytes, queues: Sequence[Queue] = ()) -> None:
    """Sends `reply` once neither the rows nor the queues' directories come back: see broker/catalogue/deletion.py."""
    if not changes:
        channel.session.broker.remove(changes, queues)
        if reply:
            channel.output.write(reply)
        return
    channel.busy = True
    channel.session.broker.remove(changes, queues, partial(_removed, channel, reply))


def _removed(channel: Channel, reply: bytes, error: BaseException | None) -> None:
    if error is None:
        channel.owner.finish_busy(channel, reply)
    else:
        _fail(channel, f"the deletion is not written yet and will be tried until it is: {error}")


def wait_for(channel: Channel, payload: bytes, name: OnItsWay) -> None:
    """The command of this payload is given once more when the name is there, or gone."""
    channel.busy = True
    name.wait(partial(_over, channel, payload))


def _over(channel: Channel, payload: bytes, error: BaseException | None) -> None:
    if error is None:
        channel.owner.try_again(channel, payload)
    else:
        _fail(channel, f"an earlier deletion of that name is not written yet: {error}")


def _fail(channel: Channel, text: str) -> None:
    channel.busy = False
    channel.owner.fail(ResourceError(text))
