"""Message properties as bytes: read what the broker needs, and change a few fields without touching the rest.

Format: flags u16, then the fields whose flag is set, from bit 15 down: short strings, except headers (a table),
delivery mode and priority (u8), timestamp (u64 seconds). These bytes follow the body size in a content header frame.
The broker stores and sends them as they arrived. Bit 0 would announce more flags and bit 1 is unused; AMQP 0-9-1 has no
such property, so both are rejected.

Invariants:
- `scan_properties` reads every byte and the structure of the headers. The other functions accept what it accepts.
- The functions that change properties (`with_*`, `without_*`) cut bytes. Every property and header that they do not
  name keeps its bytes, type letter and position. They never change their argument.

Compiled by mypyc. Source: AMQP 0-9-1 4.2.6.1. RabbitMQ accepts bit 0 and answers 541 to the other errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, final

from mypy_extensions import i64

from amqpd.protocol.field_table import (
    HAS_CC_OR_BCC,
    HAS_PRODUCER_ID,
    CodecError,
    decode_table,
    encode_entry,
    encode_table,
    field_end,
    read_u16,
    read_u32,
    read_u64,
    shortstr,
    summarize_table,
)

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004

NO_PROPERTIES: Final = b"\x00\x00"
DIRECT_REPLY_TO: Final = b"amq.rabbitmq.reply-to"

_ILLEGAL: Final = 0x0003
_LAST: Final = 0x0002
_DIRECT_REPLY_FIELD_SIZE: Final = 22  # DIRECT_REPLY_TO with its length


@final
class PropertyInfo:
    """The properties that the broker uses. One object can serve many messages: it has no positions of their ids.

    Attributes:
        flags: the u16; it distinguishes an absent field from an empty one.
        delivery_mode: 0 if absent.
        priority: -1 if absent.
        expiration: the text; None if absent.
        expiration_ms: the expiration as a number if it is 1 to 18 digits, otherwise -1.
        user_id: the text; None if absent.
        headers_start: position of the headers table with its length, from the flags; 0 without headers.
        has_cc_or_bcc: whether there is a header CC or BCC.
        has_producer_id: whether there is a header x-producer-id.
        header_flags: the last two as the flags of `summarize_table`.
        is_direct_reply_to: whether reply-to is amq.rabbitmq.reply-to, which the broker handles.
    """

    def __init__(self, flags: i64) -> None:
        self.flags: i64 = flags
        self.delivery_mode: i64 = 0
        self.priority: i64 = -1
        self.expiration: bytes | None = None
        self.expiration_ms: i64 = -1
        self.user_id: bytes | None = None
        self.headers_start: i64 = 0
        self.has_cc_or_bcc: bool = False
        self.has_producer_id: bool = False
        self.header_flags: i64 = 0
        self.is_direct_reply_to: bool = False

    @property
    def has_headers(self) -> bool:
        return self.headers_start > 0


class Properties(NamedTuple):
    """All properties, decoded. Texts are UTF-8, other bytes are surrogate escapes; the timestamp is in seconds, u64."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, object] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def valid_properties(data: bytes) -> bytes:
    """Return encoded properties, or none instead of invalid ones, which a log may have from another program."""
    try:
        scan_properties(data, 0, len(data))
    except CodecError:
        return NO_PROPERTIES
    return data


