"""Answers that wait for the disk.

What is declared, bound or deleted is answered when its rows are committed (broker/catalogue). Until then the channel is
busy: its later commands keep their order, other channels go on. So it is while a name that the command asks for is on
its way; then the command is given once more.

A commit that fails closes the connection with 506: the client must not believe in what a restart would not show. A bug
behind a commit closes it with 541.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from amqpd.broker.vhost.pending import CallbackFailed, OnItsWay
from amqpd.channel.channel import Channel
from amqpd.errors import HardError, InternalError, ResourceError
from amqpd.protocol.commands import Command, encode

NOT_MADE: Final = "metadata could not be written"
NOT_DELETED: Final = "the deletion is not written yet and will be tried until it is"


class Answer:
    """What a command is answered once it is done: `done` goes to the catalogue, `reply` ends the handler.

    failure: what a client is told when it could not be written.
    """

    def __init__(self, channel: Channel, command: Command, failure: str = NOT_MADE) -> None:
        self._channel = channel
        self._command = command
        self._failure = failure
        self._reply: bytes | None = None
        self._is_done = False
        self._error: BaseException | None = None

    def done(self, error: BaseException | None) -> None:
        """The catalogue's answer; at once when nothing has to be written."""
        if self._reply is None:
            self._is_done, self._error = True, error
        elif error is None:
            self._channel.owner.finish_busy(self._channel, self._reply)
        elif isinstance(error, OnItsWay):
            # What it leads to has gone meanwhile: the command finds that out.
            self._channel.owner.try_again(self._channel, encode(self._command))
        elif isinstance(error, CallbackFailed):
            _fail(self._channel, InternalError(str(error)))
        else:
            _fail(self._channel, ResourceError(f"{self._failure}: {error}"))

    def reply(self, reply: bytes) -> None:
        """Sends it, now or when it is done; empty: nothing, no-wait. Raises: OnItsWay."""
        if not self._is_done:
            self._reply = reply
            self._channel.busy = True
        elif isinstance(self._error, CallbackFailed):
            raise InternalError(str(self._error))
        elif self._error is not None:
            raise self._error
        elif reply:
            self._channel.output.write(reply)


def wait_for(channel: Channel, payload: bytes, name: OnItsWay) -> None:
    """The command of this payload is given once more when the name is there, or gone."""
    channel.busy = True
    name.wait(partial(_over, channel, payload))


def _over(channel: Channel, payload: bytes, error: BaseException | None) -> None:
    if error is None:
        channel.owner.try_again(channel, payload)
    else:
        _fail(channel, ResourceError(f"an earlier deletion of that name is not written yet: {error}"))


def _fail(channel: Channel, error: HardError) -> None:
    channel.busy = False
    channel.owner.fail(error)
