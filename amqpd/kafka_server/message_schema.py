"""Decoder and encoder of the bodies that have definitions, in kafka-python or in messages.py: most of them.

Both work in steps (pace.py), because some requests have thousands of elements. An array is read only if its elements
can be in the bytes that are left. All arrays of a request have at most ELEMENTS_MAX elements together; those of int32
are read at once and have NUMBERS_MAX. All its structs have at most TAGS_MAX tagged fields. kafka-python's own decoder
has no limits, and copies the rest of the request for each struct with tagged fields.

A `DecodedStruct` has an attribute for each field. Fields that the version does not have have their defaults. A value
that is null although the version does not allow it is a `MalformedRequest`, so handlers need not look for it.

Cost: some 2 us for a struct, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from amqpd.kafka_server.messages import Definition, MalformedRequest
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import UUID_SIZE, BodyWriter, RequestReader

ELEMENTS_MAX: Final = 25_000
"""Elements of all arrays of a request. Handlers accept fewer."""
STEP_ELEMENTS: Final = 32
"""Elements of arrays in one step."""


class DecodedStruct:
    """A decoded struct."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values


class _Field(NamedTuple):
    """A field of a struct, in one version.

    Attributes:
        is_array: an array of int32 is none here, but a value.
        read, write: decoder and encoder of the value, or of an element of the array; None for structs.
        struct: None if the value, or the element, is no struct.
    """

    name: str
    is_array: bool
    nullable: bool
    read: Callable[[RequestReader], Any] | None
    write: Callable[[BodyWriter, Any], None] | None
    struct: _Struct | None
    default: Any


class _Struct(NamedTuple):
    """A struct in one version.

    Attributes:
        fields: in order, without the tagged ones.
        tagged: by tag.
        defaults: of all fields, those of other versions included.
        has_arrays: also within structs.
        is_flat: it has values only.
    """

    fields: tuple[_Field, ...]
    tagged: dict[int, _Field]
    defaults: dict[str, Any]
    has_arrays: bool
    is_flat: bool


def _write_bits(writer: BodyWriter, bits: frozenset[int] | None) -> None:
    writer.int32(-(1 << 31) if bits is None else sum(1 << bit for bit in bits))


def _read_id(reader: RequestReader) -> bytes:
    return reader.take(UUID_SIZE)


def _write_id(writer: BodyWriter, value: bytes) -> None:
    writer.data += value


_READERS: Final[Mapping[str, Callable[[RequestReader], Any]]] = {
    "int8": RequestReader.int8,
    "int16": RequestReader.int16,
    "uint16": RequestReader.uint16,
    "int32": RequestReader.int32,
    "int64": RequestReader.int64,
    "float64": RequestReader.float64,
    "bool": RequestReader.boolean,
    "uuid": RequestReader.nullable_uuid,
    "id": _read_id,
    "string": RequestReader.text,
    "bytes": RequestReader.content,
    "records": RequestReader.content,
    "[]int32": RequestReader.int32s,
}
_NULLABLE_READERS: Final[Mapping[str, Callable[[RequestReader], Any]]] = {
    **_READERS,
    "string": RequestReader.nullable_text,
    "bytes": RequestReader.nullable_content,
    "records": RequestReader.nullable_content,
    "[]int32": RequestReader.nullable_int32s,
}
_WRITERS: Final[Mapping[str, Callable[[BodyWriter, Any], None]]] = {
    "int8": BodyWriter.int8,
    "int16": BodyWriter.int16,
    "uint16": BodyWriter.uint16,
    "int32": BodyWriter.int32,
    "int64": BodyWriter.int64,
    "float64": BodyWriter.float64,
    "bool": BodyWriter.boolean,
    "uuid": BodyWriter.nullable_uuid,
    "id": _write_id,
    "string": BodyWriter.string,
    "bytes": BodyWriter.content,
    "records": BodyWriter.content,
    "bitfield": _write_bits,
    "[]int32": BodyWriter.int32s,
}


