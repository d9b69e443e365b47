"""DescribeConfigs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from amqpd.kafka_server.body_writer import BodyWriter
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import INVALID_REQUEST, NODE_ID, NONE, TOPIC_AUTHORIZATION_FAILED, api_types
from amqpd.kafka_server.topic_configs import DEFAULT, ConfigEntry, broker_entries, entries_of
from amqpd.kafka_server.topic_steps import RefusedTopic, TopicStep, TopicSteps, short_name
from amqpd.kafka_server.topics import Topic, check_count, describable_topic, find_topic

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
        if not isinstance(found, Topic):
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


APIS: Final = (Api(32, "DescribeConfigs", 1, 4, 4, _describe_configs, *api_types("DescribeConfigs")),)
