"""Bodies as columns: the struct `payload` with a schema that is fixed, and what does not fit it.

Avro is in payload_avro.py, Protobuf in payload_protobuf.py; this module has JSON and what all formats share. The schema
of JSON bodies is a part of JSON Schema:

    type                  string, integer, number, boolean, object or array; integer has 64 bits, number is a double
    properties            of an object; every field may be null or missing, and other fields are ignored
    items                 of an array
    format: date-time     of a string: a timestamp in UTC
    $schema, $id, title, description, examples     are ignored; other keywords are errors

A body does not fit if it is no JSON object in UTF-8, or if a field of the schema has another type in it. `null` and
a missing field fit each type.

All bodies of a batch are one text for pyarrow's JSON reader. Each body is in an array, with an object behind it that
has the body's number in a field with a random name. So a body that continues the text around it (`{},"x":{}`) is not
taken for an object. If the reader refuses the text, the text is halved until the bodies that do not fit are alone.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from amqpd.storage.export.schema_registry import SchemaRegistry, registry_of

PAYLOAD: Final = "payload"
ERROR: Final = "payload_error"
REJECT_COLUMNS: Final = (
    "vhost", "queue", "offset", "timestamp", "exchange", "routing_key", "value", "raw_properties",
)  # fmt: skip
"""Columns of a rejected message, which is whole: `amqpctl import` publishes it again."""
SAMPLE_ROWS: Final = 1000
"""Number of messages from which a schema is inferred."""
DEPTH_MAX: Final = 50
"""Objects and arrays within one another in an inferred schema."""
SLICE_BYTES: Final = 256 << 10
"""Bodies that become Python's objects at one time. Some bodies make objects of 300 times their size."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_SCALARS: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_ANNOTATIONS: Final = frozenset({"$schema", "$id", "title", "description", "examples"})
_REASON_MAX: Final = 200


class BadSchema(ValueError):
    """The schema of payloads cannot be used; the text says why and what to do."""


class ParsedPayloads(NamedTuple):
    """The payloads of a batch.

    Attributes:
        payload: Struct array; null where a body does not fit.
        error: String array: why a body does not fit; null where it does.
    """

    payload: Any
    error: Any


class Parser(Protocol):
    """Parses bodies to structs of one type. It has caches, so a process uses one parser for all batches."""

    kind: Any

    def parse(self, bodies: Any) -> ParsedPayloads:
        """Return the payloads of a binary array. Raises: RegistryError, if there is a schema registry."""


@dataclass(frozen=True)
class PayloadFormat:
    """A format of bodies with a fixed schema. It is hashable, and worker processes get it pickled.

    Attributes:
        make: Makes a parser from `text`.
        text: The schema, as the checkpoint keeps it.
        kind: The pyarrow struct of the column `payload`. That of a table may have other types than the parser's.
        registry: URL of a schema registry; "": bodies have no schema's id.
        message: Full name of the Protobuf message.
    """

    make: Callable[[str, SchemaRegistry | None], Parser]
    text: str
    kind: Any
    registry: str = field(default="", repr=False)
    message: str = ""

    def parser(self) -> Parser:
        """Return a new parser."""
        made = self.make(self.text, registry_of(self.registry) if self.registry else None)
        return made if made.kind == self.kind else TableParser(made, self.kind)


@dataclass(frozen=True)
class PayloadOptions:
    """The options of a column `payload`.

    Attributes:
        format: json, avro or protobuf.
        schema: JSON Schema, Avro's schema, or a text of `payload_protobuf.schema_text`; "": it is inferred.
        message: Full name of a Protobuf message, to infer its schema; "": the most frequent one.
        registry: URL of a schema registry, for Avro and Protobuf; "": bodies have no schema's id.
    """

    format: str
    schema: str = ""
    message: str = ""
    registry: str = field(default="", repr=False)


@lru_cache(maxsize=4)
def parser_of(payload: PayloadFormat) -> Parser:
    """Return this process's parser for a format. It is not for several threads."""
    return payload.parser()


def by_slices(bodies: Any, parse: Callable[[list[bytes]], ParsedPayloads]) -> ParsedPayloads:
    """Parse the bodies of a binary array, about SLICE_BYTES at a time."""
    found: list[ParsedPayloads] = []
    gathered: list[bytes] = []
    size = 0
    for body in bodies.to_pylist():
        gathered.append(body)
        size += len(body)
        if size >= SLICE_BYTES:
            found.append(parse(gathered))
            gathered, size = [], 0
    if gathered or not found:
        found.append(parse(gathered))
    return ParsedPayloads(
        pa.concat_arrays([each.payload for each in found]), pa.concat_arrays([each.error for each in found])
    )


