"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

A changed config of a topic changes the arguments of its streams, in one commit for all partitions (DECISIONS.md).
Values that the broker cannot keep are INVALID_CONFIG. A value that a policy overrides is POLICY_VIOLATION. Configs of
the broker are its settings, and are read-only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    NODE_ID,
    NONE,
    POLICY_VIOLATION,
    STORAGE_ERROR,
    TOPIC_AUTHORIZATION_FAILED,
    api_types,
)
from amqpd.kafka_server.request_reader import BodyWriter
from amqpd.kafka_server.topic_configs import (
    CLEANUP,
    CONFIGS,
    DEFAULT,
    ConfigEntry,
    InvalidConfig,
    broker_entries,
    changed_arguments,
    entries_of,
    given_configs,
)
from amqpd.kafka_server.topic_steps import RefusedTopic, TopicStep, TopicSteps, short_name
from amqpd.kafka_server.topics import PartitionedTopic, check_count, describable_topic, find_topic, partition_of

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

# Types of a resource with configs.
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4


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
                raise RefusedTopic(
                    INVALID_REQUEST, f"there is no broker '{short_name(name)}'; the only one is {NODE_ID}"
                )
            return broker_entries(settings)
        if asked.resource_type != TOPIC_RESOURCE:
            raise RefusedTopic(INVALID_REQUEST, "only topics and brokers have configs")
        found = describable_topic(session, name)
        if found == TOPIC_AUTHORIZATION_FAILED:
            found = find_topic(session, name, "configure")
        if not isinstance(found, PartitionedTopic):
            raise RefusedTopic(found)
        queue = found.partitions[0]
        return entries_of(queue.arguments, queue.rules, settings.storage.segment_size_bytes)

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


# -- AlterConfigs, IncrementalAlterConfigs -----------------------------------------------------------------------------

# Operations of IncrementalAlterConfigs.
SET: Final = 0
REMOVE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
CONFIGS_MAX: Final = 1000
"""Configs in one request."""


class AlterStep(TopicStep):
    """A topic whose configs change.

    Args:
        is_twice: the request has several resources with this name.
        incremental: the request changes single configs; otherwise it has all that the topic shall have.
    """

    def __init__(self, steps: TopicSteps, index: int, asked: Any, is_twice: bool, incremental: bool) -> None:
        super().__init__(steps, index)
        self._asked = asked
        self._is_twice = is_twice
        self._incremental = incremental

    @property
    def topic_name(self) -> str:
        return self._asked.resource_name or ""

    def refusal(self, code: int, text: str | None) -> Any:
        return {
            "error_code": code,
            "error_message": text,
            "resource_type": self._asked.resource_type,
            "resource_name": self.topic_name,
        }

    def work(self) -> None:
        session, name = self.call.session, self.topic_name
        if self._asked.resource_type == BROKER_RESOURCE:
            raise RefusedTopic(INVALID_REQUEST, "configs of the broker are settings, which clients cannot change")
        if self._asked.resource_type != TOPIC_RESOURCE:
            raise RefusedTopic(INVALID_REQUEST, "only topics and brokers have configs")
        counts = Counter(each.name for each in self._asked.configs)
        if self._is_twice or any(count > 1 for count in counts.values()):
            raise RefusedTopic(INVALID_REQUEST, "a topic or a config is in the request more than once")
        topic = find_topic(session, name, "configure")
        if isinstance(topic, int):
            raise RefusedTopic(topic)
        policy_of = session.vhost.policies.policy_of
        changes: list[tuple[Queue, dict[str, object]]] = []
        for number in range(len(topic.partitions)):
            partition = partition_of(session, topic, number, "configure")
            if isinstance(partition, int):
                raise RefusedTopic(partition)
            queue = partition.queue
            last, arguments = changes[-1] if changes else (None, {})
            if last is None or last.arguments != queue.arguments or policy_of(last) != policy_of(queue):
                arguments = self._new_arguments(queue)
            changes.append((queue, dict(arguments)))
        if self.call.request.validate_only:
            self._done(None)
        else:
            declare.change_arguments(session.vhost, name, changes, self._done)

    def _new_arguments(self, queue: Queue) -> dict[str, object]:
        """Return the new arguments of a partition's stream. Raises: RefusedTopic."""
        session = self.call.session
        segment_size = session.broker.settings.storage.segment_size_bytes
        configs: dict[str, str | None] = {each.name: each.value for each in self._asked.configs}
        try:
            if self._incremental:
                configs = _incremented(given_configs(queue.arguments, segment_size), self._asked.configs)
            arguments = changed_arguments(queue.arguments, configs, segment_size)
        except InvalidConfig as error:
            raise RefusedTopic(INVALID_CONFIG, str(error)) from None
        rules = session.vhost.policies.policy_of(queue).rules(queue.kind, arguments)
        wanted = {entry.name: entry.value for entry in entries_of(arguments, rules_of(arguments), segment_size)}
        for entry in entries_of(arguments, rules, segment_size):
            if entry.name in configs and entry.value != wanted[entry.name]:
                text = f"a policy sets {entry.name} of stream '{queue.name}' to {entry.value}"
                raise RefusedTopic(POLICY_VIOLATION, text)
        return arguments

    def _done(self, error: BaseException | None) -> None:
        if isinstance(error, DeclarationPending):
            self.begin()
        elif error is not None:
            self.finish(self.refusal(STORAGE_ERROR, f"metadata could not be written: {error}"))
        else:
            self.finish(self.refusal(NONE, None))


def _incremented(before: Mapping[str, str], changes: Sequence[Any]) -> dict[str, str | None]:
    """Return the configs after the operations of an incremental request. Raises: InvalidConfig, RefusedTopic."""
    configs: dict[str, str | None] = dict(before)
    for change in changes:
        name, operation = change.name, change.config_operation
        if operation == SET:
            configs[name] = change.value
        elif name not in CONFIGS:
            raise InvalidConfig(f"{short_name(name)} is not supported")
        elif operation == REMOVE:
            configs.pop(name, None)
        elif operation in (APPEND, SUBTRACT) and name == CLEANUP:
            words = before.get(name, "delete").split(",")
            asked = [word.strip() for word in (change.value or "").split(",")]
            kept = [word for word in words if operation == APPEND or word not in asked]
            configs[name] = ",".join(dict.fromkeys([*kept, *(asked if operation == APPEND else ())]))
        else:
            raise RefusedTopic(INVALID_REQUEST, f"operation {operation} is not possible for {short_name(name)}")
    return configs


def _alter(call: Call, incremental: bool) -> None:
    resources: Sequence[Any] = call.request.resources or ()
    check_count(sum(1 + len(each.configs) for each in resources), CONFIGS_MAX)
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    once = {(each.resource_type, each.resource_name): each for each in resources}
    steps = TopicSteps(call, lambda results: call.reply({"responses": results}))
    steps.begin(
        [AlterStep(steps, index, each, counts[key] > 1, incremental) for index, (key, each) in enumerate(once.items())]
    )


APIS: Final = (
    Api(32, "DescribeConfigs", 1, 4, 4, _describe_configs, *api_types("DescribeConfigs")),
    Api(33, "AlterConfigs", 0, 2, 2, partial(_alter, incremental=False), *api_types("AlterConfigs")),
    Api(
        44,
        "IncrementalAlterConfigs",
        0,
        1,
        1,
        partial(_alter, incremental=True),
        *api_types("IncrementalAlterConfigs"),
    ),
)
