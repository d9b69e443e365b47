"""`amqpd.read`: a queue as a stream of Arrow record batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from amqpd.storage.export.arrow import TYPES, batches
from amqpd.storage.export.offsets import batch_parts
from amqpd.storage.export.options import BadOption, ReadOptions, parse
from amqpd.storage.export.payload import payload_columns, with_payload
from amqpd.storage.export.payload_schema import format_of, payload_argument, sample
from amqpd.storage.export.plan import DataLoss, LogPartition


def read(
    source: str | os.PathLike[str],
    queue: str,
    *,
    vhost: str = "/",
    columns: Sequence[str] = (),
    start: int | datetime | None = None,
    stop: int | datetime | None = None,
    include_settled: bool = False,
    fail_on_data_loss: bool = True,
    payload: str | Mapping[str, Any] | None = None,
    payload_schema: str | os.PathLike[str] = "",
    payload_message: str = "",
    schema_registry: str = "",
    tls_ca_cert_file: str = "",
    tls_cert_file: str = "",
    tls_key_file: str = "",
) -> pa.RecordBatchReader:
    """Return the messages of a durable queue or stream as Arrow record batches, without consuming them.

    The call plans the query: the reader ends at the messages that were synced to the disk by then. Its batches are
    decoded as they are read, and have at most about 8,192 rows or 1 MiB of log. A reader is read once. It needs the
    package pyarrow. Cost: about 0.3 us a message compiled, and 3 more for `properties` and `headers`.

    Args:
        source: Data directory of a broker (running or not), a copy of one, or its admin API:
            `http://user:password@host:15672`, `https://...:15671`.
        columns: Names of columns, see docs/sql.md. Default: `value`, `vhost`, `queue`, `offset`, `timestamp`,
            `exchange`, `routing_key`. Columns that are left out cost nothing.
        start: First offset, or the time of the first message; default: the first message.
        stop: Offset or time of the first message that is not read; default: the end.
        include_settled: Also read acknowledged messages, as long as the log has them.
        fail_on_data_loss: False logs missing and damaged messages and continues behind them.
        payload: "json", "avro", "protobuf", or a JSON Schema as a dict. It adds two columns: the struct `payload` with
            the fields of the body, and `payload_error`, why a body does not fit. "avro" needs the package fastavro,
            "protobuf" protobuf and grpcio-tools.
        payload_schema: File of its schema: JSON Schema, Avro, `.proto` or a FileDescriptorSet. Default: inferred from
            the first 1,000 messages, or from the ids of their schemas in a registry.
        payload_message: Full name of the Protobuf message, if the schema has several.
        schema_registry: URL of a schema registry, if bodies of Avro or Protobuf begin with a schema's id.
        tls_ca_cert_file: For https: PEM file of trusted authorities.
        tls_cert_file: For https: PEM file of a client certificate, which can be the login.
        tls_key_file: For https: PEM file of its key.

    Raises:
        ValueError: an unknown column or queue, or an impossible position or schema.
        ImportError: the package of the payload's format is missing.
        OSError: the schema's file or the registry cannot be read; from the registry also while the batches are read.
        amqpd.storage.export.files.SourceError: the source cannot be read.
        amqpd.storage.export.plan.DataLoss: messages are missing or damaged, here or while the batches are read.
    """
    place = os.fspath(source)
    given = {
        "url" if place.startswith(("http://", "https://")) else "path": place,
        "vhost": vhost,
        "queue": queue,
        "columns": ",".join(columns),
        "includeSettled": str(include_settled).lower(),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    given |= _position("start", start, "starting") | _position("stop", stop, "ending")
    files = {"tlsCaCertFile": tls_ca_cert_file, "tlsCertFile": tls_cert_file, "tlsKeyFile": tls_key_file}
    options = parse({**given, **{name: path for name, path in files.items() if path}})
    schema = pa.schema([(name, TYPES[name]) for name in options.columns])
    wanted = None
    if payload is not None:
        wanted = payload_argument(payload, os.fspath(payload_schema), payload_message, schema_registry)
    with _own_names():
        parts = batch_parts(options)
        if wanted is None:
            return pa.RecordBatchReader.from_batches(schema, _read_parts(options, parts))
        found_format = format_of(wanted, sample(options, parts))
    schema = pa.schema([*schema, *payload_columns(found_format.kind)])
    options = replace(options, columns=tuple(dict.fromkeys((*options.columns, "value"))))
    parser = found_format.parser()
    found = (with_payload(batch, parser, schema.names) for batch in _read_parts(options, parts))
    return pa.RecordBatchReader.from_batches(schema, found)


def _read_parts(options: ReadOptions, parts: Iterable[LogPartition]) -> Iterator[pa.RecordBatch]:
    with _own_names():
        for part in parts:
            yield from batches(options, part)


@contextmanager
def _own_names() -> Iterator[None]:
    """Replace the name of a Spark option in an error by that of the argument."""
    try:
        yield
    except DataLoss as error:
        raise DataLoss(str(error).replace("failOnDataLoss=false", "fail_on_data_loss=False")) from None


def _position(name: str, value: int | datetime | None, prefix: str) -> dict[str, str]:
    """Return the option for an offset or a time. Raises BadOption."""
    if value is None:
        return {}
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadOption(f"{name}: the time {value} has no zone; use for example datetime.now(UTC)")
        return {f"{prefix}Timestamp": value.isoformat()}
    if value < 0:
        raise BadOption(f"{name}: expected an offset of at least 0, or a datetime, not {value}")
    return {f"{prefix}Offsets": str(value)}
