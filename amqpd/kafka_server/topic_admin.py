"""CreateTopics, DeleteTopics and DescribeConfigs.

A topic is created and deleted as a stream is with queue.declare and queue.delete: the same permissions, limits, commit
and events. The reply is sent when all topics of the request are committed or refused; the time-out of the request is
not used, because a commit cannot be taken back.

A request with many topics is done in slices, so that other clients have their turns.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from amqpd.broker.events import ACTOR, ORIGIN
from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.batch import DeclarationBatch
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.errors import AccessRefused, AmqpError, PreconditionFailed
from amqpd.kafka_server.body_writer import NO_ID, BodyWriter
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NODE_ID,
    NONE,
    POLICY_VIOLATION,
    STORAGE_ERROR,
    TOPIC_ALREADY_EXISTS,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    api_types,
)
from amqpd.kafka_server.topic_configs import (
    DEFAULT,
    ConfigEntry,
    InvalidConfig,
    arguments_of,
    broker_entries,
    entries_of,
)
from amqpd.kafka_server.topics import (
    StreamTopic,
    check_count,
    describable_topic,
    find_topic,
    find_topic_by_id,
    is_permitted,
    record_refusal,
    topic_of,
)
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.broker.vhost.vhost import Namespace

CREATED_MAX: Final = 1000
"""Most topics that one request creates."""
SLICE_COUNT: Final = 20
"""Topics that are begun in one turn of the loop, at some 200 us each."""
TEXT_MAX: Final = 80
"""Most characters of a name in an error text."""
# Types of a resource with configs.
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
# In place of the number of partitions or replicas: the default.
_DEFAULT: Final = -1

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
        for _ in range(min(SLICE_COUNT, len(self._waiting))):
            self._waiting.popleft().begin()
        broker = self.call.connection.server.broker
        broker.turn.schedule()
        if self._waiting and not self.call.connection.closed:
            broker.loop.call_soon(self._run_slice)

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
        """Do the work, and call `finish` now or later. Raises: RefusedTopic, DeclarationPending, MetadataError."""
        raise NotImplementedError

    def refusal(self, code: int, text: str) -> Any:
        """Return the result for an error."""
        raise NotImplementedError

    def finish(self, result: Any) -> None:
        """Store the topic's result."""
        self._steps.finish(self._index, result)

    def begin(self) -> None:
        """Begin, or begin again after the commit of another declaration of the name."""
        if self.call.connection.closed:
            return
        try:
            with _acting(self.call.session):
                self.work()
        except DeclarationPending as name:
            name.wait(self._name_is_free)
        except RefusedTopic as error:
            if error.code == TOPIC_AUTHORIZATION_FAILED:
                record_refusal(self.call.session, self.call.api.name, f"topic '{self.topic_name}'")
            self.finish(self.refusal(error.code, str(error)))
        except MetadataError as error:
            self.finish(self.refusal(STORAGE_ERROR, str(error)))

    def _name_is_free(self, error: BaseException | None) -> None:
        if error is None:
            self.begin()
        else:
            text = f"an earlier deletion of that name is not written yet: {error}"
            self.finish(self.refusal(STORAGE_ERROR, text))


@contextmanager
def _acting(session: Session) -> Iterator[None]:
    """Set the acting user of events."""
    actor, origin = ACTOR.set(session.user.name), ORIGIN.set(session)
    try:
        yield
    finally:
        ORIGIN.reset(origin)
        ACTOR.reset(actor)


def _short(name: str) -> str:
    return name if len(name) <= TEXT_MAX else name[:TEXT_MAX] + "..."


# -- CreateTopics ------------------------------------------------------------------------------------------------------