@cache
def _struct_of(definition: Any, version: int) -> _Struct:
    """Return the struct of a definition, of a message or of a field."""
    if isinstance(definition, Definition):
        return _parsed(iter(definition.fields.split()), version)
    fields: list[_Field] = []
    tagged: dict[int, _Field] = {}
    defaults: dict[str, Any] = {}
    for name, each in definition.fields.items():
        is_struct = each.is_struct() or each.is_struct_array()
        default = defaults[name] = None if each.is_struct() else each.default
        if not each.for_version_q(version):
            continue
        kind = "[]" if each.is_struct_array() else "" if is_struct else each.type_str
        struct = _struct_of(each.data_class, version) if is_struct else None
        field = _field(name, kind, each.nullable_for_version_q(version), struct, default)
        if each.tagged_field_q(version):
            tagged[each.tag] = field
        else:
            fields.append(field)
    return _struct(fields, tagged, defaults)


def _field(name: str, kind: str, nullable: bool, struct: _Struct | None, default: Any) -> _Field:
    """Return a field. kind: the type; of an array with `[]` before it, of a struct without a name."""
    is_array = kind.startswith("[]") and kind not in _READERS
    kind = kind.removeprefix("[]") if is_array else kind
    readers = _NULLABLE_READERS if nullable and not is_array else _READERS
    return _Field(name, is_array, nullable, readers.get(kind), _WRITERS.get(kind), struct, default)


def _struct(fields: list[_Field], tagged: dict[int, _Field], defaults: dict[str, Any]) -> _Struct:
    everything = (*fields, *tagged.values())
    has_arrays = any(each.is_array or (each.struct is not None and each.struct.has_arrays) for each in everything)
    is_flat = all(each.write is not None and not each.is_array for each in fields)
    return _Struct(tuple(fields), tagged, defaults, has_arrays, is_flat)


def _parsed(words: Iterator[str], version: int) -> _Struct:
    """Return the struct whose fields are the next words of a `Definition`, up to their end or the `}`."""
    fields: list[_Field] = []
    defaults: dict[str, Any] = {}
    for name in words:
        if name == "}":
            break
        found = _TYPE.fullmatch(next(words))
        assert found is not None
        first, nullable, kind = int(found[1] or 0), bool(found[2]), found[3]
        struct = _parsed(words, version) if kind.endswith("{") else None
        kind = kind.removesuffix("{")
        default: Any = [] if kind.startswith("[]") else "" if kind == "string" else 0
        defaults[name] = None if nullable or kind == "bitfield" else default
        if version >= first:
            fields.append(_field(name, kind, nullable, struct, defaults[name]))
    return _struct(fields, {}, defaults)


_TYPE: Final = re.compile(r"(?:(\d+)\+)?(\??)((?:\[\])?(?:\w+|\{))")


# -- decoder


def decode_steps(message_type: Any, version: int, reader: RequestReader) -> Steps[DecodedStruct]:
    """Return the body of a request.

    Args:
        message_type: see `messages.api_types`.
        reader: at the begin of the body.

    Raises: MalformedRequest.
    """
    decoder = _Decoder(reader, f"{message_type.name} version {version}")
    return (yield from decoder.struct(_struct_of(message_type, version)))


