"""CreateTopics, DeleteTopics and CreatePartitions.

A topic with one partition is a stream, a topic with several is a super stream (new_partitions.py). Both are created
and deleted as with queue.declare and queue.delete: the same permissions, limits, commit and events. CreatePartitions
makes a super stream of a stream, whose first partition is the stream. The reply is sent when all topics of the request
are committed or refused; the time-out of the request is not used, because a commit cannot be taken back.

A request with many topics is done in slices, so that other clients have their turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.batch import DeclarationBatch
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.kafka_topics import ARGUMENT
from amqpd.kafka_server import errors
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.new_partitions import NewPartitions, PartitionsDeclaration
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import NO_ID
from amqpd.kafka_server.topic_configs import ConfigEntry, InvalidConfig, arguments_of, entries_of
from amqpd.kafka_server.topic_steps import RefusedTopic, TopicStep, TopicSteps, short_name
from amqpd.kafka_server.topics import (
    PartitionedTopic,
    check_count,
    find_topic,
    find_topic_by_id,
    is_permitted,
    topic_of_name,
)
from amqpd.routing.murmur2 import PARTITIONS_MAX

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import Namespace

CREATED_MAX: Final = 1000
"""Most topics, and most partitions, that one request creates."""
# In place of the number of partitions or replicas: the default.
_DEFAULT: Final = -1


# -- CreateTopics ------------------------------------------------------------------------------------------------------


class CreateStep(TopicStep):
    """A topic to be created. names: the vhost, or a draft of it for a request that only validates."""

    def __init__(self, steps: TopicSteps, index: int, asked: Any, invalid: str, names: Namespace) -> None:
        super().__init__(steps, index, asked, invalid)
        self._names = names
        self._arguments: dict[str, object] = {}
        self._count = 1

    def work(self) -> None:
        asked, session, names = self.asked, self.call.session, self._names
        name = self.topic_name
        if KAFKA_TOPIC.fullmatch(name) is None:
            raise RefusedTopic(errors.INVALID_TOPIC_EXCEPTION)
        if not is_permitted(session, name, "configure"):
            raise RefusedTopic(errors.TOPIC_AUTHORIZATION_FAILED)
        _check_is_free(names, name, asked.num_partitions)
        _check_replicas(asked)
        try:
            self._arguments = arguments_of((each.name, each.value) for each in asked.configs or ())
        except InvalidConfig as error:
            raise RefusedTopic(errors.INVALID_CONFIG, str(error)) from None
        if asked.num_partitions > 1:
            self._count = asked.num_partitions
            draft = None if names is names.vhost else names
            partitions = NewPartitions(name, 0, self._count, self._arguments)
            PartitionsDeclaration(self, partitions, draft, partial(self._committed, None)).run()
        else:
            declaration = QueueDeclaration(name, True, False, False, self._arguments, session)
            declare.declare_queue(names, declaration, self._committed)
            if names is names.vhost:
                names.vhost.catalogue.queue_declared_count += 1
            else:
                self._committed(None)

    @property
    def _segment_size(self) -> int:
        return self.call.connection.server.broker.settings.storage.segment_size_bytes

    def _committed(self, error: BaseException | None) -> None:
        vhost = self._names.vhost
        if error is not None:
            self.finish_commit(error)
        elif self._names is not vhost:
            self.finish(self._result(NO_ID, entries_of(self._arguments, rules_of(self._arguments), self._segment_size)))
        elif (topic := topic_of_name(vhost, self.topic_name)) is None:
            self.finish(self.refusal(errors.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted meanwhile"))
        else:
            queue = topic.partitions[0]
            self.finish(self._result(topic.id, entries_of(queue.arguments, queue.rules, self._segment_size)))

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
            "name": self.topic_name,
            "topic_id": topic_id,
            "error_code": errors.NONE,
            "error_message": None,
            "num_partitions": self._count,
            "replication_factor": 1,
            "configs": configs,
        }


def _check_is_free(names: Namespace, name: str, count: int) -> None:
    """Check that a new topic with `count` partitions can have this name. Raises: RefusedTopic, DeclarationPending."""
    queue, exchange = names.find_kafka_topic(name) or names.find_queue(name), names.find_exchange(name)
    thing = ""
    if queue is not None:
        thing = "topic" if queue.kind == "stream" else f"{queue.kind} queue"
    elif topic_of_name(names.vhost, name) is not None:
        thing = "topic"
    elif exchange is not None and count > 1:
        thing = f"{exchange.kind} exchange"
    if thing:
        raise RefusedTopic(errors.TOPIC_ALREADY_EXISTS, f"there is a {thing} '{name}' already")


def _check_replicas(asked: Any) -> None:
    """Check partitions and replicas of a new topic. Raises: RefusedTopic."""
    if asked.assignments:
        raise RefusedTopic(errors.INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned: there is one broker")
    count = asked.num_partitions
    if count != _DEFAULT and not 1 <= count <= CREATED_MAX:
        raise RefusedTopic(errors.INVALID_PARTITIONS, f"a new topic has 1 to {CREATED_MAX} partitions, not {count}")
    if asked.replication_factor not in (1, _DEFAULT):
        raise RefusedTopic(
            errors.INVALID_REPLICATION_FACTOR, f"a topic has one replica here, not {asked.replication_factor}"
        )


def _create_topics(call: Call) -> Steps[None]:
    draft = _draft(call)
    names = call.session.vhost if draft is None else draft
    steps = TopicSteps(call, "topics")
    topics = _once(call, lambda each: each.num_partitions)
    return steps.run([CreateStep(steps, index, each, why, names) for index, (each, why) in enumerate(topics)])


def _draft(call: Call) -> Namespace | None:
    """Return a draft of the vhost for a request that only validates, None for others."""
    if not call.request.validate_only:
        return None
    draft = DeclarationBatch(call.connection.server.broker.vhosts, dry=True).draft(call.session.vhost.name)
    assert draft is not None  # a client's vhost exists as long as its connection is open
    return draft


def _once(call: Call, count_of: Callable[[Any], int]) -> list[tuple[Any, str]]:
    """Return the topics of a request, each once, and why the request is invalid for it, or "".

    Args:
        count_of: returns the number of partitions that a topic shall have.

    Raises: MalformedRequest: too many topics.
    """
    topics = call.request.topics or ()
    check_count(len(topics), CREATED_MAX)
    counts = Counter(each.name for each in topics)
    once = {each.name: each for each in topics}
    found: list[tuple[Any, str]] = []
    for (name, each), why in zip(once.items(), _over_limit(map(count_of, once.values())), strict=True):
        twice = f"topic '{short_name(name or '')}' is in the request more than once" if counts[name] > 1 else ""
        found.append((each, why or twice))
    return found


def _over_limit(partitions: Iterable[int]) -> list[str]:
    """Return for each topic of a request why it gets no partitions, or "". Topics that are refused anyway count 1."""
    total = 0
    reasons: list[str] = []
    for count in partitions:
        total += count if 0 < count <= PARTITIONS_MAX else 1
        reasons.append(f"a request has at most {PARTITIONS_MAX} partitions" if total > PARTITIONS_MAX else "")
    return reasons


# -- DeleteTopics ------------------------------------------------------------------------------------------------------


class DeleteStep(TopicStep):
    """A topic to be deleted, with its name or its id."""

    def __init__(self, steps: TopicSteps, index: int, name: str | None, topic_id: UUID | None) -> None:
        super().__init__(steps, index, None)
        self._name = name
        self._id = topic_id

    @property
    def topic_name(self) -> str:
        return str(self._id) if self._name is None else self._name

    def refusal(self, code: int, text: str | None) -> dict[str, Any]:
        name = "" if self._name is None and self.call.version < 6 else self._name
        return {"name": name, "topic_id": self._id or NO_ID, "error_code": code, "error_message": text}

    def work(self) -> None:
        session = self.call.session
        vhost = session.vhost
        found: PartitionedTopic | int
        if self._name is None:
            found = errors.UNKNOWN_TOPIC_ID if self._id is None else find_topic_by_id(session, self._id, "configure")
        elif self._id is not None:
            raise RefusedTopic(errors.INVALID_REQUEST, "a topic is named by its name or by its id, not by both")
        else:
            found = find_topic(session, self._name, "configure")
            if found == errors.UNKNOWN_TOPIC_OR_PARTITION:
                vhost.find_kafka_topic(self._name)
                vhost.find_queue(self._name)  # waits if the name is being declared or deleted
        if not isinstance(found, PartitionedTopic):
            raise RefusedTopic(found)
        super_stream = vhost.super_streams.get(found.name)
        if super_stream is None or super_stream.id != found.id:
            declare.delete_queue(vhost, found.partitions[0], partial(self._deleted, found))
            return
        streams = super_stream.streams()
        for queue in streams:
            if not is_permitted(session, queue.name, "configure"):
                raise RefusedTopic(errors.TOPIC_AUTHORIZATION_FAILED, f"the user has no permission for '{queue.name}'")
        declare.delete_super_stream(vhost, super_stream.exchange, streams, partial(self._deleted, found))

    def _deleted(self, topic: PartitionedTopic, error: BaseException | None) -> None:
        self._name, self._id = topic.name, topic.id
        if error is None:
            self.finish(self.refusal(errors.NONE, None))
        else:
            text = f"the deletion is not written yet; the broker retries it: {error}"
            self.finish(self.refusal(errors.STORAGE_ERROR, text))


def _delete_topics(call: Call) -> Steps[None]:
    request = call.request
    if call.version >= 6:
        wanted = [(each.name, each.topic_id) for each in request.topics or ()]
    else:
        wanted = [(name, None) for name in request.topic_names or ()]
    check_count(len(wanted))
    steps = TopicSteps(call, "responses")
    return steps.run([DeleteStep(steps, index, *each) for index, each in enumerate(wanted)])


# -- CreatePartitions --------------------------------------------------------------------------------------------------


class GrowStep(TopicStep):
    """A topic that gets more partitions. draft: see `PartitionsDeclaration`."""

    def __init__(self, steps: TopicSteps, index: int, asked: Any, invalid: str, draft: Namespace | None) -> None:
        super().__init__(steps, index, asked, invalid)
        self._draft = draft

    def work(self) -> None:
        asked, session, name = self.asked, self.call.session, self.topic_name
        found = find_topic(session, name, "configure")
        if isinstance(found, int):
            raise RefusedTopic(found)
        count = len(found.partitions)
        if ARGUMENT in found.partitions[0].arguments:
            text = f"queue '{found.partitions[0].name}' has the argument {ARGUMENT} and stays one partition"
            raise RefusedTopic(errors.INVALID_PARTITIONS, text)
        if asked.assignments:
            raise RefusedTopic(errors.INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned: there is one broker")
        if asked.count <= count:
            raise RefusedTopic(
                errors.INVALID_PARTITIONS, f"the topic has {count} partitions already, not fewer than {asked.count}"
            )
        if asked.count > min(count + CREATED_MAX, PARTITIONS_MAX):
            raise RefusedTopic(
                errors.INVALID_PARTITIONS,
                f"a request adds at most {CREATED_MAX} partitions, and a topic has {PARTITIONS_MAX}",
            )
        super_stream = session.vhost.super_streams.get(name)
        is_stream = super_stream is None or super_stream.id != found.id
        if is_stream and session.vhost.find_exchange(name) is not None:
            text = f"there is an exchange '{name}' already, which the partitions would need"
            raise RefusedTopic(errors.TOPIC_ALREADY_EXISTS, text)
        arguments = dict(found.partitions[0].arguments)
        partitions = NewPartitions(name, count, asked.count, arguments, is_stream)
        done = partial(self.finish, self.refusal(errors.NONE, None))
        PartitionsDeclaration(self, partitions, self._draft, done).run()


def _create_partitions(call: Call) -> Steps[None]:
    draft = _draft(call)
    steps = TopicSteps(call, "results")
    topics = _once(call, lambda each: each.count)
    return steps.run([GrowStep(steps, index, each, why, draft) for index, (each, why) in enumerate(topics)])


APIS: Final = (
    typed_api(19, "CreateTopics", 2, 7, 5, _create_topics),
    typed_api(20, "DeleteTopics", 1, 6, 4, _delete_topics),
    typed_api(37, "CreatePartitions", 0, 3, 2, _create_partitions),
)
