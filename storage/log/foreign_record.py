"""Records of other programs, such as Kafka's producers, as AMQP messages.

A record that has exactly the headers `exchange` and `properties`, in this order, is one of ours (record.py). Any other
record is stored as it came, and readers of messages see this:

    key                     routing key; null is an empty one
    value                   body; null is an empty body, with the header `x-tombstone: true`
    timestamp               property timestamp (seconds) and header `timestamp_in_ms`
    header `exchange`       exchange
    header of a property    the property: `content-type`, `content-encoding`, `priority`, `correlation-id`, `reply-to`,
                            `expiration`, `message-id`, `type`, `app-id`
    other headers           headers table: values as long strings, null as void, a repeated name as an array

A value that its property cannot have, such as the priority `high`, stays in the headers table. A short string of AMQP
has at most 255 bytes of UTF-8. For what is none there are more headers:

    `x-kafka-key`               the key; the routing key is as much of it as fits
    `x-kafka-headers`           array of arrays of name and value: headers with such names
    `x-kafka-headers-omitted`   number of headers, or keys, that a message has no room for (MESSAGE_BYTES_MAX,
                                HEADERS_MAX)

If the record has the header `properties` with encoded properties, the message has these. Other headers are added
unless the properties have a header or property of the same name: they repeat it as text.

No record is refused. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i64

from amqpd.protocol.field_table import CodecError, Int64
from amqpd.protocol.properties import (
    Properties,
    decode_headers,
    decode_properties,
    encode_properties,
    scan_properties,
    with_headers,
)

Header = tuple[bytes, bytes | None]

EXCHANGE: Final = b"exchange"
PROPERTIES: Final = b"properties"
TIME_MS: Final = "timestamp_in_ms"
"""RabbitMQ's name for the time in milliseconds."""
KEY: Final = "x-kafka-key"
HEADERS: Final = "x-kafka-headers"
OMITTED: Final = "x-kafka-headers-omitted"
TOMBSTONE: Final = "x-tombstone"
SHORT_BYTES_MAX: Final = 255
EXPIRATION_MS_MAX: Final = 315_360_000_000
"""Ten years, as for messages of AMQP."""
MESSAGE_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes of names and values of the headers of a message: AMQP sends them in one frame, 128 KiB by default."""
HEADERS_MAX: Final = 4096
"""Maximum number of headers of a message: a record may have millions of empty ones."""
PROPERTY_FIELDS: Final[dict[bytes, str]] = {
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"priority": "priority",
    b"correlation-id": "correlation_id",
    b"reply-to": "reply_to",
    b"expiration": "expiration",
    b"message-id": "message_id",
    b"type": "type",
    b"app-id": "app_id",
}
"""Header of a record -> field of `Properties`."""

_PERSISTENT: Final = 2
_NO_TIME: Final = encode_properties(Properties(delivery_mode=_PERSISTENT))
_WITH_TIME: Final = encode_properties(Properties(headers={TIME_MS: Int64(0)}, delivery_mode=_PERSISTENT, timestamp=0))
_BEFORE_TIME: Final = _WITH_TIME[:-17]  # a time of eight bytes, the delivery mode, and a time of eight bytes


def message_fields(
    key: bytes, is_null: bool, headers: list[Header], timestamp_ms: i64, omitted: i64 = 0
) -> tuple[bytes, bytes, bytes]:
    """Return exchange, routing key and encoded properties of the message for a record.

    Args:
        key: empty for a null one.
        is_null: the value is null.
        headers: at most HEADERS_MAX.
        timestamp_ms: since 1970; negative: there is none.
        omitted: number of headers of the record that are not in `headers`.

    Cost: about 0.3 us for a record without headers, 5 us and more with some.
    """
    is_short = is_short_text(key)
    if is_short and not is_null and not headers and omitted == 0:
        return b"", key, _time_properties(timestamp_ms)
    table: dict[str, object] = {}
    if is_null:
        table[TOMBSTONE] = True
    exchange, given, others = _split(headers)
    fitting: list[Header] = []
    size: i64 = len(given)
    if not is_short:
        if size + len(key) <= MESSAGE_BYTES_MAX:
            table[KEY] = key
            size += len(key)
        else:
            omitted += 1
    for name, content in others:
        more: i64 = len(name) if content is None else len(name) + len(content)
        if size + more > MESSAGE_BYTES_MAX:
            omitted += 1
        else:
            size += more
            fitting.append((name, content))
    if omitted > 0:
        table[OMITTED] = int(omitted)
    routing_key = key if is_short else shortened(key)
    if given:
        return exchange, routing_key, _completed(given, table, fitting)
    return exchange, routing_key, _properties(table, fitting, timestamp_ms)


def is_short_text(content: bytes) -> bool:
    """Return whether a short string of AMQP can have these bytes: at most 255, and UTF-8."""
    if len(content) > SHORT_BYTES_MAX:
        return False
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def shortened(content: bytes) -> bytes:
    """Return the start of these bytes as UTF-8 of at most 255 bytes; U+FFFD replaces what is none."""
    text = content[:SHORT_BYTES_MAX].decode("utf-8", "replace").encode()
    return text[:SHORT_BYTES_MAX].decode("utf-8", "ignore").encode()


def are_properties(content: bytes) -> bool:
    """Return whether these bytes are encoded properties that a message has room for."""
    if len(content) > MESSAGE_BYTES_MAX:
        return False
    try:
        scan_properties(content, 0, len(content))
    except CodecError:
        return False
    return True


def _time_properties(timestamp_ms: i64) -> bytes:
    if timestamp_ms < 0:
        return _NO_TIME
    time_ms: int = timestamp_ms
    return _BEFORE_TIME + time_ms.to_bytes(8, "big") + b"\x02" + (time_ms // 1000).to_bytes(8, "big")


def _split(headers: list[Header]) -> tuple[bytes, bytes, list[Header]]:
    """Return the exchange, valid properties (empty if there are none), and the other headers."""
    exchange = b""
    properties = b""
    has_exchange = False
    others: list[Header] = []
    for header in headers:
        name, content = header
        if content is not None and name == EXCHANGE and not has_exchange and is_short_text(content):
            exchange = content
            has_exchange = True
        elif content is not None and name == PROPERTIES and not properties and are_properties(content):
            properties = content
        else:
            others.append(header)
    return exchange, properties, others


def _properties(table: dict[str, object], headers: list[Header], timestamp_ms: i64) -> bytes:
    fields: dict[str, Any] = {}
    if timestamp_ms >= 0:
        time_ms: int = timestamp_ms
        table[TIME_MS] = Int64(time_ms)
        fields["timestamp"] = time_ms // 1000
    long: list[object] = []
    for name, content in headers:
        field = PROPERTY_FIELDS.get(name)
        value = None if field is None or field in fields or content is None else _property_value(field, content)
        if field is not None and value is not None:
            fields[field] = value
        elif is_short_text(name):
            _add(table, name.decode(), content)
        else:
            long.append([name, content])
    if long:
        _add(table, HEADERS, long)
    return encode_properties(Properties(headers=table or None, delivery_mode=_PERSISTENT)._replace(**fields))


def _property_value(field: str, content: bytes) -> str | int | None:
    """Return the value of a property, None if the bytes cannot be one."""
    if not is_short_text(content):
        return None
    if field == "priority":
        return int(content) if content.isdigit() and len(content) <= 3 and int(content) <= 255 else None
    if field == "expiration" and not (content.isdigit() and len(content) <= 15 and int(content) <= EXPIRATION_MS_MAX):
        return None
    return content.decode()


def _add(table: dict[str, object], name: str, content: object) -> None:
    if name not in table:
        table[name] = content
        return
    before = table[name]
    if isinstance(before, list):
        before.append(content)
    else:
        table[name] = [before, content]


def _completed(given: bytes, table: dict[str, object], headers: list[Header]) -> bytes:
    """Return given properties with the headers of `table` and others whose names they do not have."""
    known = decode_headers(given, 0, len(given))
    fields = decode_properties(given)
    found: dict[str, object] = {}
    long: list[object] = []
    for name, content in headers:
        if not is_short_text(name):
            long.append([name, content])
            continue
        text = name.decode()
        field = PROPERTY_FIELDS.get(name)
        if text not in known and (field is None or getattr(fields, field) is None):
            _add(found, text, content)
    if long:
        _add(table, HEADERS, long)
    for text, value in table.items():
        if text not in known and text not in found:
            found[text] = value
    return with_headers(given, found) if found else given