def scan_properties(data: bytes, start: i64, end: i64, before: PropertyInfo | None = None) -> PropertyInfo:
    """Validate the properties in [start, end) and return what the broker needs.

    Texts are not interpreted: an expiration may be no number, a delivery mode may be 99.
    Cost: about 40 ns (compiled), 5 ns more per header, and one object if `before` does not fit.

    Args:
        before: the result for an earlier message. It is returned again if it also fits this one; ids and other values
            that it does not hold may differ.

    Raises: CodecError for illegal flags, a field that is cut off, extra bytes, a bad table.
    """
    if start < 0 or end > len(data) or end - start < 2:
        raise CodecError("property flags are cut off")
    flags = read_u16(data, start)
    if flags & _ILLEGAL != 0:
        raise CodecError("property flags with an unused bit")
    position = start + 2
    headers_start: i64 = 0
    header_flags: i64 = 0
    delivery_mode: i64 = 0
    priority: i64 = -1
    is_direct_reply_to = False
    expiration_start: i64 = 0
    expiration_end: i64 = 0
    user_id_start: i64 = 0
    user_id_end: i64 = 0
    size: i64 = 0
    if flags & CONTENT_TYPE != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if flags & CONTENT_ENCODING != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if flags & HEADERS != 0:
        stop = _skip_table(data, position, end)
        headers_start = position - start
        header_flags = summarize_table(data, position, stop)
        position = stop
    if flags & DELIVERY_MODE != 0:
        if position >= end:
            raise CodecError("property is cut off")
        delivery_mode = data[position]
        position += 1
    if flags & PRIORITY != 0:
        if position >= end:
            raise CodecError("property is cut off")
        priority = data[position]
        position += 1
    if flags & CORRELATION_ID != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if flags & REPLY_TO != 0:
        stop = _skip_text(data, position, end)
        is_direct_reply_to = (
            stop - position == _DIRECT_REPLY_FIELD_SIZE and data[position + 1 : stop] == DIRECT_REPLY_TO
        )
        position = stop
    if flags & EXPIRATION != 0:
        expiration_start = position + 1
        position = _skip_text(data, position, end)
        expiration_end = position
    if flags & MESSAGE_ID != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if flags & TIMESTAMP != 0:
        position += 8
    if flags & TYPE != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if flags & USER_ID != 0:
        user_id_start = position + 1
        position = _skip_text(data, position, end)
        user_id_end = position
    if flags & APP_ID != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if flags & CLUSTER_ID != 0:
        if position >= end:
            raise CodecError("property is cut off")
        size = data[position]
        position += 1 + size
    if position > end:  # a text may end after the end
        raise CodecError("property is cut off")
    if position < end:
        raise CodecError("bytes after the last property")
    if (
        before is not None
        and before.flags == flags
        and before.headers_start == headers_start
        and before.delivery_mode == delivery_mode
        and before.priority == priority
        and before.header_flags == header_flags
        and before.is_direct_reply_to == is_direct_reply_to
        and (expiration_start == 0 or _is_text(data, expiration_start, expiration_end, before.expiration))
        and (user_id_start == 0 or _is_text(data, user_id_start, user_id_end, before.user_id))
    ):
        return before
    info = PropertyInfo(flags)
    info.headers_start = headers_start
    info.delivery_mode = delivery_mode
    info.priority = priority
    info.header_flags = header_flags
    info.has_cc_or_bcc = header_flags & HAS_CC_OR_BCC != 0
    info.has_producer_id = header_flags & HAS_PRODUCER_ID != 0
    info.is_direct_reply_to = is_direct_reply_to
    if expiration_start > 0:
        info.expiration = data[expiration_start:expiration_end]
        info.expiration_ms = _digits(data, expiration_start, expiration_end)
    if user_id_start > 0:
        info.user_id = data[user_id_start:user_id_end]
    return info


def _is_text(data: bytes, position: i64, end: i64, text: bytes | None) -> bool:
    """Return whether [position, end) equals `text`. Short texts are compared without allocating."""
    if text is None or end - position != len(text):
        return False
    if end - position > 12:
        return data[position:end] == text
    at: i64 = 0
    while position < end:
        if data[position] != text[at]:
            return False
        position += 1
        at += 1
    return True


def _digits(data: bytes, position: i64, end: i64) -> i64:
    """Return the number in [position, end) if it is 1 to 18 digits, otherwise -1."""
    if end - position < 1 or end - position > 18:
        return -1
    number: i64 = 0
    while position < end:
        digit: i64 = data[position]
        if digit < 0x30 or digit > 0x39:
            return -1
        number = number * 10 + digit - 0x30
        position += 1
    return number


def _skip_text(data: bytes, position: i64, end: i64) -> i64:
    if position >= end:
        raise CodecError("property is cut off")
    size: i64 = data[position]
    position += 1 + size
    if position > end:
        raise CodecError("property is cut off")
    return position


