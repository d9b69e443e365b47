"""Requests about many topics or configs: each one is a step with a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.events import ACTOR, ORIGIN
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.errors import AccessRefused, AmqpError, PreconditionFailed
from amqpd.kafka_server import errors
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.topics import record_refusal
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.kafka_server.connection import Call

TEXT_MAX: Final = 80
"""Most characters of a name in an error text."""

_TEXTS: Final = {
    errors.INVALID_TOPIC_EXCEPTION: "a topic name has 1 to 249 letters, digits, dots, dashes and underscores",
    errors.TOPIC_AUTHORIZATION_FAILED: "the user has no permission for this topic",
    errors.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic",
    errors.UNKNOWN_TOPIC_ID: "there is no topic with this id",
}


class RefusedTopic(Exception):
    """A topic cannot be created, deleted or described. The text is for the client."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or _TEXTS[code])
        self.code = code

    def record(self, call: Call, topic: str) -> None:
        """Record in the audit log that the user lacks a permission, if that is the reason."""
        if self.code == errors.TOPIC_AUTHORIZATION_FAILED:
            record_refusal(call.session, call.api.name, f"topic '{topic}'")


class TopicSteps:
    """The topics of one request. The answer is sent when each topic has its result.

    Args:
        field: the field of the response for the results, which are in the order of the topics.
    """

    def __init__(self, call: Call, field: str) -> None:
        self.call = call
        self._field = field
        self._results: list[Any] = []
        self._open_count = 0

    def run(self, steps: Sequence[TopicStep]) -> Steps[None]:
        """Begin these topics, at some 200 us each."""
        self._results = [None] * len(steps)
        self._open_count = len(steps)
        for step in steps:
            step.begin()
            self.call.connection.server.broker.turn.schedule()
            yield
        if not steps:
            self.call.reply({self._field: []})

    def finish(self, index: int, result: Any) -> None:
        """Take the result of one topic."""
        self._results[index] = result
        self._open_count -= 1
        if self._open_count == 0 and not self.call.connection.closed:
            self.call.reply({self._field: self._results})


class TopicStep:
    """One topic of a request.

    Args:
        asked: the topic of the request.
        invalid: why the request is invalid for this topic, or "".
    """

    def __init__(self, steps: TopicSteps, index: int, asked: Any, invalid: str = "") -> None:
        self.asked = asked
        self._steps = steps
        self._index = index
        self._invalid = invalid

    @property
    def call(self) -> Call:
        return self._steps.call

    @property
    def topic_name(self) -> str:
        """Return the name for the audit log; an id if the request has no name."""
        return str(self.asked.name)

    def work(self) -> None:
        """Do the work, and call `finish` now or later.

        Raises: RefusedTopic, DeclarationPending, AmqpError, MetadataError.
        """
        raise NotImplementedError

    def refusal(self, code: int, text: str | None) -> dict[str, Any]:
        """Return the result for an error."""
        return {"name": self.topic_name, "error_code": code, "error_message": text}

    def finish_commit(self, error: BaseException) -> None:
        """Handle a commit that has failed."""
        if isinstance(error, DeclarationPending):  # the vhost was deleted meanwhile
            self.begin()
        else:
            self.finish(self.refusal(errors.STORAGE_ERROR, f"metadata could not be written: {error}"))

    def finish(self, result: Any) -> None:
        """Store the topic's result."""
        self._steps.finish(self._index, result)

    def begin(self) -> None:
        """Begin, or begin again after the commit of another declaration of the name."""
        if self._invalid:
            self.finish(self.refusal(errors.INVALID_REQUEST, self._invalid))
        elif not self.call.connection.closed:
            self.attempt(self.work)

    def attempt(self, work: Callable[[], None]) -> None:
        """Run `work` as the client's user. An error that it raises is the result, or makes the step begin again."""
        try:
            with acting_as(self.call.session):
                work()
        except DeclarationPending as name:
            name.wait(self._name_is_free)
        except RefusedTopic as error:
            error.record(self.call, self.topic_name)
            self.finish(self.refusal(error.code, str(error)))
        except AccessRefused as error:  # a name of the broker
            self.finish(self.refusal(errors.INVALID_TOPIC_EXCEPTION, error.text))
        except PreconditionFailed as error:  # the queue limit, or a rule of the cluster
            self.finish(self.refusal(errors.POLICY_VIOLATION, error.text))
        except AmqpError as error:
            self.finish(self.refusal(errors.STORAGE_ERROR, error.text))
        except MetadataError as error:
            self.finish(self.refusal(errors.STORAGE_ERROR, str(error)))

    def _name_is_free(self, error: BaseException | None) -> None:
        if error is None:
            self.begin()
        else:
            text = f"an earlier deletion of that name is not written yet: {error}"
            self.finish(self.refusal(errors.STORAGE_ERROR, text))


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
