"""The schema of a column `payload`: given or inferred once, and then fixed in an export's checkpoint.

The formats are in modules of their own, because each needs another package:

    payload.py             JSON
    payload_avro.py        Avro: fastavro
    payload_protobuf.py    Protobuf: protobuf, and grpcio-tools for schemas that are texts

Iceberg and Delta tables lack some of Arrow's types:

    Arrow                   in a table
    uint32                  int64
    uint64                  decimal128(20, 0)
    decimal256              string: tables have at most 38 digits
    timestamp in ms         timestamp in us
    time                    time64[us] in Iceberg, string in Delta

Readers of tables, such as Spark, do not distinguish upper and lower case in names of fields. So two fields of a struct
whose names differ only there are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from json import dumps
from typing import Any, Final

import pyarrow as pa

from amqpd.storage.export.arrow import TYPES, batches
from amqpd.storage.export.checkpoint import CheckpointError
from amqpd.storage.export.engine import ExportRows
from amqpd.storage.export.options import ReadOptions
from amqpd.storage.export.payload import (
    PAYLOAD,
    SAMPLE_ROWS,
    BadSchema,
    PayloadFormat,
    PayloadOptions,
    infer,
    json_format,
    schema_of_text,
)
from amqpd.storage.export.plan import LogPartition
from amqpd.storage.export.schema_registry import registry_of
from amqpd.storage.export.shared_checkpoint import ExportLedger

FORMATS: Final = ("json", "avro", "protobuf")
ICEBERG_TIME: Final = pa.time64("us")
DELTA_TIME: Final = pa.string()


def payload_options(payload: str, path: str, message: str, registry: str) -> PayloadOptions:
    """Return the options of a column `payload`, with the schema in the file `path`.

    Args:
        payload: One of FORMATS.
        path: "": no file.
        message: Full name of a Protobuf message; "": none.
        registry: URL of a schema registry; "": none.

    Raises: BadSchema, OSError.
    """
    if payload not in FORMATS:
        raise BadSchema(f"the format {payload!r} is not known, expected {', '.join(FORMATS)}")
    if message and payload != "protobuf":
        raise BadSchema("the name of a message needs the format protobuf")
    if registry and payload == "json":
        raise BadSchema("a schema registry needs the format avro or protobuf")
    if registry:
        try:
            registry_of(registry)
        except ValueError as error:
            raise BadSchema(f"the schema registry: {error}") from None
    if not path and not registry and payload != "json":
        raise BadSchema(f"{payload} needs a schema or a schema registry")
    schema = _schema_text(payload, path, message) if path else ""
    if path and not schema.strip():
        raise BadSchema("it is empty")
    return PayloadOptions(payload, schema, message, registry)


def _schema_text(payload: str, path: str, message: str) -> str:
    if payload == "protobuf":
        from amqpd.storage.export.payload_protobuf import schema_text

        return schema_text(path, message)
    with open(path, encoding="utf-8") as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise BadSchema(str(error)) from None


def payload_argument(payload: str | Mapping[str, Any], path: str, message: str, registry: str) -> PayloadOptions:
    """Return the options for the arguments of `amqpd.read`. Raises: BadSchema, OSError."""
    if isinstance(payload, str):
        return payload_options(payload, path, message, registry)
    if path or message or registry:
        raise BadSchema("payload is a JSON Schema: give no payload_schema, payload_message or schema_registry")
    return PayloadOptions("json", dumps(payload))


def given_format(options: PayloadOptions) -> PayloadFormat:
    """Return the format with the schema in the options. Raises: BadSchema."""
    if options.format == "avro":
        from amqpd.storage.export.payload_avro import avro_format

        return avro_format(options.schema, options.registry)
    if options.format == "protobuf":
        from amqpd.storage.export.payload_protobuf import protobuf_format

        return protobuf_format(options.schema, options.registry)
    return json_format(schema_of_text(options.schema))


def format_of(options: PayloadOptions, bodies: Iterable[bytes]) -> PayloadFormat:
    """Return the format with the given schema, or with one that is inferred from bodies. Raises: BadSchema, OSError."""
    if options.schema:
        return given_format(options)
    if options.format == "avro":
        from amqpd.storage.export import payload_avro

        schema = payload_avro.infer_schema(bodies, registry_of(options.registry))
    elif options.format == "protobuf":
        from amqpd.storage.export import payload_protobuf

        schema = payload_protobuf.infer_schema(bodies, registry_of(options.registry), options.message)
    else:
        return json_format(infer(bodies))
    return given_format(replace(options, schema=schema))


def known_schema(
    options: PayloadOptions, ledger: ExportLedger, *, may_add_fields: bool = False
) -> PayloadFormat | None:
    """Return the format of a checkpoint that has finished a batch; None if no batch had messages yet.

    Args:
        options: If they have a schema, it must be the checkpoint's.
        may_add_fields: It may also have more fields. Then it replaces that of the checkpoint.

    Raises: BadSchema, CheckpointError, OSError.
    """
    text = ledger.schema()
    if text is None and not ledger.state.rows:
        return None
    return _checked(options, text or "", ledger, may_add_fields)


def _checked(options: PayloadOptions, text: str, ledger: ExportLedger, may_add_fields: bool = False) -> PayloadFormat:
    """Return the format with the checkpoint's schema, which options do not contradict. Raises: CheckpointError."""
    place = ledger.schema_place
    try:
        if not text:
            raise BadSchema("it does not exist")
        known = given_format(replace(options, schema=text))
    except BadSchema as error:
        raise CheckpointError(f"{place}: {error}: use another --checkpoint") from None
    if options.schema and (given := given_format(options)).text != known.text:
        if not may_add_fields or not has_fields_of(given.kind, known.kind):
            fields = ", with all of its fields and perhaps more" if may_add_fields else ""
            raise CheckpointError(
                f"--payload-schema is not that of the checkpoint{fields}, {place}: use another --checkpoint"
            )
        ledger.fix_schema(given.text)
        known = given
    if options.message and known.message != options.message:
        raise CheckpointError(f"--payload-message is not that of the checkpoint, {place}: use another --checkpoint")
    return known


