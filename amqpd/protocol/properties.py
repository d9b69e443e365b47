"""The properties of a message, as bytes: what the broker must know of them, and how to change a few without the rest.

Format: flags u16, then the fields whose flag is set, in the order of the flags from bit 15 down (short strings, but
headers a table, delivery mode and priority u8, timestamp u64 seconds). This is what stands in a content header frame
behind the body size; it is kept and sent on as it arrived. Bit 0 would announce more flags, bit 1 means nothing: AMQP
0-9-1 has no such property, so both are refused.

Invariants: `scan` looks at every byte and at the structure of the headers, and what it accepts nothing here refuses
later. The functions that change properties (`with_*`, `without_*`) do so by cutting bytes: every property and every
header they do not name keeps its bytes, its type letter and its place. None of them changes the bytes it is given.

Compiled by mypyc. Source: AMQP 0-9-1 4.2.6.1; RabbitMQ takes a set bit 0 and fails with 541 on the rest.
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
_DIRECT_REPLY_FIELD_SIZE: Final = 22  # of the text above, with its length


@final
class PropertyInfo:
    """What the broker must know of a message, or of many: it says nothing of where in their bytes anything ends.

    flags: the u16, so that a field that is absent can be told from one that is empty or 0. delivery_mode: 0 absent.
    priority: -1 absent. expiration, user_id: raw text, None absent. expiration_ms: the first as a number where it is
    one of 1 to 18 plain digits, else -1. headers_start: where the headers table with its length begins, counted from
    the flags; 0 without headers. has_cc_or_bcc: there is a header CC or BCC. has_producer_id: there is
    one x-producer-id. is_direct_reply_to: reply-to is amq.rabbitmq.reply-to, which the broker answers for; any other is
    between the clients.
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
        self.header_flags: i64 = 0  # the last two as one
        self.is_direct_reply_to: bool = False

    @property
    def has_headers(self) -> bool:
        return self.headers_start > 0


class Properties(NamedTuple):
    """All properties, decoded. Texts are UTF-8, other bytes as surrogate escapes; timestamp in seconds, u64."""

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


def scan_properties(data: bytes, start: i64, end: i64, before: PropertyInfo | None = None) -> PropertyInfo:
    """Check that [start, end) is one whole set of properties, and note what the broker must know.

    before: of a message that may be like this one; it is returned again where nothing of that differs,
    whatever ids and other values do. Texts are not looked into: an expiration may be no number, a delivery mode may be
    99. Cost: some 40 ns compiled, 5 ns more per header, and one object where `before` does not fit. Raises: CodecError
    for illegal flags, a field cut off, bytes left over, a bad table.
    """
    if start < 0 or end > len(data) or end - start < 2:
        raise CodecError("property flags are cut off")
    flags = read_u16(data, start)
    if flags & _ILLEGAL != 0:
        raise CodecError("property flags with a bit that means nothing")
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
    if position > end:  # a text may have been passed over beyond it
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
    """Whether [position, end) is `text`; short ones are compared without an object."""
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
    """The number that [position, end) is, if it is 1 to 18 digits; else -1."""
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
        raise CodecError("headers are longer than what holds them")
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
        raise CodecError("property flags with a bit that means nothing")
    return flags


def _field_span(data: bytes, start: i64, end: i64, wanted: i64) -> tuple[i64, i64]:
    """Where the field of flag `wanted` begins and ends; where it would go, twice, when it is absent."""
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
    """All properties of `data`, which they fill. Cost: 2 to 10 us. Raises: CodecError, as `scan` does."""
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
    """`properties` as bytes, without those that are None. Raises: CodecError when a value does not fit its field."""
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
    """The one property of `flag`, decoded as `decode_properties` does; None when it is absent. Not for HEADERS.

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
    """Where the headers table of the properties [start, end), with its length, begins and ends.

    The same place twice when there is none. Raises: CodecError.
    """
    return _field_span(data, start, end, HEADERS)


def decode_headers(data: bytes, start: i64, end: i64) -> dict[str, object]:
    """The headers in the properties [start, end), decoded; empty when there are none.

    Where a PropertyInfo is at hand, `decode_table(properties, info.headers_start)` saves the way. Raises: CodecError.
    """
    position, stop = _field_span(data, start, end, HEADERS)
    if position == stop:
        return {}
    table, _ = decode_table(data, position, stop)
    return table


def without_headers(properties: bytes, names: Collection[str]) -> bytes:
    """`properties` without the headers of these names; the same object when it has none of them.

    A table that loses its last entry stays, empty. Cost: one pass over the top of the table. Raises: CodecError.
    """
    return with_headers(properties, {}, names)


def with_headers(properties: bytes, changes: Mapping[str, object], drop: Collection[str] = ()) -> bytes:
    """`properties` with the headers of `changes` set, and those named in `drop` gone; a name in both is set.

    A header that is there is replaced in its place (and its later namesakes go), a new one comes last; values are
    encoded as encode_table does. The result may be longer than a frame: the caller sees to that. Raises: CodecError.
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
    """`properties` with these headers behind those it has, none of which is of the same name.

    entries: as `encode_entry` gives them. The result may be longer than a frame. Raises: CodecError.
    """
    start, stop = _field_span(properties, 0, len(properties), HEADERS)
    table = entries if start == stop else properties[start + 4 : stop] + entries
    return _replace(properties, HEADERS, start, stop, len(table).to_bytes(4, "big") + table)


def with_reply_to(properties: bytes, reply_to: bytes) -> bytes:
    """`properties` with this reply-to, set or put in. Raises: CodecError when it is over 255 bytes."""
    start, stop = _field_span(properties, 0, len(properties), REPLY_TO)
    return _replace(properties, REPLY_TO, start, stop, shortstr(reply_to))


def without_expiration(properties: bytes) -> bytes:
    """`properties` without the expiration; the same object when there is none. Raises: CodecError."""
    start, stop = _field_span(properties, 0, len(properties), EXPIRATION)
    if start == stop:
        return properties
    return _replace(properties, EXPIRATION, start, stop, b"")


def _replace(properties: bytes, flag: i64, start: i64, stop: i64, field: bytes) -> bytes:
    """`properties` with `field` where [start, stop) was, and its flag set, or cleared when `field` is empty."""
    flags = read_u16(properties, 0)
    flags = flags & ~flag if field == b"" else flags | flag
    whole: int = flags
    return whole.to_bytes(2, "big") + properties[2:start] + field + properties[stop:]