class _Decoder:
    """A body that is being decoded. name: of the request, for errors."""

    def __init__(self, reader: RequestReader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._left = ELEMENTS_MAX
        self._in_step = 0

    def struct(self, struct: _Struct) -> Steps[DecodedStruct]:
        """Return a struct with arrays."""
        values = dict(struct.defaults)
        for field in struct.fields:
            read = field.read
            if read is None or field.is_array:
                values[field.name] = yield from self._value(field)
            else:
                values[field.name] = read(self._reader)
        if not struct.tagged:
            self._reader.end_struct()
        elif self._reader.flexible:
            for field, end in self._tags(struct):
                values[field.name] = yield from self._value(field)
                self._end_tag(end)
        return DecodedStruct(values)

    def _flat(self, struct: _Struct) -> DecodedStruct:
        """Return a struct without arrays."""
        reader = self._reader
        values = dict(struct.defaults)
        for name, _, nullable, read, _, inner, _ in struct.fields:
            if read is not None:
                values[name] = read(reader)
            elif inner is not None:
                values[name] = None if nullable and reader.is_null() else self._flat(inner)
        if not struct.tagged:
            reader.end_struct()
        elif reader.flexible:
            for field, end in self._tags(struct):
                if field.read is not None:
                    values[field.name] = field.read(reader)
                self._end_tag(end)
        return DecodedStruct(values)

    def _tags(self, struct: _Struct) -> Any:
        """Yield the known tagged fields at the end of a struct, with the position after each. Others are skipped."""
        for tag, end in self._reader.tags():
            field = struct.tagged.get(tag)
            if field is None:
                self._reader.position = end
            else:
                yield field, end

    def _end_tag(self, end: int) -> None:
        if self._reader.position != end:
            raise MalformedRequest(f"{self._name} has a tagged field with another size than its value")

    def _value(self, field: _Field) -> Steps[Any]:
        if field.is_array:
            return (yield from self._array(field))
        if field.struct is None:
            assert field.read is not None  # requests have no other types
            return field.read(self._reader)
        if field.nullable and self._reader.is_null():
            return None
        return (yield from self.struct(field.struct)) if field.struct.has_arrays else self._flat(field.struct)

    def _array(self, field: _Field) -> Steps[list[Any] | None]:
        reader, inner, read = self._reader, field.struct, field.read
        count = reader.nullable_count(self._left)
        if count < 0:
            if not field.nullable:
                raise MalformedRequest(f"{self._name} has null for {field.name}")
            return None
        self._left -= count
        values: list[Any] = []
        for _ in range(count):
            if read is not None:
                values.append(read(reader))
            elif inner is not None:
                values.append((yield from self.struct(inner)) if inner.has_arrays else self._flat(inner))
            self._in_step += 1
            if self._in_step >= STEP_ELEMENTS:
                self._in_step = 0
                yield
        return values


# -- encoder


def encode_steps(message_type: Any, version: int, flexible: bool, fields: Mapping[str, Any]) -> Steps[bytes]:
    """Return the body of a response.

    Args:
        message_type: see `messages.api_types`.
        flexible: the version has compact lengths and tagged fields. No field of a response is a tagged one here.
        fields: plain values, lists, and mappings for structs. Missing fields have their defaults, and those that the
            version does not have are left out. An array, or a struct in it, may be encoded already.
    """
    encoder = _Encoder(BodyWriter(flexible))
    yield from encoder.struct(_struct_of(message_type, version), fields)
    return bytes(encoder.writer.data)


def encode_array_steps(
    message_type: Any, version: int, flexible: bool, count: int, structs: Iterable[Mapping[str, Any]]
) -> Steps[bytes]:
    """Return an array of so many structs as a value of a field: one that several have, or a long one."""
    encoder = _Encoder(BodyWriter(flexible))
    encoder.writer.count(count)
    yield from encoder.elements(_field("", "[]", False, _struct_of(message_type, version), None), structs)
    return bytes(encoder.writer.data)


class _Encoder:
    """A body that is being encoded."""

    def __init__(self, writer: BodyWriter) -> None:
        self.writer = writer
        self._in_step = 0

    def struct(self, struct: _Struct, values: Mapping[str, Any]) -> Steps[None]:
        for field in struct.fields:
            value = values.get(field.name, field.default)
            if field.is_array:
                yield from self._array(field, value)
            elif field.write is not None:
                field.write(self.writer, value)
            else:
                yield from self._inner(field, value)
        self.writer.end()

    def _flat(self, struct: _Struct, values: Mapping[str, Any]) -> None:
        """Add a struct of values only."""
        writer = self.writer
        for name, _, _, _, write, _, default in struct.fields:
            if write is not None:
                write(writer, values.get(name, default))
        writer.end()

    def _inner(self, field: _Field, value: Mapping[str, Any] | None) -> Steps[None]:
        assert field.struct is not None
        if field.nullable:
            self.writer.int8(-1 if value is None else 1)
        if value is not None:
            yield from self.struct(field.struct, value)

    def _array(self, field: _Field, values: Any) -> Steps[None]:
        if isinstance(values, bytes):
            self.writer.data += values
            return
        self.writer.count(-1 if values is None else len(values))
        yield from self.elements(field, values or ())

    def elements(self, field: _Field, values: Iterable[Any]) -> Steps[None]:
        writer, inner, write = self.writer, field.struct, field.write
        for each in values:
            if write is not None:
                write(writer, each)
            elif isinstance(each, bytes):
                writer.data += each
            elif inner is not None and inner.is_flat:
                self._flat(inner, each)
            elif inner is not None:
                yield from self.struct(inner, each)
            self._in_step += 1
            if self._in_step >= STEP_ELEMENTS:
                self._in_step = 0
                yield
