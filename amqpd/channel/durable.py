"""Answers that wait for the disk.

A change of something durable is made in memory at once and answered when its rows are committed. Until then the channel
is busy: its later commands keep their order, other channels go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from amqpd.channel.channel import Channel
from amqpd.errors import ResourceError
from amqpd.storage.metadata import Change

After = Callable[[], None]


def reply_after(
    channel: Channel, changes: Sequence[Change], reply: bytes, after: After | None = None, durable: bool = False
) -> None:
    """Sends `reply` (empty: nothing, no-wait) once `changes` are durable; `after` is called first.

    durable: the answer speaks of something durable, which another client may have declared a moment ago: without
    changes of its own it waits for those that are on their way.

    A commit that fails closes the connection with 506: the client must not believe in what a restart would not show.
    """
    if not changes and not (durable and channel.connection.broker.commits_pending):
        if after is not None:
            after()
        if reply:
            channel.connection.write(reply)
        return
    channel.busy = True
    channel.connection.broker.commit(changes, partial(_committed, channel, reply, after))


def _committed(channel: Channel, reply: bytes, after: After | None, error: BaseException | None) -> None:
    if error is not None:
        channel.busy = False
        channel.connection.fail(ResourceError(f"metadata could not be written: {error}"))
        return
    if after is not None:
        after()
    channel.connection.finish_busy(channel, reply)
