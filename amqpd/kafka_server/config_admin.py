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
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.message_schema import encode_steps
from amqpd.kafka_server.messages import NODE_ID
from amqpd.kafka_server.pace import Steps
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

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session

# Types of a resource with configs.
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4


def _describe_configs(call: Call) -> Steps[None]:
    request = call.request
    topics.check_count(len(request.resources))
    results: list[bytes] = []
    result_type = call.api.response.fields["results"].data_class
    for asked in request.resources:
        result: dict[str, Any] = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
        try:
            keys = frozenset(asked.configuration_keys or ())
            entries = [each for each in _entries(call.session, asked) if not keys or each.name in keys]
            result |= {"error_message": None, "configs": [_described(each, request) for each in entries]}
        except RefusedTopic as error:
            result |= {"error_code": error.code, "error_message": str(error)}
            error.record(call, asked.resource_name)
        # Encoded at once: a topic has 15 configs.
        results.append((yield from encode_steps(result_type, call.version, call.is_flexible, result)))
        yield
    call.reply({"results": results})


def _entries(session: Session, asked: Any) -> list[ConfigEntry]:
    """Return the configs of a topic or broker. Raises: RefusedTopic."""
    name, settings = asked.resource_name, session.broker.settings
    if asked.resource_type == BROKER_RESOURCE:
        if name not in ("", str(NODE_ID)):
            text = f"there is no broker '{short_name(name)}'; the only one is {NODE_ID}"
            raise RefusedTopic(errors.INVALID_REQUEST, text)
        return broker_entries(settings)
    if asked.resource_type != TOPIC_RESOURCE:
        raise RefusedTopic(errors.INVALID_REQUEST, "only topics and brokers have configs")
    found = topics.describable_topic(session, name)
    if found == errors.TOPIC_AUTHORIZATION_FAILED:
        found = topics.find_topic(session, name, "configure")
    if isinstance(found, int):
        raise RefusedTopic(found)
    queue = found.partitions[0]
    return entries_of(queue.arguments, queue.rules, settings.storage.segment_size_bytes)


def _described(entry: ConfigEntry, request: Any) -> dict[str, Any]:
    # In order of their priority: the value in force, and the default.
    values = {entry.source: entry.value, DEFAULT: entry.default} if request.include_synonyms else {}
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "synonyms": [{"name": entry.name, "value": value, "source": source} for source, value in values.items()],
        "config_type": entry.type,
        "documentation": entry.meaning if request.include_documentation else None,
    }


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
        super().__init__(steps, index, asked)
        self._is_twice = is_twice
        self._incremental = incremental

    @property
    def topic_name(self) -> str:
        return str(self.asked.resource_name)

    def refusal(self, code: int, text: str | None) -> dict[str, Any]:
        return {
            "error_code": code,
            "error_message": text,
            "resource_type": self.asked.resource_type,
            "resource_name": self.topic_name,
        }

    def work(self) -> None:
        session, name = self.call.session, self.topic_name
        if self.asked.resource_type == BROKER_RESOURCE:
            raise RefusedTopic(
                errors.INVALID_REQUEST, "configs of the broker are settings, which clients cannot change"
            )
        if self.asked.resource_type != TOPIC_RESOURCE:
            raise RefusedTopic(errors.INVALID_REQUEST, "only topics and brokers have configs")
        counts = Counter(each.name for each in self.asked.configs)
        if self._is_twice or any(count > 1 for count in counts.values()):
            raise RefusedTopic(errors.INVALID_REQUEST, "a topic or a config is in the request more than once")
        topic = topics.find_topic(session, name, "configure")
        if isinstance(topic, int):
            raise RefusedTopic(topic)
        policy_of = session.vhost.policies.policy_of
        changes: list[tuple[Queue, dict[str, object]]] = []
        for number in range(len(topic.partitions)):
            partition = topics.partition_of(session, topic, number, "configure")
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
        configs: dict[str, str | None] = {each.name: each.value for each in self.asked.configs}
        try:
            if self._incremental:
                configs = _incremented(given_configs(queue.arguments, segment_size), self.asked.configs)
            arguments = changed_arguments(queue.arguments, configs, segment_size)
        except InvalidConfig as error:
            raise RefusedTopic(errors.INVALID_CONFIG, str(error)) from None
        rules = session.vhost.policies.policy_of(queue).rules(queue.kind, arguments)
        wanted = {entry.name: entry.value for entry in entries_of(arguments, rules_of(arguments), segment_size)}
        for entry in entries_of(arguments, rules, segment_size):
            if entry.name in configs and entry.value != wanted[entry.name]:
                text = f"a policy sets {entry.name} of stream '{queue.name}' to {entry.value}"
                raise RefusedTopic(errors.POLICY_VIOLATION, text)
        return arguments

    def _done(self, error: BaseException | None) -> None:
        if error is not None:
            self.finish_commit(error)
        else:
            self.finish(self.refusal(errors.NONE, None))


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
            raise RefusedTopic(errors.INVALID_REQUEST, f"operation {operation} is not possible for {short_name(name)}")
    return configs


def _alter(call: Call, incremental: bool) -> Steps[None]:
    resources: Sequence[Any] = call.request.resources or ()
    topics.check_count(sum(1 + len(each.configs) for each in resources), CONFIGS_MAX)
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    once = {(each.resource_type, each.resource_name): each for each in resources}
    steps = TopicSteps(call, "responses")
    return steps.run(
        [AlterStep(steps, index, each, counts[key] > 1, incremental) for index, (key, each) in enumerate(once.items())]
    )


APIS: Final = (
    typed_api(32, "DescribeConfigs", 1, 4, 4, _describe_configs),
    typed_api(33, "AlterConfigs", 0, 2, 2, partial(_alter, incremental=False)),
    typed_api(44, "IncrementalAlterConfigs", 0, 1, 1, partial(_alter, incremental=True)),
)
