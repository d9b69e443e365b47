"""Avro bodies as columns, read by the package fastavro.

A body is one record in Avro's binary encoding, without a header; with a schema registry, behind the wire format's five
bytes (schema_registry.py). Then its writer's schema comes from the registry, and Avro's rules of resolution turn the
record into one of the fixed schema. Types:

    null                               no column; in a union: the field may be null
    boolean, int, long, float, double, string, bytes     bool, int32, int64, float, double, string, binary
    enum; fixed                        string; binary
    record, array, map                 struct, list, map; a record without fields: a bool, which is true
    union of null and one type         that type
    other unions                       a struct with a field for each type, of which one is set: `string`, `long`, or
                                       the type's name; int and long are one type, float and double too
    decimal                            decimal128, decimal256
    date; time-millis, time-micros     date32; time32[ms], time64[us]
    timestamp-millis, timestamp-micros, local-timestamp-...    timestamps in UTC, and without a zone
    timestamp-nanos                    timestamp[us]: Spark reads no other; nanoseconds are cut off
    uuid                               string
    other logical types                their base type

A type that contains itself has no Arrow type and is an error. A schema may leave such a field out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import fastavro
import pyarrow as pa
from fastavro.read import LOGICAL_READERS, SchemaResolutionError
from fastavro.schema import SchemaParseException

from amqpd.storage.export.payload import BadSchema, ParsedPayloads, PayloadFormat, by_halves, by_slices
from amqpd.storage.export.schema_registry import (
    HEADER_BYTES,
    RegisteredSchema,
    RegistryError,
    SchemaRegistry,
    UnknownSchema,
    schema_id,
)

_REASON_MAX: Final = 200
_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("us"),
}
_PYTHON: Final = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "bytes": bytes,
    "map": dict, "array": list, "date": date, "time-millis": time, "time-micros": time, "timestamp-millis": datetime,
    "timestamp-micros": datetime, "local-timestamp-millis": datetime, "local-timestamp-micros": datetime,
    "decimal": Decimal, "uuid": UUID,
}  # fmt: skip
"""Types of the values that fastavro returns. Named types of a union come as (name, value)."""
_JSON: Final[dict[str, Any]] = {
    "null": type(None), "boolean": bool, "int": int, "long": int, "float": (int, float), "double": (int, float),
    "string": str, "bytes": str, "fixed": str, "enum": str, "array": list, "map": dict, "record": dict, "error": dict,
}  # fmt: skip
"""JSON types of defaults."""
_NAMED: Final = ("record", "error", "enum", "fixed")
_WIDER: Final = {"int": "long", "float": "double"}
_LIMITED_DECIMAL: Final = "amqpd-decimal"
_DECIMAL_BYTES_MAX: Final = 1024
"""76 digits need 32 bytes. The time to read a decimal grows with the square of its size: 6 s for 256 KiB."""


class _Column(NamedTuple):
    """An Arrow type.

    Attributes:
        convert: Turns a value of fastavro that is not None into one that pyarrow takes; None: it is one already.
        is_empty: A value takes no byte of a body.
    """

    kind: Any
    convert: Callable[[Any], Any] | None = None
    is_empty: bool = False


def avro_format(text: str, registry: str = "") -> PayloadFormat:
    """Return the format of Avro bodies.

    Args:
        text: The schema, a record.
        registry: URL of the schema registry; "": bodies have no id, and are written with this schema.

    Raises: BadSchema.
    """
    kind = arrow_column(parsed_schema(text)).kind
    return PayloadFormat(AvroParser, json.dumps(json.loads(text), indent=1) + "\n", kind, registry)


class AvroParser:
    """Parses Avro bodies. Cost: some 10 us for a record of ten fields."""

    def __init__(self, text: str, registry: SchemaRegistry | None) -> None:
        self._reader = parsed_schema(text)
        self._column = arrow_column(self._reader)
        self.kind = self._column.kind
        self._registry = registry
        self._text = json.loads(text)
        self._writers: dict[int, Any] = {}
        _convert_defaults(self._reader)
        _limit_decimals(self._reader)

    def parse(self, bodies: Any) -> ParsedPayloads:
        return by_slices(bodies, self._parse)

    def _parse(self, bodies: list[bytes]) -> ParsedPayloads:
        values: list[Any] = []
        errors: dict[int, str] = {}
        for row, body in enumerate(bodies):
            try:
                values.append(self._value(body))
                continue
            except RegistryError:
                raise
            except (UnknownSchema, BadSchema) as error:
                reason = str(error)
            except SchemaResolutionError as error:  # its text may have a whole schema
                reason = f"the body's schema does not fit: {error}"
            except Exception as error:  # noqa: BLE001 - fastavro raises many types for bytes that are no record
                reason = f"the body is no such record: {type(error).__name__}: {error}"
            errors[row] = reason[:_REASON_MAX]
            values.append(None)
        kind = self.kind
        refused = (ValueError, TypeError, OverflowError)
        return by_halves(len(values), lambda first, stop: pa.array(values[first:stop], kind), kind, refused, errors)

    def _value(self, body: bytes) -> Any:
        writer, reader, start = self._reader, None, 0
        if self._registry is not None:
            start = HEADER_BYTES
            writer = self._writer(schema_id(body))
            if writer is not self._reader:
                reader = self._reader
        file = io.BytesIO(body[start:])
        found = fastavro.schemaless_reader(file, writer, reader, return_named_type=True)
        if rest := len(body) - start - file.tell():
            raise ValueError(f"{rest} bytes are behind it")
        return found if self._column.convert is None else self._column.convert(found)

    def _writer(self, number: int) -> Any:
        """Return the schema with this id, for fastavro. Raises: UnknownSchema, BadSchema, RegistryError."""
        found = self._writers.get(number)
        if found is None:
            assert self._registry is not None
            try:
                text, found = _with_references(self._registry.schema(number))
                arrow_column(found)  # a type that contains itself would let a body nest without end
                _limit_decimals(found)
            except BadSchema as error:
                found = BadSchema(f"schema {number}: {error}")
            else:
                if text == self._text:
                    found = self._reader
            self._writers[number] = found
        if isinstance(found, BadSchema):
            raise found.with_traceback(None)  # else it would get longer with each message
        return found


def infer_schema(bodies: Iterable[bytes], registry: SchemaRegistry) -> str:
    """Return the newest schema of the sample's most frequent record type, with its references inside.

    Raises: BadSchema, RegistryError.
    """
    ids: dict[str, list[int]] = {}
    found: dict[int, Any] = {}
    for body in bodies:
        try:
            number = schema_id(body)
            if number not in found:
                found[number] = _with_references(registry.schema(number))[1]
        except (UnknownSchema, BadSchema):
            continue
        if isinstance(found[number], dict) and found[number].get("type") == "record":
            ids.setdefault(str(found[number]["name"]), []).append(number)
    if not ids:
        raise BadSchema("no body of the sample has the id of a record of Avro in the registry: give a schema")
    _, newest = max((len(each), max(each)) for each in ids.values())
    try:
        return json.dumps(_whole(found[newest]), indent=1) + "\n"
    except RecursionError:
        raise BadSchema(f"schema {newest} is nested too deeply") from None


# -- schemas


def parsed_schema(text: str) -> Any:
    """Return a record's schema as fastavro uses it. Raises: BadSchema."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"the schema is not JSON: {error}") from None
    found = _parse(given, {})
    if not isinstance(found, dict) or found.get("type") != "record":
        raise BadSchema("the schema: expected a record")
    return found