def _skip_table(data: bytes, position: i64, end: i64) -> i64:
    if end - position < 4:
        raise CodecError("property is cut off")
    position += 4 + read_u32(data, position)
    if position > end:
        raise CodecError("headers are longer than their container")
    return position


def _skip_field(data: bytes, flag: i64, position: i64, end: i64) -> i64:
    if flag == HEADERS:
        return _skip_table(data, position, end)
    if flag in (DELIVERY_MODE, PRIORITY):
        position += 1
    elif flag == TIMESTAMP:
        position += 8
    else:
        return _skip_text(data, position, end)
    if position > end:
        raise CodecError("property is cut off")
    return position


def _legal_flags(data: bytes, start: i64, end: i64) -> i64:
    if start < 0 or end > len(data) or end - start < 2:
        raise CodecError("property flags are cut off")
    flags = read_u16(data, start)
    if flags & _ILLEGAL != 0:
        raise CodecError("property flags with an unused bit")
    return flags


def _field_span(data: bytes, start: i64, end: i64, wanted: i64) -> tuple[i64, i64]:
    """Return start and end of the field with flag `wanted`; if it is absent, twice the position where it belongs."""
    flags = _legal_flags(data, start, end)
    position = start + 2
    flag: i64 = CONTENT_TYPE
    while flag > wanted:
        if flags & flag != 0:
            position = _skip_field(data, flag, position, end)
        flag >>= 1
    if flags & wanted == 0:
        return position, position
    return position, _skip_field(data, wanted, position, end)


def decode_properties(data: bytes) -> Properties:
    """Decode all properties; they must fill `data`. Cost: 2 to 10 us. Raises: CodecError as `scan_properties`."""
    end: i64 = len(data)
    flags = _legal_flags(data, 0, end)
    position: i64 = 2
    flag: i64 = CONTENT_TYPE
    fields: list[object] = []
    while flag > _LAST:
        if flags & flag == 0:
            fields.append(None)
        else:
            stop = _skip_field(data, flag, position, end)
            if flag == HEADERS:
                summarize_table(data, position, stop)
                table, _ = decode_table(data, position, stop)
                fields.append(table)
            elif flag in (DELIVERY_MODE, PRIORITY):
                fields.append(data[position])
            elif flag == TIMESTAMP:
                fields.append(read_u64(data, position))
            else:
                fields.append(data[position + 1 : stop].decode("utf-8", "surrogateescape"))
            position = stop
        flag >>= 1
    if position != end:
        raise CodecError("bytes after the last property")
    return Properties._make(fields)


def encode_properties(properties: Properties) -> bytes:
    """Encode the properties that are not None. Raises: CodecError if a value does not fit its field."""
    flags = 0
    parts: list[bytes] = []
    flag = CONTENT_TYPE
    for value in properties:
        if value is not None:
            flags |= flag
            parts.append(_encode_field(flag, value))
        flag >>= 1
    return flags.to_bytes(2, "big") + b"".join(parts)


def _encode_field(flag: int, value: object) -> bytes:
    if flag == HEADERS:
        if isinstance(value, Mapping):
            return encode_table(value)
    elif flag in (DELIVERY_MODE, PRIORITY, TIMESTAMP):
        if isinstance(value, int):
            try:
                return value.to_bytes(8 if flag == TIMESTAMP else 1, "big")
            except OverflowError:
                raise CodecError("number that does not fit its property") from None
    elif isinstance(value, str):
        return shortstr(value)
    raise CodecError(type(value).__name__ + " does not fit the property")


def decode_property(data: bytes, flag: i64) -> object:
    """Decode the one property with this flag, not HEADERS; None if it is absent.

    Cost: the properties before it. Raises: CodecError.
    """
    position, stop = _field_span(data, 0, len(data), flag)
    if position == stop:
        return None
    if flag in (DELIVERY_MODE, PRIORITY):
        return data[position]
    if flag == TIMESTAMP:
        return read_u64(data, position)
    return data[position + 1 : stop].decode("utf-8", "surrogateescape")


