"""Answers that wait for the disk.

What is declared, bound or deleted is answered when its rows are committed (broker/vhost). Until then the channel is
busy: its later commands keep their order, other channels go on. So it is while a name that the command asks for is on
its way; then the command is given once more.

A commit that fails closes the connection with 506: the client must not believe in what a restart would not show. A bug
behind a commit closes it with 541.

Names as they come from clients.

Selectors that come with a command: what it takes to understand them, spread over turns.

A new selector costs up to 5 ms (one that is among the last ones nothing), and a read may bring dozens of commands
that have one. So many characters of new ones are taken in a turn; a command that brings more is given once more in
the next one. Its channel is busy meanwhile, everybody else goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from amqpd.broker.vhost.pending import CallbackFailed, DeclarationPending
from amqpd.channel.channel import Channel
from amqpd.errors import HardError, InternalError, NotFound, PreconditionFailed, ResourceError
from amqpd.protocol.methods import Command, encode
from amqpd.routing.jms_topic import ERLANG_ARGUMENT, TEXT_ARGUMENTS
from amqpd.routing.selector import is_cached

COMMIT_FAILED: Final = "metadata could not be written"
NOT_DELETED: Final = "the deletion is not written yet and will be tried until it is"


class DeferredReply:
    """What a command is answered once it is done: `done` goes to the catalogue, `reply` ends the handler.

    failure: what a client is told when it could not be written.
    """

    def __init__(self, channel: Channel, command: Command, failure: str = COMMIT_FAILED) -> None:
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
        elif isinstance(error, DeclarationPending):
            # What it leads to has gone meanwhile: the command finds that out.
            self._channel.owner.retry_command(self._channel, encode(self._command))
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


def retry_when_settled(channel: Channel, payload: bytes, name: DeclarationPending) -> None:
    """The command of this payload is given once more when the name is there, or gone."""
    channel.busy = True
    name.wait(partial(_over, channel, payload))


def _over(channel: Channel, payload: bytes, error: BaseException | None) -> None:
    if error is None:
        channel.owner.retry_command(channel, payload)
    else:
        _fail(channel, ResourceError(f"an earlier deletion of that name is not written yet: {error}"))


def _fail(channel: Channel, error: HardError) -> None:
    channel.busy = False
    channel.owner.fail(error)


def normalize_name(name: str) -> str:
    """The name as it is used. rabbit: CR and LF are stripped. Raises: PreconditionFailed for a NUL."""
    if "\r" in name or "\n" in name:
        name = name.replace("\r", "").replace("\n", "")
    if "\0" in name:
        # spec: 1.1 (queue-name, exchange-name): no NUL
        raise PreconditionFailed("a name must not contain a NUL character")
    return name


def queue_name(channel: Channel, name: str) -> str:
    """An empty name means the queue last declared on this channel. Raises: NotFound when there is none."""
    name = normalize_name(name)
    if name:
        return name
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


ARGUMENTS: Final = ["x-filter", *TEXT_ARGUMENTS, ERLANG_ARGUMENT]


def defer_for_selector_budget(channel: Channel, command: Command, arguments: Mapping[str, object]) -> bool:
    """True: the command waits for the next turn, and is to do nothing now. For handlers, before they do anything."""
    size = 0
    for name in ARGUMENTS:
        text = arguments.get(name)
        if isinstance(text, str) and not is_cached(text):
            size += len(text)
    turn = channel.session.turn
    if size == 0 or turn.scans.may_parse(turn.number, size):
        return False
    channel.owner.retry_next_turn(channel, encode(command))
    return True
