"""Replies that wait for a metadata commit; queue names; the per-turn budget for selectors.

A declaration, a binding or a deletion is answered when its rows are committed (broker/vhost). Until then the
channel is busy. A command that uses a name with a pending commit is retried after that commit.

Declarations and bindings of a busy channel run before the earlier ones are answered (`Channel.unanswered`), so one
commit has many of them. Their replies keep the order of the commands. A command that would fail, or wait, has no effect
then; it runs again when all earlier ones are answered, so its error comes after their replies.

A failed commit closes the connection with 506, because a restart would not show what the client asked for. A
bug in a commit callback closes it with 541.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from amqpd.broker.vhost.pending import CallbackFailed, DeclarationPending
from amqpd.channel.channel import AHEAD_MAX, Channel
from amqpd.errors import HardError, InternalError, NotFound, PreconditionFailed, ResourceError
from amqpd.protocol.field_table import read_u32
from amqpd.protocol.methods import Command, encode
from amqpd.routing.jms_topic import ERLANG_ARGUMENT, TEXT_ARGUMENTS
from amqpd.routing.selector import is_cached

COMMIT_FAILED: Final = "metadata could not be written"
NOT_DELETED: Final = "the deletion is not written yet; the broker retries it"


class NotAhead(Exception):
    """Raised by a command that cannot run before the earlier commands of its channel have their replies."""


class DeferredReply:
    """The reply to a command that waits for a metadata commit.

    The vhost calls `done`; the handler calls `reply` at its end. Either can be first.

    Args:
        failure: start of the error text if the commit fails.
    """

    def __init__(self, channel: Channel, command: Command, failure: str = COMMIT_FAILED) -> None:
        self._channel = channel
        self._command = command
        self._failure = failure
        self._reply: bytes | None = None
        self._is_done = False
        self._error: BaseException | None = None

    def done(self, error: BaseException | None) -> None:
        """Record the outcome of the commit. The vhost calls this at once if there was nothing to write."""
        self._is_done, self._error = True, error
        unanswered = self._channel.unanswered
        if unanswered and unanswered[0] is self:
            while unanswered and unanswered[0]._is_done:
                unanswered.pop(0)._send()

    def _send(self) -> None:
        """Send the reply of the channel's first command, or close the channel or the connection."""
        channel, error, reply = self._channel, self._error, self._reply
        assert reply is not None  # since `reply`
        if error is None and channel.unanswered:
            channel.owner.send_reply(channel, reply)
            return
        channel.ahead_max = AHEAD_MAX
        if error is None:
            channel.owner.finish_busy(channel, reply)
        elif isinstance(error, CallbackFailed):
            _fail(channel, InternalError(str(error)))
        elif not isinstance(error, DeclarationPending):
            _fail(channel, ResourceError(f"{self._failure}: {error}"))
        elif channel.unanswered:
            # Another connection deleted an object that the command uses. The commands behind it are done already.
            payload = encode(self._command)
            channel.owner.fail_channel(channel, NotFound(error.missing, read_u32(payload, 0)))
        else:
            # The same. The retried command reports that.
            channel.owner.retry_command(channel, encode(self._command))

    def reply(self, reply: bytes) -> None:
        """Send the reply now, or when the commit is done and all earlier commands have their replies.

        Empty for no-wait.

        Raises:
            DeclarationPending: the command uses a name with a pending commit.
        """
        channel = self._channel
        if isinstance(self._error, CallbackFailed):
            raise InternalError(str(self._error))
        if self._error is not None:
            raise self._error
        if not self._is_done or channel.unanswered:
            self._reply = reply
            channel.unanswered.append(self)
            channel.busy = True
        elif reply:
            channel.output.write(reply)


def retry_when_committed(channel: Channel, payload: bytes, name: DeclarationPending) -> None:
    """Retry the command when the commit of this name is done."""
    channel.busy = True
    name.wait(partial(_on_name_settled, channel, payload))


def _on_name_settled(channel: Channel, payload: bytes, error: BaseException | None) -> None:
    if error is None:
        channel.owner.retry_command(channel, payload)
    else:
        _fail(channel, ResourceError(f"an earlier deletion of that name is not written yet: {error}"))


def _fail(channel: Channel, error: HardError) -> None:
    channel.busy = False
    channel.owner.fail(error)


def normalize_name(name: str) -> str:
    """Return the name without CR and LF, as RabbitMQ does.

    Raises:
        PreconditionFailed: the name has a NUL.
    """
    if "\r" in name or "\n" in name:
        name = name.replace("\r", "").replace("\n", "")
    if "\0" in name:
        # spec: 1.1 (queue-name, exchange-name): no NUL
        raise PreconditionFailed("a name must not contain a NUL character")
    return name


def queue_name(channel: Channel, name: str) -> str:
    """Return the normalized name, or the queue declared last on this channel if it is empty.

    Raises:
        NotFound: the name is empty and the channel has declared no queue.
    """
    name = normalize_name(name)
    if name:
        return name
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


ARGUMENTS: Final = ["x-filter", *TEXT_ARGUMENTS, ERLANG_ARGUMENT]


def defer_for_selector_budget(channel: Channel, command: Command, arguments: Mapping[str, object]) -> bool:
    """Return True if the command must wait for the next turn, because its selectors exceed this turn's budget.

    Parsing a new selector costs up to 5 ms; a cached one costs nothing. One read can bring dozens of commands
    with selectors, so each turn parses a limited number of characters. Handlers call this first and return on
    True; the channel is busy until the retry.

    Raises:
        NotAhead: the same, for a channel that waits for commits.
    """
    size = 0
    for name in ARGUMENTS:
        text = arguments.get(name)
        if isinstance(text, str) and not is_cached(text):
            size += len(text)
    turn = channel.session.turn
    if size == 0 or turn.scans.can_parse(turn.number, size):
        return False
    if channel.unanswered:
        raise NotAhead
    channel.owner.retry_next_turn(channel, encode(command))
    return True