def _parse(given: Any, named: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(given, named_schemas=named)
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadSchema(f"the schema is not Avro's: {type(error).__name__}: {error}"[:_REASON_MAX]) from None


def _with_references(schema: RegisteredSchema) -> tuple[Any, Any]:
    """Return the JSON of a registry's schema and what fastavro makes of it. Raises: BadSchema."""
    if schema.kind != "AVRO":
        raise BadSchema(f"it is {schema.kind}, not AVRO")
    named: dict[str, Any] = {}
    try:
        for text in schema.references.values():
            _parse(json.loads(text), named)
        given = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, BadSchema) else BadSchema(f"it is not JSON: {error}") from None
    return given, _parse(given, named)


def _whole(schema: dict[str, Any]) -> Any:
    """Return the JSON of a parsed schema, in which each named type is defined where it is first used."""
    named = schema["__named_schemas"]
    written: set[str] = set()

    def plain(each: Any) -> Any:
        if isinstance(each, list):
            return [plain(branch) for branch in each]
        if isinstance(each, str):
            return plain(named[each]) if each in named and each not in written else each
        kind = each["type"]
        if kind in _NAMED:
            if each["name"] in written:
                return each["name"]
            written.add(each["name"])
        found = {key: value for key, value in each.items() if not key.startswith("__")}
        if kind in ("record", "error"):
            found["fields"] = [{**field, "type": plain(field["type"])} for field in each["fields"]]
        for key in ("items", "values"):
            if key in each and kind in ("array", "map"):
                found[key] = plain(each[key])
        return found if not isinstance(kind, dict | list) else {**found, "type": plain(kind)}

    return plain(schema)


