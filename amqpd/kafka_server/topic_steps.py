"""Requests about many topics or configs: each one is a step with a result, and the steps are begun in slices."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.events import ACTOR, ORIGIN
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.errors import AccessRefused, AmqpError, PreconditionFailed
from amqpd.kafka_server.messages import (
    INVALID_TOPIC_EXCEPTION,
    POLICY_VIOLATION,
    STORAGE_ERROR,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from amqpd.kafka_server.pace import SLICE_S
from amqpd.kafka_server.topics import record_refusal
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.kafka_server.connection import Call

TEXT_MAX: Final = 80
"""Most characters of a name in an error text."""

_TEXTS: Final = {
    INVALID_TOPIC_EXCEPTION: "a topic name has 1 to 249 letters, digits, dots, dashes and underscores",
    TOPIC_AUTHORIZATION_FAILED: "the user has no permission for this topic",
    UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic",
    UNKNOWN_TOPIC_ID: "there is no topic with this id",
}


class RefusedTopic(Exception):
    """A topic cannot be created, deleted or described. The text is for the client."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or _TEXTS[code])
        self.code = code


class TopicSteps:
    """The topics of one request, which are begun in slices, and their results, in the same order.

    Args:
        done: called with the results when there is one for each topic; never if the connection is closed before.
    """

    def __init__(self, call: Call, done: Callable[[list[Any]], None]) -> None:
        self.call = call
        self._done = done
        self._waiting: deque[TopicStep] = deque()
        self._results: list[Any] = []
        self._open_count = 0

    def begin(self, steps: Sequence[TopicStep]) -> None:
        """Begin with these steps."""
        self._waiting.extend(steps)
        self._results = [None] * len(steps)
        self._open_count = len(steps)
        if steps:
            self._run_slice()
        else:
            self._done([])

    def _run_slice(self) -> None:
        """Begin topics until the slice is over, at some 200 us each."""
        until_s = time.monotonic() + SLICE_S
        while self._waiting:
            self._waiting.popleft().begin()
            if time.monotonic() >= until_s:
                break
        server = self.call.connection.server
        server.broker.turn.schedule()
        if self._waiting and not self.call.connection.closed:
            server.pace.later(self._run_slice)

    def finish(self, index: int, result: Any) -> None:
        """Take the result of one topic."""
        self._results[index] = result
        self._open_count -= 1
        if self._open_count == 0 and not self.call.connection.closed:
            self._done(self._results)


class TopicStep:
    """One topic of a request."""

    def __init__(self, steps: TopicSteps, index: int) -> None:
        self._steps = steps
        self._index = index

    @property
    def call(self) -> Call:
        return self._steps.call

    @property
    def topic_name(self) -> str:
        """Return the name for the audit log; an id if the request has no name."""
        raise NotImplementedError

    def work(self) -> None:
        """Do the work, and call `finish` now or later.

        Raises: RefusedTopic, DeclarationPending, AmqpError, MetadataError.
        """
        raise NotImplementedError

    def refusal(self, code: int, text: str) -> Any:
        """Return the result for an error."""
        raise NotImplementedError

    def finish(self, result: Any) -> None:
        """Store the topic's result."""
        self._steps.finish(self._index, result)

    def begin(self) -> None:
        """Begin, or begin again after the commit of another declaration of the name."""
        if not self.call.connection.closed:
            self.attempt(self.work)

    def attempt(self, work: Callable[[], None]) -> None:
        """Run `work` as the client's user. An error that it raises is the result, or makes the step begin again."""
        try:
            with acting_as(self.call.session):
                work()
        except DeclarationPending as name:
            name.wait(self._name_is_free)
        except RefusedTopic as error:
            if error.code == TOPIC_AUTHORIZATION_FAILED:
                record_refusal(self.call.session, self.call.api.name, f"topic '{self.topic_name}'")
            self.finish(self.refusal(error.code, str(error)))
        except AccessRefused as error:  # a name of the broker
            self.finish(self.refusal(INVALID_TOPIC_EXCEPTION, error.text))
        except PreconditionFailed as error:  # the queue limit, or a rule of the cluster
            self.finish(self.refusal(POLICY_VIOLATION, error.text))
        except AmqpError as error:
            self.finish(self.refusal(STORAGE_ERROR, error.text))
        except MetadataError as error:
            self.finish(self.refusal(STORAGE_ERROR, str(error)))

    def _name_is_free(self, error: BaseException | None) -> None:
        if error is None:
            self.begin()
        else:
            text = f"an earlier deletion of that name is not written yet: {error}"
            self.finish(self.refusal(STORAGE_ERROR, text))


@contextmanager
def acting_as(session: Session) -> Iterator[None]:
    """Set the acting user of events."""
    actor, origin = ACTOR.set(session.user.name), ORIGIN.set(session)
    try:
        yield
    finally:
        ORIGIN.reset(origin)
        ACTOR.reset(actor)


def short_name(name: str) -> str:
    """Return a name for an error text."""
    return name if len(name) <= TEXT_MAX else name[:TEXT_MAX] + "..."
