"""The decoder and encoder of bodies beside kafka-python's, for every request and version; their limits and steps."""

from __future__ import annotations

import random
import struct
import uuid
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from random_messages import random_message

from amqpd.kafka_server import topics
from amqpd.kafka_server.message_schema import ELEMENTS_MAX, STEP_ELEMENTS, DecodedStruct, decode_steps, encode_steps
from amqpd.kafka_server.messages import Definition, MalformedRequest, api_types
from amqpd.kafka_server.pace import Steps, run_all
from amqpd.kafka_server.request_reader import TAGS_MAX, RequestReader
from amqpd.kafka_server.server import every_api
from amqpd.kafka_server.topics import FoundTopic, PartitionedTopic

APIS = sorted(
    (api for api in every_api() if api.request is not None and not isinstance(api.request, Definition)),
    key=lambda api: api.key,
)


def decode(api: Any, version: int, body: bytes) -> DecodedStruct:
    is_flexible = version >= api.flexible
    reader = RequestReader((b"\0" if is_flexible else b"") + body, 0, is_flexible)
    return run_all(decode_steps(api.request, version, reader))


def plain(value: Any) -> Any:
    """Return a message of either side as dictionaries and lists."""
    if isinstance(value, DecodedStruct):
        return {name: plain(each) for name, each in vars(value).items()}
    if hasattr(value, "_struct"):
        return {name: plain(getattr(value, name)) for name in value.fields}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def present(kind: Any, value: Any, version: int) -> Any:
    """Return the fields that a version has, as a handler gives them."""
    fields = {}
    for name, field in kind.fields.items():
        if not field.for_version_q(version) or field.tagged_field_q(version):
            continue
        own = getattr(value, name)
        if field.is_struct_array() and own is not None:
            own = [present(field.data_class, each, version) for each in own]
        elif field.is_struct() and own is not None:
            own = present(field.data_class, own, version)
        elif isinstance(own, list):
            own = [each for each in own if each is not None]
            setattr(value, name, own)
        fields[name] = own
    return fields


def untag(kind: Any, value: Any) -> None:
    """Give all tagged fields their defaults: no response of the broker has one."""
    for name, field in kind.fields.items():
        if field.tag is not None:
            setattr(value, name, field.default)
        elif field.is_struct_array():
            for each in getattr(value, name) or ():
                untag(field.data_class, each)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_requests_are_decoded_as_kafka_python_decodes_them(api: Any) -> None:
    equal = 0
    for version in range(api.first, api.last + 1):
        chance = random.Random(version)
        for _ in range(8):
            body = bytes(random_message(api.request, version, chance).encode(version=version))
            try:
                found = decode(api, version, body)
            except MalformedRequest as error:
                assert "null" in str(error)  # noqa: PT017  # kafka-python accepts null everywhere
                continue
            assert plain(found) == plain(api.request.decode(body, version=version))
            equal += 1
    assert equal >= api.last + 1 - api.first


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_responses_are_encoded_as_kafka_python_encodes_them(api: Any) -> None:
    for version in range(api.first, api.last + 1):
        chance = random.Random(version)
        for _ in range(8):
            message = random_message(api.response, version, chance)
            untag(api.response, message)
            fields = present(api.response, message, version)
            encoded = run_all(encode_steps(api.response, version, version >= api.flexible, fields))
            assert encoded == bytes(message.encode(version=version))


def names(count: int, flexible: bool = True) -> bytes:
    """Return Metadata 12 with topics of these numbers as ids, and a name of one letter."""
    head = bytearray()
    value = count + 1
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*head, value]) + (bytes(16) + b"\2a\0") * count + b"\0\0\0"


def test_long_requests_are_decoded_in_steps() -> None:
    request = api_types("Metadata")[0]
    steps = decode_steps(request, 12, RequestReader(b"\0" + names(10_000), 0))
    assert sum(1 for _ in steps) == 10_000 // STEP_ELEMENTS
    reader = RequestReader(b"\0" + names(ELEMENTS_MAX + 1), 0)
    with pytest.raises(MalformedRequest, match=f"at most {ELEMENTS_MAX}"):
        next(decode_steps(request, 12, reader))


def test_long_responses_are_encoded_in_steps() -> None:
    steps = encode_steps(api_types("DeleteTopics")[1], 5, True, {"responses": [{"name": "a", "error_code": 3}] * 3200})
    assert sum(1 for _ in steps) == 100


def test_metadata_describes_the_partitions_of_a_topic_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic has up to 10,000 partitions, and a step would take 36 ms for so many."""
    found: list[FoundTopic] = [
        ("super", uuid.UUID(int=1), PartitionedTopic("super", uuid.UUID(int=1), cast(Any, (None,) * 640)))
    ]

    def find(*_: object) -> Steps[list[FoundTopic]]:
        yield from ()
        return found

    monkeypatch.setattr(topics, "_named_topics", find)
    monkeypatch.setattr(topics, "broker_address", lambda _: ("127.0.0.1", 9092))
    answers: list[Any] = []
    fields = {"topics": [None], "include_topic_authorized_operations": 0, "include_cluster_authorized_operations": 0}
    call = MagicMock(version=12, is_flexible=True, request=SimpleNamespace(**fields), reply=answers.append)
    call.api.response = api_types("Metadata")[1]
    assert sum(1 for _ in topics._metadata(call)) >= 640 // STEP_ELEMENTS
    (answer,) = answers
    assert len(answer["topics"]) > 640 * 26  # bytes


def test_tagged_fields_of_a_request_are_limited() -> None:
    """Each costs a microsecond, and kafka-python copies the rest of the request for each struct that has some."""
    tagged = bytes(16) + b"\2a" + b"\1\7\0"
    request = api_types("Metadata")[0]
    body = b"\0" + struct.pack(">BB", (TAGS_MAX + 1) & 0x7F | 0x80, (TAGS_MAX + 1) >> 7) + tagged * TAGS_MAX + b"\0\0\0"
    assert len(run_all(decode_steps(request, 12, RequestReader(body, 0))).topics) == TAGS_MAX  # type: ignore[attr-defined]
    body = b"\0" + struct.pack(">BB", (TAGS_MAX + 2) & 0x7F | 0x80, (TAGS_MAX + 2) >> 7) + tagged * (TAGS_MAX + 1)
    with pytest.raises(MalformedRequest, match="tagged fields"):
        run_all(decode_steps(request, 12, RequestReader(body + b"\0\0\0", 0)))
    with pytest.raises(MalformedRequest, match="tagged fields"):
        RequestReader(b"\xff\xff\xff\xff\x07" + b"\5\0" * 1000, 0)
