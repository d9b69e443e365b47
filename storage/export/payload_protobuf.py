"""Protobuf bodies as columns, read by Google's package protobuf.

A body is one message; with a schema registry, behind the wire format's header: five bytes (schema_registry.py), and the
numbers that find the message's type in its file. Types:

    double, float, int32, uint32, ..., bool, string, bytes     the Arrow type of the same kind
    enum                          string: the value's name, or its number if the enum lacks it
    message                       struct; a message without fields: a bool, which is true
    repeated, map                 list, map
    google.protobuf.Timestamp     timestamp[us] in UTC; nanoseconds are cut off
    StringValue, Int64Value, ...  the value, or null
    Struct, Value, ListValue      string: its JSON

A field is null if it is not set and the schema can tell: `optional`, `oneof`, proto2, messages. Otherwise it has its
default. A type that contains itself has no Arrow type and is an error.

Protobuf skips fields that have another wire type than in the schema. Here such a body does not fit.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from amqpd.storage.export.payload import BadSchema, ParsedPayloads, PayloadFormat, by_halves, by_slices
from amqpd.storage.export.schema_registry import (
    HEADER_BYTES,
    RegisteredSchema,
    SchemaRegistry,
    UnknownSchema,
    schema_id,
)

_REASON_MAX: Final = 200
_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    _Field.TYPE_DOUBLE: pa.float64(),
    _Field.TYPE_FLOAT: pa.float32(),
    _Field.TYPE_INT64: pa.int64(),
    _Field.TYPE_SINT64: pa.int64(),
    _Field.TYPE_SFIXED64: pa.int64(),
    _Field.TYPE_UINT64: pa.uint64(),
    _Field.TYPE_FIXED64: pa.uint64(),
    _Field.TYPE_INT32: pa.int32(),
    _Field.TYPE_SINT32: pa.int32(),
    _Field.TYPE_SFIXED32: pa.int32(),
    _Field.TYPE_UINT32: pa.uint32(),
    _Field.TYPE_FIXED32: pa.uint32(),
    _Field.TYPE_BOOL: pa.bool_(),
    _Field.TYPE_STRING: pa.string(),
    _Field.TYPE_BYTES: pa.binary(),
}
_MESSAGES: Final = (_Field.TYPE_MESSAGE, _Field.TYPE_GROUP)
_COMPATIBLE: Final = {
    _Field.TYPE_INT64: {_Field.TYPE_INT32, _Field.TYPE_UINT32, _Field.TYPE_BOOL, _Field.TYPE_ENUM},
    _Field.TYPE_INT32: {_Field.TYPE_BOOL, _Field.TYPE_ENUM},
    _Field.TYPE_UINT64: {_Field.TYPE_UINT32, _Field.TYPE_BOOL},
    _Field.TYPE_UINT32: {_Field.TYPE_BOOL},
    _Field.TYPE_SINT64: {_Field.TYPE_SINT32},
    _Field.TYPE_ENUM: {_Field.TYPE_INT32, _Field.TYPE_BOOL},
    _Field.TYPE_STRING: {_Field.TYPE_BYTES},
    _Field.TYPE_BYTES: {_Field.TYPE_STRING, _Field.TYPE_MESSAGE},
}
"""For a type of the schema: other types of a writer whose values keep their meaning."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_OWN_FILES: Final = "google/protobuf/"
_PATH_BYTES_MAX: Final = 100
_REFERENCE_BYTES_MAX: Final = 1000
_FILE_NAME_BYTES_MAX: Final = 255
_HEADERS_MAX: Final = 10_000
"""So many headers are remembered: a producer can send any number of them."""

_Column = tuple[Any, Callable[[Sequence[Any]], Any]]
"""An Arrow type, and what makes an array of it from values or messages, of which some may be None."""