def by_halves(
    count: int,
    build: Callable[[int, int], Any],
    kind: Any,
    refused: tuple[type[Exception], ...],
    errors: Mapping[int, str] | None = None,
) -> ParsedPayloads:
    """Build the structs of `count` bodies. If a body is refused, halve its group until it is alone.

    Args:
        build: Return the array of the bodies first <= number < stop, or raise one of `refused`.
        errors: Numbers of bodies that do not fit, with the reason. `build` returns null for them.
    """
    found = dict(errors or {})
    pieces: list[Any] = []
    waiting = [(0, count)] if count else []
    while waiting:
        first, stop = waiting.pop()
        try:
            pieces.append(build(first, stop))
        except refused as error:
            if stop - first > 1:
                middle = (first + stop) // 2
                waiting += [(middle, stop), (first, middle)]
                continue
            found[first] = _plain_reason(str(error) or type(error).__name__)
            pieces.append(pa.nulls(1, kind))
    payload = pa.concat_arrays(pieces) if pieces else pa.nulls(0, kind)
    return ParsedPayloads(payload, pa.array([found.get(row) for row in range(count)], pa.string()))


# -- schemas


def schema_of_text(text: str | bytes) -> Any:
    """Return the pyarrow struct of a JSON Schema. Raises: BadSchema."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadSchema(f"the schema is not JSON: {error}") from None
    kind = _type(found, "the schema")
    if not pa.types.is_struct(kind):
        raise BadSchema("the schema: expected type object")
    return kind


def _type(schema: Any, where: str) -> Any:
    if not isinstance(schema, dict):
        raise BadSchema(f"{where}: expected an object with a type")
    name = schema.get("type")
    known = {"type"} | {"string": {"format"}, "object": {"properties"}, "array": {"items"}}.get(str(name), set())
    unknown = sorted(set(schema) - known - _ANNOTATIONS)
    if unknown:
        raise BadSchema(f"{where}: '{unknown[0]}' is not supported, expected some of {', '.join(sorted(known))}")
    if name == "object":
        fields = schema.get("properties")
        if not isinstance(fields, dict) or not fields:
            raise BadSchema(f"{where}: an object needs properties")
        return pa.struct([(key, _type(each, f"{where}, {key}")) for key, each in fields.items()])
    if name == "array":
        return pa.list_(_type(schema.get("items"), f"{where}, items"))
    if name == "string" and "format" in schema:
        if schema["format"] != "date-time":
            raise BadSchema(f"{where}: the format {schema['format']!r} is not supported, expected date-time")
        return _TIME
    if name not in _SCALARS:
        raise BadSchema(f"{where}: the type {name!r} is not supported, expected {', '.join(_SCALARS)}, object or array")
    return _SCALARS[name]


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a pyarrow type that `schema_of_text` has returned."""
    if pa.types.is_struct(kind):
        return {"type": "object", "properties": {field.name: json_schema(field.type) for field in kind}}
    if pa.types.is_list(kind):
        return {"type": "array", "items": json_schema(kind.value_type)}
    if kind == _TIME:
        return {"type": "string", "format": "date-time"}
    return {"type": next(name for name, each in _SCALARS.items() if each == kind)}


def infer(bodies: Iterable[bytes]) -> Any:
    """Return the pyarrow struct that fits most of the bodies.

    A field with values of several types gets the most frequent one; integer and number together are number. Fields
    that are always null or empty, deeper than DEPTH_MAX, or with a name that UTF-8 lacks, become no columns. Texts that
    look like times stay texts.

    Raises: BadSchema, if there is no JSON object with a field.
    """
    seen = _ValueTypes()
    for body in bodies:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            seen.add(found)
    kind = seen.type()
    if kind is None:
        raise BadSchema("no body of the sample is a JSON object with fields: give a schema")
    return kind