class CreateStep(TopicStep):
    """A topic to be created.

    Args:
        asked: the topic of the request.
        is_twice: the request has several topics with this name.
        names: the vhost, or a draft of it for a request that only validates.
    """

    def __init__(self, steps: TopicSteps, index: int, asked: Any, is_twice: bool, names: Namespace) -> None:
        super().__init__(steps, index)
        self._asked = asked
        self._name: str = asked.name or ""
        self._is_twice = is_twice
        self._names = names
        self._arguments: dict[str, object] = {}

    @property
    def topic_name(self) -> str:
        return self._name

    def refusal(self, code: int, text: str) -> Any:
        return {"name": self._name, "error_code": code, "error_message": text, "configs": []}

    def work(self) -> None:
        asked, session, names = self._asked, self.call.session, self._names
        name = self._name
        if self._is_twice:
            raise RefusedTopic(INVALID_REQUEST, f"topic '{_short(name)}' is in the request more than once")
        if KAFKA_TOPIC.fullmatch(name) is None:
            raise RefusedTopic(INVALID_TOPIC_EXCEPTION)
        if not is_permitted(session, name, "configure"):
            raise RefusedTopic(TOPIC_AUTHORIZATION_FAILED)
        queue = names.find_queue(name)
        if queue is not None:
            thing = "topic" if queue.kind == "stream" else f"{queue.kind} queue"
            raise RefusedTopic(TOPIC_ALREADY_EXISTS, f"there is a {thing} '{name}' already")
        _check_partitions(asked)
        try:
            self._arguments = arguments_of((each.name, each.value) for each in asked.configs or ())
        except InvalidConfig as error:
            raise RefusedTopic(INVALID_CONFIG, str(error)) from None
        self._declare(QueueDeclaration(name, True, False, False, self._arguments, session))

    def _declare(self, declaration: QueueDeclaration) -> None:
        names = self._names
        vhost = names.vhost
        try:
            declare.declare_queue(names, declaration, self._committed)
        except AccessRefused as error:  # a name of the broker
            raise RefusedTopic(INVALID_TOPIC_EXCEPTION, error.text) from None
        except PreconditionFailed as error:  # the queue limit, or a rule of the cluster
            raise RefusedTopic(POLICY_VIOLATION, error.text) from None
        except AmqpError as error:
            raise RefusedTopic(STORAGE_ERROR, error.text) from None
        if names is vhost:
            vhost.catalogue.queue_declared_count += 1
        else:
            self.finish(self._result(NO_ID, entries_of(self._arguments, rules_of(self._arguments), self._segment_size)))

    @property
    def _segment_size(self) -> int:
        return self.call.connection.server.broker.settings.storage.segment_size_bytes

    def _committed(self, error: BaseException | None) -> None:
        if error is None:
            topic = topic_of(self._names.vhost.queues[self._name])
            queue = topic.queue
            self.finish(self._result(topic.id, entries_of(queue.arguments, queue.rules, self._segment_size)))
        elif isinstance(error, DeclarationPending):  # the vhost was deleted meanwhile
            self.begin()
        else:
            self.finish(self.refusal(STORAGE_ERROR, f"metadata could not be written: {error}"))

    def _result(self, topic_id: UUID, entries: list[ConfigEntry]) -> Any:
        configs = [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": entry.read_only,
                "config_source": entry.source,
                "is_sensitive": False,
            }
            for entry in entries
        ]
        return {
            "name": self._name,
            "topic_id": topic_id,
            "error_code": NONE,
            "error_message": None,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": configs,
        }