def protobuf_format(text: str, registry: str = "") -> PayloadFormat:
    """Return the format of Protobuf bodies.

    Args:
        text: Of `schema_text`.
        registry: URL of the schema registry; "": bodies have no header.

    Raises: BadSchema.
    """
    found = message_type(text)
    return PayloadFormat(ProtobufParser, text, _top_column(found)[0], registry, str(found.full_name))


class ProtobufParser:
    """Parses Protobuf bodies. Cost: some 10 us for a message of ten fields, 1 ms for one that does not fit."""

    def __init__(self, text: str, registry: SchemaRegistry | None) -> None:
        self._descriptor = message_type(text)
        self.kind, self._build = _top_column(self._descriptor)
        self._class: Any = message_factory.GetMessageClass(self._descriptor)
        self._schemas = None if registry is None else _RegisteredFiles(registry)
        self._headers: dict[tuple[int, tuple[int, ...]], str | None] = {}

    def parse(self, bodies: Any) -> ParsedPayloads:
        return by_slices(bodies, self._parse)

    def _parse(self, bodies: list[bytes]) -> ParsedPayloads:
        messages: list[Any] = []
        errors: dict[int, str] = {}
        for row, body in enumerate(bodies):
            try:
                messages.append(self._message(body))
            except (UnknownSchema, BadSchema, DecodeError) as error:
                errors[row] = str(error)[:_REASON_MAX]
                messages.append(None)
        refused = (ValueError, TypeError, OverflowError, json_format.Error)
        return by_halves(
            len(messages), lambda first, stop: self._build(messages[first:stop]), self.kind, refused, errors
        )

    def _message(self, body: bytes) -> Any:
        """Return the message of a body. Raises: UnknownSchema, BadSchema, DecodeError, RegistryError."""
        if self._schemas is not None:
            number = schema_id(body)
            path, start = _message_path(body)
            if (number, path) not in self._headers:
                if len(self._headers) >= _HEADERS_MAX:
                    self._headers.clear()
                self._headers[number, path] = self._reason(self._schemas, number, path)
            if (reason := self._headers[number, path]) is not None:
                raise BadSchema(reason)
            body = body[start:]
        found = self._class.FromString(body)
        if not found.IsInitialized():  # FindInitializationErrors crashes for some bodies with maps (protobuf 7.36)
            raise DecodeError("the body lacks a required field")
        return found

    def _reason(self, schemas: _RegisteredFiles, number: int, path: tuple[int, ...]) -> str | None:
        """Return why bodies of a writer's type do not fit; None if they do. Raises: UnknownSchema, RegistryError."""
        try:
            writer = message_type(schemas.text(number, path))
        except BadSchema as error:
            return str(error)
        if writer.full_name != self._descriptor.full_name:
            return f"the body is a {writer.full_name}, not a {self._descriptor.full_name}"
        misfit = _misfit(self._descriptor, writer, set())
        return misfit and f"schema {number}: {misfit}"


def infer_schema(bodies: Iterable[bytes], registry: SchemaRegistry, message: str) -> str:
    """Return the newest schema of the sample's most frequent message, or of the message with this name.

    Raises: BadSchema, RegistryError.
    """
    counts: dict[str, int] = {}
    newest: dict[str, tuple[int, str]] = {}
    known: dict[tuple[int, tuple[int, ...]], tuple[str, str]] = {}
    schemas = _RegisteredFiles(registry)
    for body in bodies:
        try:
            key = schema_id(body), _message_path(body)[0]
            if key not in known:
                text = schemas.text(*key)
                known[key] = json.loads(text)["message"], text
        except (UnknownSchema, BadSchema):
            continue
        name, text = known[key]
        counts[name] = counts.get(name, 0) + 1
        newest[name] = max(newest.get(name, (0, "")), (key[0], text))
    if message:
        counts = {name: count for name, count in counts.items() if name == message}
    if not counts:
        what = f"the message {message}" if message else "a message of Protobuf"
        raise BadSchema(f"no body of the sample has the id of {what} in the registry: give a schema")
    return newest[max(counts, key=lambda name: counts[name])][1]


# -- schemas