class _ValueTypes:
    """The values that were seen at one place of the sample."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._fields: dict[str, _ValueTypes] = {}
        self._items: _ValueTypes | None = None

    def add(self, value: Any, depth: int = 0) -> None:
        """Count a value that is `depth` levels below its body. Deeper ones than DEPTH_MAX do not count."""
        if value is None or depth > DEPTH_MAX:
            return
        name = _name_of(value)
        self._counts[name] += 1
        if name == "object":
            for key, each in value.items():
                if _is_text(key):
                    self._fields.setdefault(key, _ValueTypes()).add(each, depth + 1)
        elif name == "array":
            self._items = self._items or _ValueTypes()
            for each in value:
                self._items.add(each, depth + 1)

    def type(self) -> Any:
        """Return the pyarrow type; None if there is no value with a type."""
        counts = Counter(self._counts)
        if counts["number"]:
            counts["number"] += counts.pop("integer", 0)
        for name, _ in counts.most_common():
            if name in _SCALARS:
                return _SCALARS[name]
            if name == "object":
                fields = [(key, each.type()) for key, each in self._fields.items()]
                found = [(key, kind) for key, kind in fields if kind is not None]
                if found:
                    return pa.struct(found)
            elif name == "array" and self._items is not None and (kind := self._items.type()) is not None:
                return pa.list_(kind)
        return None


def _is_text(key: str) -> bool:
    """Return whether UTF-8 has a key. JSON may have halves of surrogate pairs, as in "\\ud800"."""
    return key.isascii() or not any("\ud800" <= each <= "\udfff" for each in key)


def _name_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer" if -(1 << 63) <= value < 1 << 63 else "number"
        case float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
    return "array"


# -- bodies


def json_format(kind: Any) -> PayloadFormat:
    """Return the format of JSON bodies for a pyarrow struct, from `schema_of_text` or `infer`."""
    return PayloadFormat(_json_parser, json.dumps(json_schema(kind), indent=1) + "\n", kind)


def _json_parser(text: str, registry: SchemaRegistry | None) -> PayloadParser:
    return PayloadParser(schema_of_text(text))


class PayloadParser:
    """Parses JSON bodies to structs of one type. Cost: 0.8 us for a small object; 1 ms for one that does not fit.

    Args:
        kind: A pyarrow struct, from `schema_of_text` or `infer`.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._number = f"n{secrets.token_hex(8)}"
        self._schema = pa.schema([("p", pa.list_(pa.struct([*kind, (self._number, pa.int64())])))])
        self._ends = pa.array([], pa.binary())

    def parse(self, bodies: Any) -> ParsedPayloads:
        return by_halves(
            len(bodies),
            lambda first, stop: self._structs(bodies.slice(first, stop - first)),
            self.kind,
            (pa.ArrowInvalid, UnicodeDecodeError),
        )

    def _structs(self, bodies: Any) -> Any:
        """Return the structs of bodies that fit all. Raises: ArrowInvalid, UnicodeDecodeError."""
        bodies.cast(pa.string())  # the reader does not check UTF-8 in all places
        rows = len(bodies)
        lines = pc.binary_join_element_wise(pa.scalar(b'{"p":['), bodies, self._numbered(rows), pa.scalar(b""))
        text = lines.buffers()[2]
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._schema, newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
        arrays = table["p"].combine_chunks()
        values = arrays.flatten()
        numbers = values.field(self._number).to_pylist()[1::2]
        if numbers != list(range(rows)) or pc.list_value_length(arrays).to_pylist() != [2] * rows:
            raise pa.ArrowInvalid("the body is not one JSON value")
        found = values.take(pa.array(range(0, 2 * rows, 2), pa.int64()))
        columns = [found.field(place) for place in range(len(self.kind))]
        return pa.StructArray.from_arrays(columns, fields=list(self.kind), mask=found.is_null())

    def _numbered(self, rows: int) -> Any:
        """Return the ends of `rows` lines."""
        if len(self._ends) < rows:
            count = max(8192, rows)
            self._ends = pa.array([f',{{"{self._number}":{row}}}]}}\n'.encode() for row in range(count)], pa.binary())
        return self._ends.slice(0, rows)


def _plain_reason(text: str) -> str:
    """Return pyarrow's error without names of ours, shortened."""
    text = text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
    return text.replace("Column(/p/[]/", "Field(/").replace("Column(/p/[])", "The body")[:_REASON_MAX]


class TableParser:
    """Converts the structs of another parser.

    A value that the table's type does not have is one that does not fit: a time in the year 100,000,000, for instance,
    which Avro's rules make of a plain `long`.
    """

    def __init__(self, parser: Parser, kind: Any) -> None:
        self._parser = parser
        self.kind = kind

    def parse(self, bodies: Any) -> ParsedPayloads:
        found = self._parser.parse(bodies)
        try:
            return found._replace(payload=found.payload.cast(self.kind))
        except pa.ArrowInvalid:
            errors = {row: text for row, text in enumerate(found.error.to_pylist()) if text is not None}
            return by_halves(
                len(found.payload),
                lambda first, stop: found.payload.slice(first, stop - first).cast(self.kind),
                self.kind,
                (pa.ArrowInvalid,),
                errors,
            )


def split(table: Any, parser: Parser) -> tuple[Any, Any]:
    """Divide a table with REJECT_COLUMNS by its bodies.

    Returns: the rows that fit, with the column `payload`, and the others: REJECT_COLUMNS and `reason`.
    """
    found = parser.parse(table.column("value").combine_chunks())
    rejected = table.select(REJECT_COLUMNS).append_column("reason", found.error)
    table = table.append_column(PAYLOAD, found.payload)
    if found.error.null_count == len(found.error):
        return table, rejected.slice(0, 0)
    fits = found.error.is_null()
    return table.filter(fits), rejected.filter(pc.invert(fits))


def payload_columns(kind: Any) -> list[Any]:
    """Return the pyarrow fields that `with_payload` adds."""
    return [pa.field(PAYLOAD, kind), pa.field(ERROR, pa.string())]


def with_payload(batch: Any, parser: Parser, names: Sequence[str]) -> Any:
    """Return the columns `names` of a record batch, which may be `payload` and `payload_error`."""
    found = parser.parse(batch.column("value"))
    added = {PAYLOAD: found.payload, ERROR: found.error}
    columns = [added[name] if name in added else batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