def arrow_column(schema: Any) -> _Column:
    """Return the column of a record's schema. Raises: BadSchema."""
    try:
        found = _column(schema, schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}, ())
    except RecursionError:
        raise BadSchema("the schema is nested too deeply") from None
    if found is None or not pa.types.is_struct(found.kind):
        raise BadSchema("the schema: expected a record with fields that are not null")
    return found


def _column(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> _Column | None:
    """Return the column of a type; None for null. within: the records around it."""
    if isinstance(schema, list):
        return _union(schema, named, within)
    if isinstance(schema, str):
        if schema in named:
            return _column(named[schema], named, within)
        schema = {"type": schema}
    name = schema["type"]
    if isinstance(name, dict | list):
        return _column(name, named, within)
    if name == "null":
        return None
    if name in ("record", "error"):
        return _record(schema, named, within)
    if name == "array":
        item = _column(schema["items"], named, within)
        if item is None or item.is_empty:  # a body of ten bytes could have 2**60 of them
            raise BadSchema("an array whose items are empty is not supported")
        each = item.convert
        items = None if each is None else lambda values: [None if v is None else each(v) for v in values]
        return _Column(pa.list_(item.kind), items)
    if name == "map":
        value = _column(schema["values"], named, within) or _Column(pa.bool_())
        make = value.convert or (lambda found: found)
        pairs = lambda found: [(k, None if v is None else make(v)) for k, v in found.items()]  # noqa: E731
        return _Column(pa.map_(pa.string(), value.kind), pairs)
    if name == "fixed" and schema["size"] < 1:
        raise BadSchema("a fixed type without bytes is not supported")  # an array could have 2**60 of them
    logical = schema.get("logicalType")
    if logical == "decimal" and name in ("bytes", "fixed"):
        return _decimal(schema)
    if logical == "uuid" and name in ("string", "fixed"):
        return _Column(pa.string(), _uuid)
    if (name, logical) in _LOGICAL:
        return _Column(_LOGICAL[name, logical], _micros if str(logical).endswith("-nanos") else None)
    if name not in _PRIMITIVES:
        if name in named:
            return _column(named[name], named, within)
        raise BadSchema(f"the type {name!r} is not known")
    return _Column(_PRIMITIVES[name])


def _micros(value: Any) -> Any:
    return value // 1000 if isinstance(value, int) else value


def _uuid(value: Any) -> str:
    return str(UUID(bytes=value) if isinstance(value, bytes) else value)


def _decimal(schema: dict[str, Any]) -> _Column:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision > 76:
        raise BadSchema(f"a decimal of {precision} digits is not supported, at most 76 are")
    return _Column(pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale))