def schema_text(path: str, message: str) -> str:
    """Return the schema in a file, as JSON with the message's name and the files as a FileDescriptorSet.

    Args:
        path: Of a `.proto` file, which the package grpcio-tools compiles, or of a FileDescriptorSet.
        message: Full name of the message; "": the only one of the (last) file.

    Raises: BadSchema, OSError.
    """
    if path.endswith(".proto"):
        place = Path(path).absolute()
        place.read_bytes()  # for an error of the system
        return _text(_compiled(place.parent, place.name), message)
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes())
    except DecodeError:
        raise BadSchema("expected a .proto file or a FileDescriptorSet") from None
    return _text(files, message)


class _RegisteredFiles:
    """Schemas of a registry. Each is compiled once, also if a producer sends any number of message numbers."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._compiled: dict[int, Any] = {}

    def text(self, number: int, path: tuple[int, ...]) -> str:
        """Return the schema text of a message. Raises: UnknownSchema, BadSchema, RegistryError."""
        schema = self._registry.schema(number)
        files = self._compiled.get(number)
        if files is None:
            try:
                files = _registered_files(number, schema)
            except BadSchema as error:
                files = error
            self._compiled[number] = files
        if isinstance(files, BadSchema):
            raise files.with_traceback(None)  # else it would get longer with each message
        names = [files.file[-1].package] if files.file[-1].package else []
        kinds: Any = files.file[-1].message_type
        try:
            for place_in_file in path:
                names.append(kinds[place_in_file].name)
                kinds = kinds[place_in_file].nested_type
        except IndexError:
            raise BadSchema(f"schema {number} has no message {list(path)}") from None
        return _text(files, ".".join(names))


def _registered_files(number: int, schema: RegisteredSchema) -> Any:
    """Return the FileDescriptorSet of a schema of the registry. Raises: BadSchema."""
    if schema.kind != "PROTOBUF":
        raise BadSchema(f"schema {number} is {schema.kind}, not PROTOBUF")
    with tempfile.TemporaryDirectory(prefix="amqpd-proto-") as directory:
        root = Path(directory)
        own = f"schema-{number}.proto"
        for name, text in [*schema.references.items(), (own, schema.text)]:
            _check_reference(number, name)
            if name.startswith(_OWN_FILES):
                continue
            place = root / name
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise BadSchema(f"schema {number} refers to {name!r}, and to a file above it") from None
            except UnicodeEncodeError as error:
                raise BadSchema(f"schema {number}: {error}") from None
        return _compiled(root, own)


def _check_reference(number: int, name: str) -> None:
    """Raise BadSchema if a name from the registry is no path below a directory."""
    parts = name.split("/")
    if (
        not name.isprintable()
        or len(name.encode()) > _REFERENCE_BYTES_MAX
        or any(part in ("", ".", "..") or len(part.encode()) > _FILE_NAME_BYTES_MAX for part in parts)
    ):
        raise BadSchema(f"schema {number} refers to {name!r}, which is no relative path")


def _compiled(root: Path, name: str) -> Any:
    """Return the FileDescriptorSet of a .proto file and of all that it imports. Cost: 0.2 s, in another process.

    Raises: BadSchema, ImportError, OSError.
    """
    if find_spec("grpc_tools") is None:
        raise ModuleNotFoundError(f"{name} needs the package grpcio-tools, which compiles it")
    with tempfile.NamedTemporaryFile(prefix="amqpd-proto-") as output:
        program = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{root}", "--include_imports"]
        done = subprocess.run([*program, f"--descriptor_set_out={output.name}", name], capture_output=True, check=False)
        if done.returncode < 0:
            raise OSError(f"protoc was ended by signal {-done.returncode}")
        if done.returncode:
            raise BadSchema(done.stderr.decode("utf-8", "replace").strip().replace(f"{root}/", "") or "protoc failed")
        return descriptor_pb2.FileDescriptorSet.FromString(output.read())


def _text(files: Any, message: str) -> str:
    if not files.file:
        raise BadSchema("the FileDescriptorSet is empty")
    if not message:
        last = files.file[-1]
        names = [f"{last.package}.{each.name}".lstrip(".") for each in last.message_type]
        if len(names) != 1:
            raise BadSchema(f"--payload-message is needed: {last.name} has the messages {', '.join(names) or '(none)'}")
        message = names[0]
    # Files of Google's own come from the package: those of another protoc would make another text.
    own = [file for file in files.file if not file.name.startswith(_OWN_FILES)]
    kept = descriptor_pb2.FileDescriptorSet(file=own)
    encoded = base64.b64encode(kept.SerializeToString(deterministic=True)).decode()
    return json.dumps({"message": message, "files": encoded}, indent=1) + "\n"


def message_type(text: str) -> Any:
    """Return the descriptor of the message in a schema text. Raises: BadSchema."""
    try:
        given = json.loads(text)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(given["files"]))
        message = given["message"]
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        raise BadSchema(f"the schema is damaged: {error}") from None
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for name in (name for file in files.file for name in file.dependency if name.startswith(_OWN_FILES)):
        _add_own(pool, name, added)
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        names = sorted(each for file in files.file for each in _names(file.package, file.message_type))
        raise BadSchema(f"there is no message {message!r}; there are {', '.join(names)}"[:1000]) from None
    except TypeError as error:  # a file is missing, or not in order
        raise BadSchema(f"the FileDescriptorSet is not complete (protoc --include_imports): {error}") from None


def _add_own(pool: Any, name: str, added: set[str]) -> None:
    """Add a file of the package protobuf, and those that it imports. Raises: BadSchema."""
    if name in added:
        return
    added.add(name)
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise BadSchema(f"the package protobuf has no {name}") from None
    for needed in module.DESCRIPTOR.dependencies:
        _add_own(pool, needed.name, added)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _names(prefix: str, messages: Any) -> Iterable[str]:
    for each in messages:
        name = f"{prefix}.{each.name}".lstrip(".")
        if not name.startswith("google.protobuf.") and not each.options.map_entry:
            yield name
            yield from _names(name, each.nested_type)


def _message_path(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the numbers that find a body's message in its file, and the length of the header.

    Each number is a varint in zigzag encoding. The first one is the count of the others; 0 alone means one number, 0.
    Raises: UnknownSchema.
    """
    numbers: list[int] = []
    value = shift = 0
    for at in range(HEADER_BYTES, min(len(body), HEADER_BYTES + _PATH_BYTES_MAX)):
        value |= (body[at] & 0x7F) << shift
        shift += 7
        if body[at] & 0x80:
            continue
        numbers.append(value >> 1)
        if value & 1:
            break
        if len(numbers) == numbers[0] + 1:
            return tuple(numbers[1:]) or (0,), at + 1
        value = shift = 0
    raise UnknownSchema("the body has no message numbers behind the schema's id")


