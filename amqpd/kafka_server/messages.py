"""Requests and responses of Kafka's protocol: headers and frames.

Most bodies are read and written by message_schema.py, from the definitions in kafka-python, and from those below of
requests that it does not know. Produce, Fetch, ShareFetch and ShareAcknowledge, which are frequent and large, are read
and written by hand.

A frame is a length (int32), a header and a body. Headers differ by the version of the request:

    request   api key (int16), version (int16), correlation id (int32), client id (nullable string),
              and from the first flexible version on tagged fields
    response  correlation id (int32), and from the first flexible version on tagged fields; not for ApiVersions

Source: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import re
import struct
from types import ModuleType
from typing import Any, Final, NamedTuple

from kafka.protocol import admin, consumer, metadata, producer, sasl

_MODULES: Final[tuple[ModuleType, ...]] = (metadata, producer, consumer, admin, sasl)

NODE_ID: Final = 0
"""The broker's id in responses. There is one broker, which leads all partitions."""
NO_EPOCH: Final = -1
"""In place of the leader epoch of a partition.

The batches of a log have the epoch of the process that wrote them. A client that has seen such an epoch, or has got it
with a committed offset, ignores metadata with a lower one and waits for the new leader.
"""

NAME_MAX: Final = 255
"""Characters of the name of a group, and of the id of a member, an instance or a rack."""
NOT_ASKED: Final = -(1 << 31)
"""In place of the authorized operations."""

API_VERSIONS: Final = 18

_HEADER: Final = struct.Struct(">hhih")
_PREFIX: Final = struct.Struct(">ii")
CLIENT_ID_BYTES_MAX: Final = 255


class MalformedRequest(Exception):
    """A request that cannot be read. The connection is closed. The text is for the log."""


class RequestHeader(NamedTuple):
    """The header of a request.

    Attributes:
        size: where the body begins in the frame, before any tagged fields of the header.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    size: int


def read_header(frame: bytes) -> RequestHeader:
    """Return the header of a frame without its length. Raises: MalformedRequest."""
    if len(frame) < _HEADER.size:
        raise MalformedRequest(f"a request of {len(frame)} bytes")
    api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
    end = _HEADER.size + max(size, 0)
    if end > len(frame) or size > CLIENT_ID_BYTES_MAX:
        raise MalformedRequest(f"a client id of {size} bytes in a request of {len(frame)}")
    return RequestHeader(api_key, version, correlation_id, frame[_HEADER.size : end].decode("utf-8", "replace"), end)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned varint (up to 32 bits) at `position`, and the position after it. Raises: MalformedRequest."""
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    while shift < 35 and position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedRequest("a number that does not end")


def frame_of(correlation_id: int, *parts: bytes) -> bytes:
    """Return a frame with the length, the correlation id and these parts."""
    size = 4 + sum(len(part) for part in parts)
    return b"".join((_PREFIX.pack(size, correlation_id), *parts))


class Definition(NamedTuple):
    """A request or response that kafka-python does not know. All its versions are flexible."""

    name: str
    fields: str


# Source: https://kafka.apache.org/protocol. Names and types in order: `?` before a type that is nullable, `[]` for an
# array, `{` for a struct whose fields follow up to `}`, `1+` if the field begins with version 1. `id`: a UUID as bytes.
_DEFINITIONS: Final = """
ConsumerGroupHeartbeatRequest
    group_id string member_id string member_epoch int32 instance_id ?string rack_id ?string rebalance_timeout_ms int32
    subscribed_topic_names ?[]string subscribed_topic_regex 1+?string server_assignor ?string
    topic_partitions ?[]{ topic_id id partitions []int32 }
ConsumerGroupHeartbeatResponse
    throttle_time_ms int32 error_code int16 error_message ?string member_id ?string member_epoch int32
    heartbeat_interval_ms int32 assignment ?{ topic_partitions []{ topic_id id partitions []int32 } }
ConsumerGroupDescribeRequest
    group_ids []string include_authorized_operations bool
ConsumerGroupDescribeResponse
    throttle_time_ms int32 groups []{ error_code int16 error_message ?string group_id string group_state string
    group_epoch int32 assignment_epoch int32 assignor_name string
    members []{ member_id string instance_id ?string rack_id ?string member_epoch int32 client_id string
    client_host string subscribed_topic_names []string subscribed_topic_regex ?string
    assignment { topic_partitions []{ topic_id id topic_name string partitions []int32 } }
    target_assignment { topic_partitions []{ topic_id id topic_name string partitions []int32 } }
    member_type 1+int8 } authorized_operations bitfield }
ShareGroupHeartbeatRequest
    group_id string member_id string member_epoch int32 rack_id ?string subscribed_topic_names ?[]string
ShareGroupHeartbeatResponse
    throttle_time_ms int32 error_code int16 error_message ?string member_id ?string member_epoch int32
    heartbeat_interval_ms int32 assignment ?{ topic_partitions []{ topic_id id partitions []int32 } }
ShareGroupDescribeRequest
    group_ids []string include_authorized_operations bool
ShareGroupDescribeResponse
    throttle_time_ms int32 groups []{ error_code int16 error_message ?string group_id string group_state string
    group_epoch int32 assignment_epoch int32 assignor_name string
    members []{ member_id string rack_id ?string member_epoch int32 client_id string client_host string
    subscribed_topic_names []string
    assignment { topic_partitions []{ topic_id id topic_name string partitions []int32 } } }
    authorized_operations bitfield }
DescribeShareGroupOffsetsRequest
    groups []{ group_id string topics ?[]{ topic_name string partitions []int32 } }
DescribeShareGroupOffsetsResponse
    throttle_time_ms int32 groups []{ group_id string topics []{ topic_name string topic_id uuid
    partitions []{ partition_index int32 start_offset int64 leader_epoch int32 lag 1+int64 error_code int16
    error_message ?string } } error_code int16 error_message ?string }
AlterShareGroupOffsetsRequest
    group_id string topics []{ topic_name string partitions []{ partition_index int32 start_offset int64 } }
AlterShareGroupOffsetsResponse
    throttle_time_ms int32 error_code int16 error_message ?string responses []{ topic_name string topic_id uuid
    partitions []{ partition_index int32 error_code int16 error_message ?string } }
DeleteShareGroupOffsetsRequest
    group_id string topics []{ topic_name string }
DeleteShareGroupOffsetsResponse
    throttle_time_ms int32 error_code int16 error_message ?string
    responses []{ topic_name string topic_id uuid error_code int16 error_message ?string }
"""
_OWN: Final = {
    name: Definition(name, fields) for name, fields in re.findall(r"^(\w+)\n((?: .*\n)+)", _DEFINITIONS, re.MULTILINE)
}


def api_types(name: str) -> tuple[Any, Any]:
    """Return the types of request and response, for an API's name such as `Metadata`: kafka-python's, or our own."""
    if f"{name}Request" in _OWN:
        return _OWN[f"{name}Request"], _OWN[f"{name}Response"]
    for module in _MODULES:
        request = getattr(module, f"{name}Request", None)
        if request is not None:
            return request, getattr(module, f"{name}Response")
    raise LookupError(name)