def headers_span(data: bytes, start: i64, end: i64) -> tuple[i64, i64]:
    """Return start and end of the headers table, with its length, in the properties [start, end).

    Both are the same if there is none. Raises: CodecError.
    """
    return _field_span(data, start, end, HEADERS)


def decode_headers(data: bytes, start: i64, end: i64) -> dict[str, object]:
    """Decode the headers in the properties [start, end); empty if there are none.

    With a PropertyInfo, `decode_table(properties, info.headers_start)` saves the search. Raises: CodecError.
    """
    position, stop = _field_span(data, start, end, HEADERS)
    if position == stop:
        return {}
    table, _ = decode_table(data, position, stop)
    return table


def without_headers(properties: bytes, names: Collection[str]) -> bytes:
    """Return the properties without the headers of these names; the same object if it has none of them.

    A table that becomes empty stays. Cost: one pass over the top level of the table. Raises: CodecError.
    """
    return with_headers(properties, {}, names)


def with_headers(properties: bytes, changes: Mapping[str, object], drop: Collection[str] = ()) -> bytes:
    """Return the properties with the headers of `changes` set and those named in `drop` removed.

    A name in both is set. An existing header is replaced at its position, and later entries of the same name are
    removed; a new header is added at the end. Values are encoded as by `encode_table`. The result may be longer than a
    frame: the caller checks that. Raises: CodecError.
    """
    end: i64 = len(properties)
    start, stop = _field_span(properties, 0, end, HEADERS)
    fresh: dict[bytes, bytes] = {}
    for name, value in changes.items():
        entry = encode_entry(name, value)
        fresh[entry[1 : 1 + entry[0]]] = entry
    gone = [shortstr(name)[1:] for name in drop]
    entries: list[bytes] = []
    replaced: list[bytes] = []
    changed = False
    position = start + 4
    while position < stop:
        size: i64 = properties[position]
        name_end = position + 1 + size
        after = field_end(properties, name_end, stop)
        raw = properties[position + 1 : name_end]
        if raw in fresh:
            if raw not in replaced:
                replaced.append(raw)
                entries.append(fresh[raw])
            changed = True
        elif raw in gone:
            changed = True
        else:
            entries.append(properties[position:after])
        position = after
    for raw, entry in fresh.items():
        if raw not in replaced:
            entries.append(entry)
            changed = True
    if not changed:
        return properties
    table = b"".join(entries)
    return _replace(properties, HEADERS, start, stop, len(table).to_bytes(4, "big") + table)


def with_encoded_headers(properties: bytes, entries: bytes) -> bytes:
    """Return the properties with these headers added at the end. None of the names may be present already.

    Args:
        entries: the result of `encode_entry`, one or several.

    The result may be longer than a frame. Raises: CodecError.
    """
    start, stop = _field_span(properties, 0, len(properties), HEADERS)
    table = entries if start == stop else properties[start + 4 : stop] + entries
    return _replace(properties, HEADERS, start, stop, len(table).to_bytes(4, "big") + table)


def with_reply_to(properties: bytes, reply_to: bytes) -> bytes:
    """Return the properties with this reply-to. Raises: CodecError if it is over 255 bytes."""
    start, stop = _field_span(properties, 0, len(properties), REPLY_TO)
    return _replace(properties, REPLY_TO, start, stop, shortstr(reply_to))


def without_expiration(properties: bytes) -> bytes:
    """Return the properties without expiration; the same object if there is none. Raises: CodecError."""
    start, stop = _field_span(properties, 0, len(properties), EXPIRATION)
    if start == stop:
        return properties
    return _replace(properties, EXPIRATION, start, stop, b"")


def _replace(properties: bytes, flag: i64, start: i64, stop: i64, field: bytes) -> bytes:
    """Return the properties with `field` in place of [start, stop).

    Its flag is cleared if `field` is empty, else set.
    """
    flags = read_u16(properties, 0)
    flags = flags & ~flag if field == b"" else flags | flag
    whole: int = flags
    return whole.to_bytes(2, "big") + properties[2:start] + field + properties[stop:]