def _record(schema: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> _Column:
    name = schema["name"]
    if name in within:
        raise BadSchema(f"the type {name} contains itself, which no column can: leave the field out of the schema")
    columns: dict[str, _Column] = {}
    for field in schema["fields"]:
        found = _column(field["type"], named, (*within, name))
        if found is not None:
            columns[field["name"]] = found
    if not columns:
        return _Column(pa.bool_(), lambda value: True, is_empty=True)
    is_empty = all(column.is_empty for column in columns.values())
    kind = pa.struct([(name, column.kind) for name, column in columns.items()])
    converted = [(name, column.convert) for name, column in columns.items() if column.convert is not None]
    if not converted:
        return _Column(kind, None, is_empty)

    def convert(value: Any) -> Any:
        value = dict(value)  # it may be a field's default, which all bodies share
        for name, function in converted:
            found = value[name]
            if found is not None:
                value[name] = function(found)
        return value

    return _Column(kind, convert, is_empty)


def _union(branches: list[Any], named: dict[str, Any], within: tuple[str, ...]) -> _Column | None:
    kinds = [_type_of(branch) for branch in branches]
    wide = {_WIDER[each] for each in kinds if each in _WIDER and _WIDER[each] in kinds}
    chosen = [
        (branch, kind)
        for branch, kind in zip(branches, kinds, strict=True)
        if kind != "null" and _WIDER.get(kind) not in wide
    ]
    if not chosen:
        return None
    columns = [_column(branch, named, within) for branch, _ in chosen]
    known = [column for column in columns if column is not None]
    if len(known) == 1:
        return _Column(known[0].kind, _unnamed(known[0].convert) if chosen[0][1] not in _PYTHON else known[0].convert)
    names = _branch_names([kind for _, kind in chosen])
    by_type: dict[Any, tuple[str, Any]] = {}
    for (_, kind), name, column in zip(chosen, names, known, strict=True):
        key = _PYTHON.get(kind, kind)
        if key in by_type:
            raise BadSchema(f"a union of {by_type[key][0]} and {name} is not supported: their values look the same")
        by_type[key] = name, column.convert

    def convert(value: Any) -> Any:
        key: Any = type(value)
        if key is tuple:
            key, value = value
        name, function = by_type[key]
        return {name: value if function is None else function(value)}

    return _Column(pa.struct([(name, column.kind) for name, column in zip(names, known, strict=True)]), convert)


def _unnamed(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return a conversion for (name, value), which a named type in a union is."""
    if convert is None:
        return lambda pair: pair[1]
    return lambda pair: convert(pair[1])


def _type_of(schema: Any) -> str:
    """Return the name of a union's branch: that of a named type, a logical type, or a primitive type."""
    if isinstance(schema, str):
        return schema
    name = schema["type"]
    if name in _NAMED:
        return str(schema["name"])
    logical = schema.get("logicalType")
    is_known = logical in ("decimal", "uuid") or (name, logical) in _LOGICAL
    return str(logical if is_known and logical in _PYTHON else name)


def _branch_names(kinds: list[str]) -> list[str]:
    short = [kind.rpartition(".")[2] for kind in kinds]
    return short if len(set(short)) == len(short) else kinds


def _limit_decimals(schema: dict[str, Any]) -> None:
    """Let fastavro refuse decimals of more than _DECIMAL_BYTES_MAX in a parsed schema."""

    def limit(each: Any) -> None:
        if isinstance(each, list):
            for branch in each:
                limit(branch)
        elif isinstance(each, dict):
            if each.get("logicalType") == "decimal":
                each["logicalType"] = _LIMITED_DECIMAL
            for kind in (each.get("type"), each.get("items"), each.get("values")):
                limit(kind)
            for field in each.get("fields", []):
                limit(field["type"])

    limit(schema)
    for each in schema["__named_schemas"].values():
        limit(each)


def _limited(read: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def checked(raw: bytes, writer: Any = None, reader: Any = None) -> Any:
        if len(raw) > _DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal has {len(raw)} bytes, at most {_DECIMAL_BYTES_MAX} are read")
        return read(raw, writer, reader)

    return checked


for _kind in ("bytes", "fixed"):  # fastavro finds readers by this table only; its own stay as they are
    LOGICAL_READERS[f"{_kind}-{_LIMITED_DECIMAL}"] = _limited(LOGICAL_READERS[f"{_kind}-decimal"])


# -- defaults


def _convert_defaults(schema: dict[str, Any]) -> None:
    """Replace the defaults of all fields, which are JSON, by values as fastavro reads them."""
    named = schema["__named_schemas"]
    for record in named.values():
        for field in record.get("fields", []):
            if "default" in field:
                try:
                    field["default"] = _default(field["default"], field["type"], named)
                except TypeError:
                    raise BadSchema(f"the default of {field['name']} is not of its type") from None


def _default(value: Any, schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, dict) and (not isinstance(schema["type"], str) or schema["type"] in named):
        schema = schema["type"]
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        for branch in schema:  # of the first type, and in newer versions of Avro of any
            try:
                found = _default(value, branch, named)
            except TypeError:
                continue
            full = named.get(branch) if isinstance(branch, str) else branch
            return (full["name"], found) if isinstance(full, dict) and full["type"] in _NAMED else found
        raise TypeError
    plain = schema if isinstance(schema, dict) else {"type": schema}
    name = plain["type"]
    if not isinstance(value, _JSON[name]) or (isinstance(value, bool) and name != "boolean"):
        raise TypeError
    if name in ("bytes", "fixed"):
        raw = value.encode("latin-1")
        if plain.get("logicalType") == "decimal":
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-plain.get("scale", 0))
        return raw
    if name in ("record", "error"):
        return {
            field["name"]: _default(value.get(field["name"], field.get("default")), field["type"], named)
            for field in plain["fields"]
        }
    if name == "array":
        return [_default(each, plain["items"], named) for each in value]
    if name == "map":
        return {key: _default(each, plain["values"], named) for key, each in value.items()}
    if name == "enum" or "logicalType" not in plain:
        return value
    buffer = io.BytesIO()  # a JSON value of a logical type: written with the base type, read with the logical one
    fastavro.schemaless_writer(buffer, name, value)
    return fastavro.schemaless_reader(io.BytesIO(buffer.getvalue()), fastavro.parse_schema(dict(plain)), None)