def fix_schema(options: PayloadOptions, rows: ExportRows, ledger: ExportLedger) -> PayloadFormat | None:
    """Write the schema into the checkpoint, before its first batch with messages. Return the format.

    Without a given schema it is inferred from the first of `rows`; None if there are none. Another process of a shared
    export may have fixed it first; then its schema counts.

    Raises: BadSchema, CheckpointError, DataLoss, SourceError, OSError.
    """
    if options.schema:
        found = given_format(options)
    else:
        bodies = sample(*rows.parts())
        first = next(bodies, None)
        if first is None:
            return None
        found = format_of(options, chain([first], bodies))
    text = ledger.fix_schema(found.text)
    return found if text == found.text else _checked(options, text, ledger)


def sample(options: ReadOptions, parts: Iterable[LogPartition]) -> Iterator[bytes]:
    """Yield the bodies of the first messages, at most SAMPLE_ROWS."""
    options = replace(options, columns=("value",))
    found = (body for part in parts for batch in batches(options, part) for body in batch.column("value").to_pylist())
    return islice(found, SAMPLE_ROWS)


# -- tables


def table_columns(rows: ExportRows) -> Any:
    """Return the pyarrow schema of a table for these rows."""
    columns = [(name, TYPES[name]) for name in rows.columns]
    return pa.schema(columns if rows.payload is None else [*columns, (PAYLOAD, rows.payload.kind)])


def table_payload(payload: PayloadFormat | None, time: Any) -> PayloadFormat | None:
    """Return a format whose structs a table can have; None for None.

    Args:
        time: The type of times, ICEBERG_TIME or DELTA_TIME.

    Raises: BadSchema.
    """
    if payload is None:
        return None
    kind = _struct(payload.kind, PAYLOAD, time)
    return replace(payload, kind=kind)


def _struct(kind: Any, where: str, time: Any) -> Any:
    names: dict[str, str] = {}
    for each in kind:
        other = names.setdefault(each.name.lower(), each.name)
        if other != each.name:
            raise BadSchema(
                f"{where}: a table cannot have both fields '{other}' and '{each.name}', which differ only in case: "
                "give a schema without one of them"
            )
    return pa.struct([(each.name, _type(each.type, f"{where}.{each.name}", time)) for each in kind])


def _type(kind: Any, where: str, time: Any) -> Any:
    if pa.types.is_struct(kind):
        return _struct(kind, where, time)
    if pa.types.is_map(kind):
        return pa.map_(_type(kind.key_type, where, time), _type(kind.item_type, where, time))
    if pa.types.is_list(kind):
        return pa.list_(_type(kind.value_type, where, time))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return time
    return _OTHERS[kind.id](kind) if kind.id in _OTHERS else kind


_OTHERS: Final[dict[int, Callable[[Any], Any]]] = {
    pa.uint32().id: lambda kind: pa.int64(),
    pa.uint64().id: lambda kind: pa.decimal128(20, 0),
    pa.decimal256(1, 0).id: lambda kind: pa.string(),
}


def has_fields_of(kind: Any, older: Any) -> bool:
    """Return whether a type has all fields of an older one, with the same types, and perhaps more."""
    if pa.types.is_struct(kind) and pa.types.is_struct(older):
        known = {each.name: each.type for each in kind}
        return all(each.name in known and has_fields_of(known[each.name], each.type) for each in older)
    if pa.types.is_map(kind) and pa.types.is_map(older):
        return bool(kind.key_type == older.key_type) and has_fields_of(kind.item_type, older.item_type)
    if pa.types.is_list(kind) and pa.types.is_list(older):
        return has_fields_of(kind.value_type, older.value_type)
    return bool(kind == older)
