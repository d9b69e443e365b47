"""The schema of a column `payload`: given or inferred once, and then fixed in an export's checkpoint.

The formats are in modules of their own, because each needs another package:

    payload.py             JSON
    payload_avro.py        Avro: fastavro
    payload_protobuf.py    Protobuf: protobuf, and grpcio-tools for schemas that are texts
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from json import dumps
from typing import Any, Final

from amqpd.storage.export.checkpoint import CheckpointError, ExportCheckpoint, sync_directory
from amqpd.storage.export.engine import ExportRows
from amqpd.storage.export.file_writer import batches
from amqpd.storage.export.options import ReadOptions
from amqpd.storage.export.payload import (
    SAMPLE_ROWS,
    BadSchema,
    JsonPayload,
    PayloadFormat,
    PayloadOptions,
    infer,
    schema_of_text,
)
from amqpd.storage.export.plan import LogPartition
from amqpd.storage.export.schema_registry import registry_of

FORMATS: Final = ("json", "avro", "protobuf")
SCHEMA_FILE: Final = "payload-schema.json"


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
        from amqpd.storage.export.payload_avro import AvroPayload

        return AvroPayload.of(options.schema, options.registry)
    if options.format == "protobuf":
        from amqpd.storage.export.payload_protobuf import ProtobufPayload

        return ProtobufPayload.of(options.schema, options.registry)
    return JsonPayload(schema_of_text(options.schema))


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
        return JsonPayload(infer(bodies))
    return given_format(replace(options, schema=schema))


def known_schema(options: PayloadOptions, ledger: ExportCheckpoint) -> PayloadFormat | None:
    """Return the format of a checkpoint that has finished a batch; None if no batch had messages yet.

    Args:
        options: If they have a schema, it must be the checkpoint's.

    Raises: BadSchema, CheckpointError, OSError.
    """
    path = ledger.directory / SCHEMA_FILE
    if not ledger.state.rows and not path.exists():
        return None
    try:
        known = given_format(replace(options, schema=path.read_text(encoding="utf-8")))
    except (FileNotFoundError, BadSchema) as error:
        raise CheckpointError(f"{path}: {error}: use another --checkpoint") from None
    if options.schema and given_format(options).text != known.text:
        raise CheckpointError(f"--payload-schema is not that of the checkpoint, {path}: use another --checkpoint")
    if options.message and getattr(known, "message", "") != options.message:
        raise CheckpointError(f"--payload-message is not that of the checkpoint, {path}: use another --checkpoint")
    return known


def fix_schema(options: PayloadOptions, rows: ExportRows, ledger: ExportCheckpoint) -> PayloadFormat | None:
    """Write the schema into the checkpoint, before its first batch with messages. Return the format.

    Without a given schema it is inferred from the first of `rows`; None if there are none.

    Raises: BadSchema, DataLoss, SourceError, OSError.
    """
    path = ledger.directory / SCHEMA_FILE
    if options.schema:
        found = given_format(options)
    else:
        bodies = sample(*rows.parts())
        first = next(bodies, None)
        if first is None:
            return None
        found = format_of(options, chain([first], bodies))
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(found.text.encode())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(ledger.directory)
    return found


def sample(options: ReadOptions, parts: Iterable[LogPartition]) -> Iterator[bytes]:
    """Yield the bodies of the first messages, at most SAMPLE_ROWS."""
    options = replace(options, columns=("value",))
    found = (body for part in parts for batch in batches(options, part) for body in batch.column("value").to_pylist())
    return islice(found, SAMPLE_ROWS)