def _misfit(reader: Any, writer: Any, seen: set[tuple[str, str]]) -> str | None:
    """Return a field that the writer has with another meaning; None if there is none."""
    if (reader.full_name, writer.full_name) in seen:
        return None
    seen.add((reader.full_name, writer.full_name))
    for number, ours in reader.fields_by_number.items():
        theirs = writer.fields_by_number.get(number)
        if theirs is None:
            continue
        name = f"field {number} ({ours.full_name})"
        if theirs.is_repeated and not ours.is_repeated:
            return f"{name} is repeated there"
        if ours.type in _MESSAGES and theirs.type == ours.type:
            found = _misfit(ours.message_type, theirs.message_type, seen)
            if found is not None:
                return found
        elif theirs.type != ours.type and theirs.type not in _COMPATIBLE.get(ours.type, ()):
            return f"{name} has another type there"
    return None


# -- columns


def _top_column(descriptor: Any) -> _Column:
    kind, build = _message_column(descriptor, ())
    if not pa.types.is_struct(kind):
        raise BadSchema(f"the message {descriptor.full_name} has no fields")
    return kind, build


def _message_column(descriptor: Any, within: tuple[str, ...]) -> _Column:
    if descriptor.full_name in within:
        raise BadSchema(f"the message {descriptor.full_name} contains itself, which no column can: leave the field out")
    if not descriptor.fields:
        return pa.bool_(), lambda messages: pa.array([None if each is None else True for each in messages], pa.bool_())
    columns = [(field.name, _field_column(field, (*within, descriptor.full_name))) for field in descriptor.fields]
    fields = [pa.field(name, kind) for name, (kind, _) in columns]
    known = descriptor.fields_by_number

    def build(messages: Sequence[Any]) -> Any:
        for message in messages:
            if message is not None and len(unknown := UnknownFieldSet(message)):
                for each in unknown:
                    if each.field_number in known:
                        field = f"field {each.field_number} ({known[each.field_number].full_name})"
                        raise ValueError(f"{field} has another type or a value that its enum lacks")
        arrays = [make(messages) for _, (_, make) in columns]
        mask = pa.array([each is None for each in messages], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    return pa.struct(fields), build


def _field_column(field: Any, within: tuple[str, ...]) -> _Column:
    """Return the type of a field, and what makes its array from the messages that have the field."""
    name = field.name
    if field.is_repeated:
        return _repeated_column(field, within)
    kind, build = _value_column(field, within)
    if field.has_presence:
        return kind, lambda messages: build(
            [getattr(each, name) if each is not None and each.HasField(name) else None for each in messages]
        )
    return kind, lambda messages: build([None if each is None else getattr(each, name) for each in messages])


def _repeated_column(field: Any, within: tuple[str, ...]) -> _Column:
    name = field.name
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        entry = field.message_type.fields_by_name
        key_kind, keys = _value_column(entry["key"], within)
        kind, values = _value_column(entry["value"], within)

        def build_map(messages: Sequence[Any]) -> Any:
            pairs = [[] if each is None else list(getattr(each, name).items()) for each in messages]
            flat = list(chain.from_iterable(pairs))
            made = keys([key for key, _ in flat]), values([value for _, value in flat])
            return pa.MapArray.from_arrays(_borders(pairs), *made)

        return pa.map_(key_kind, kind), build_map
    kind, values = _value_column(field, within)

    def build(messages: Sequence[Any]) -> Any:
        lists = [() if each is None else getattr(each, name) for each in messages]
        return pa.ListArray.from_arrays(_borders(lists), values(list(chain.from_iterable(lists))))

    return pa.list_(kind), build


def _borders(lists: Sequence[Any]) -> Any:
    borders = [0]
    for each in lists:
        borders.append(borders[-1] + len(each))
    return pa.array(borders, pa.int32())


def _value_column(field: Any, within: tuple[str, ...]) -> _Column:
    """Return the type of a field's single value, and what makes an array of values."""
    if field.type in _SCALARS:
        kind = _SCALARS[field.type]
        return kind, lambda values: pa.array(values, kind)
    if field.type == _Field.TYPE_ENUM:
        names = {each.number: each.name for each in reversed(field.enum_type.values)}
        return pa.string(), lambda values: pa.array(
            [None if each is None else names.get(each) or str(each) for each in values], pa.string()
        )
    message = field.message_type
    if message.full_name == _TIMESTAMP:
        return _TIME, lambda values: pa.array(
            [None if each is None else each.seconds * 1_000_000 + each.nanos // 1000 for each in values], _TIME
        )
    if message.full_name in _WRAPPERS:
        kind, build = _value_column(message.fields_by_name["value"], within)
        return kind, lambda values: build([None if each is None else each.value for each in values])
    if message.full_name in _JSON:
        return pa.string(), lambda values: pa.array(
            [None if each is None else json_format.MessageToJson(each, indent=None) for each in values], pa.string()
        )
    return _message_column(message, within)
