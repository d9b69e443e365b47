"""Requests and responses of Kafka's protocol: headers, frames and error codes.

Most bodies are read and written by message_schema.py, from the definitions in kafka-python. Produce and Fetch, which
are frequent and large, and requests that kafka-python does not know are read and written by hand.

A frame is a length (int32), a header and a body. Headers differ by the version of the request:

    request   api key (int16), version (int16), correlation id (int32), client id (nullable string),
              and from the first flexible version on tagged fields
    response  correlation id (int32), and from the first flexible version on tagged fields; not for ApiVersions

Source: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any, Final, NamedTuple

from kafka.protocol import admin, consumer, metadata, producer, sasl

_MODULES: Final[tuple[ModuleType, ...]] = (metadata, producer, consumer, admin, sasl)

# Error codes of Kafka that the broker sends.
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
INVALID_TOPIC_EXCEPTION: Final = 17
INVALID_REQUIRED_ACKS: Final = 21
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
INVALID_COMMIT_OFFSET_SIZE: Final = 28
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
INVALID_REQUEST: Final = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
SECURITY_DISABLED: Final = 54
OPERATION_NOT_ATTEMPTED: Final = 55
STORAGE_ERROR: Final = 56
SASL_AUTHENTICATION_FAILED: Final = 58
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
MEMBER_ID_REQUIRED: Final = 79
GROUP_MAX_SIZE_REACHED: Final = 81
FENCED_INSTANCE_ID: Final = 82
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
INVALID_RECORD: Final = 87
UNSTABLE_OFFSET_COMMIT: Final = 88
PRODUCER_FENCED: Final = 90
RESOURCE_NOT_FOUND: Final = 91
DUPLICATE_RESOURCE: Final = 92
UNACCEPTABLE_CREDENTIAL: Final = 93
UNKNOWN_TOPIC_ID: Final = 100
TRANSACTIONAL_ID_NOT_FOUND: Final = 105
FENCED_MEMBER_EPOCH: Final = 110
UNRELEASED_INSTANCE_ID: Final = 111
UNSUPPORTED_ASSIGNOR: Final = 112
STALE_MEMBER_EPOCH: Final = 113
UNSUPPORTED_ENDPOINT_TYPE: Final = 115
INVALID_RECORD_STATE: Final = 121
SHARE_SESSION_NOT_FOUND: Final = 122
INVALID_SHARE_SESSION_EPOCH: Final = 123
INVALID_REGULAR_EXPRESSION: Final = 128
SHARE_SESSION_LIMIT_REACHED: Final = 133

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


def api_types(name: str) -> tuple[Any, Any]:
    """Return kafka-python's types of request and response, for an API's name such as `Metadata`."""
    for module in _MODULES:
        request = getattr(module, f"{name}Request", None)
        if request is not None:
            return request, getattr(module, f"{name}Response")
    raise LookupError(name)