def _check_partitions(asked: Any) -> None:
    """Check partitions and replicas of a new topic. Raises: RefusedTopic."""
    if asked.assignments:
        raise RefusedTopic(INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned: there is one broker")
    if asked.num_partitions not in (1, _DEFAULT):
        raise RefusedTopic(INVALID_PARTITIONS, f"a topic has one partition here, not {asked.num_partitions}")
    if asked.replication_factor not in (1, _DEFAULT):
        raise RefusedTopic(INVALID_REPLICATION_FACTOR, f"a topic has one replica here, not {asked.replication_factor}")


def _create_topics(call: Call) -> None:
    request = call.request
    topics = request.topics or ()
    check_count(len(topics), CREATED_MAX)
    vhost = call.session.vhost
    names: Namespace = vhost
    if request.validate_only:
        draft = DeclarationBatch(call.connection.server.broker.vhosts, dry=True).draft(vhost.name)
        assert draft is not None  # a client's vhost exists as long as its connection is open
        names = draft
    counts = Counter(each.name for each in topics)
    once = {each.name: each for each in topics}
    steps = TopicSteps(call, lambda results: call.reply({"topics": results}))
    steps.begin(
        [CreateStep(steps, index, each, counts[each.name] > 1, names) for index, each in enumerate(once.values())]
    )


# -- DeleteTopics ------------------------------------------------------------------------------------------------------


class DeleteStep(TopicStep):
    """A topic to be deleted, with its name or its id."""

    def __init__(self, steps: TopicSteps, index: int, name: str | None, topic_id: UUID | None) -> None:
        super().__init__(steps, index)
        self._name = name
        self._id = topic_id

    def _result(self, code: int, text: str | None) -> dict[str, Any]:
        name = "" if self._name is None and self.call.version < 6 else self._name
        return {"name": name, "topic_id": self._id or NO_ID, "error_code": code, "error_message": text}

    @property
    def topic_name(self) -> str:
        return str(self._id) if self._name is None else self._name

    def refusal(self, code: int, text: str) -> Any:
        return self._result(code, text)

    def work(self) -> None:
        session = self.call.session
        vhost = session.vhost
        found: StreamTopic | int
        if self._name is None:
            found = UNKNOWN_TOPIC_ID if self._id is None else find_topic_by_id(session, self._id, "configure")
        elif self._id is not None:
            raise RefusedTopic(INVALID_REQUEST, "a topic is named by its name or by its id, not by both")
        else:
            found = find_topic(session, self._name, "configure")
            if found == UNKNOWN_TOPIC_OR_PARTITION:
                vhost.find_queue(self._name)  # waits if the name is being declared or deleted
        if not isinstance(found, StreamTopic):
            raise RefusedTopic(found)
        declare.delete_queue(vhost, found.queue, lambda error: self._deleted(found, error))

    def _deleted(self, topic: StreamTopic, error: BaseException | None) -> None:
        self._name, self._id = topic.name, topic.id
        if error is None:
            self.finish(self._result(NONE, None))
        else:
            text = f"the deletion is not written yet; the broker retries it: {error}"
            self.finish(self._result(STORAGE_ERROR, text))


def _delete_topics(call: Call) -> None:
    request = call.request
    if call.version >= 6:
        wanted = [(each.name, each.topic_id) for each in request.topics or ()]
    else:
        wanted = [(name, None) for name in request.topic_names or ()]
    check_count(len(wanted))
    steps = TopicSteps(call, lambda results: call.reply({"responses": results}))
    steps.begin([DeleteStep(steps, index, *each) for index, each in enumerate(wanted)])


# -- DescribeConfigs ---------------------------------------------------------------------------------------------------


class DescribeStep(TopicStep):
    """A topic or broker whose configs are described. The result is the encoded struct."""

    def __init__(self, steps: TopicSteps, index: int, asked: Any) -> None:
        super().__init__(steps, index)
        self._asked = asked

    @property
    def topic_name(self) -> str:
        return str(self._asked.resource_name or "")

    def refusal(self, code: int, text: str) -> Any:
        return self._encode(code, text, [])

    def work(self) -> None:
        keys = frozenset(self._asked.configuration_keys or ())
        entries = [entry for entry in self._entries() if not keys or entry.name in keys]
        self.finish(self._encode(NONE, None, entries))

    def _entries(self) -> list[ConfigEntry]:
        asked, session = self._asked, self.call.session
        name: str = asked.resource_name or ""
        settings = session.broker.settings
        if asked.resource_type == BROKER_RESOURCE:
            if name not in ("", str(NODE_ID)):
                raise RefusedTopic(INVALID_REQUEST, f"there is no broker '{_short(name)}'; the only one is {NODE_ID}")
            return broker_entries(settings)
        if asked.resource_type != TOPIC_RESOURCE:
            raise RefusedTopic(INVALID_REQUEST, "only topics and brokers have configs")
        found = describable_topic(session, name)
        if found == TOPIC_AUTHORIZATION_FAILED:
            found = find_topic(session, name, "configure")
        if not isinstance(found, StreamTopic):
            raise RefusedTopic(found)
        return entries_of(found.queue.arguments, found.queue.rules, settings.storage.segment_size_bytes)

    def _encode(self, code: int, text: str | None, entries: Sequence[ConfigEntry]) -> bytes:
        request, version = self.call.request, self.call.version
        writer = BodyWriter(self.call.is_flexible)
        writer.int16(code)
        writer.string(text)
        writer.int8(self._asked.resource_type)
        writer.string(self._asked.resource_name or "")
        writer.count(len(entries))
        for entry in entries:
            writer.string(entry.name)
            writer.string(entry.value)
            writer.boolean(entry.read_only)
            writer.int8(entry.source)
            writer.boolean(False)  # sensitive
            _write_synonyms(writer, entry, request.include_synonyms)
            if version >= 3:
                writer.int8(entry.type)
                writer.string(entry.meaning if request.include_documentation else None)
            writer.end()
        writer.end()
        return bytes(writer.data)


def _write_synonyms(writer: BodyWriter, entry: ConfigEntry, included: bool) -> None:
    """Add the values of a config in order of their priority: the one in force, and the default."""
    values: dict[int, str] = {entry.source: entry.value, DEFAULT: entry.default} if included else {}
    writer.count(len(values))
    for source, value in values.items():
        writer.string(entry.name)
        writer.string(value)
        writer.int8(source)
        writer.end()


def _describe_configs(call: Call) -> None:
    resources: Sequence[Any] = call.request.resources or ()
    check_count(len(resources))

    def reply(results: list[bytes]) -> None:
        writer = BodyWriter(call.is_flexible)
        writer.int32(0)  # throttle time
        writer.count(len(results))
        writer.data += b"".join(results)
        writer.end()
        call.reply_bytes(bytes(writer.data))

    steps = TopicSteps(call, reply)
    steps.begin([DescribeStep(steps, index, each) for index, each in enumerate(resources)])


APIS: Final = (
    Api(19, "CreateTopics", 2, 7, 5, _create_topics, *api_types("CreateTopics")),
    Api(20, "DeleteTopics", 1, 6, 4, _delete_topics, *api_types("DeleteTopics")),
    Api(32, "DescribeConfigs", 1, 4, 4, _describe_configs, *api_types("DescribeConfigs")),
)
