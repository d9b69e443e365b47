"""The schema of an export's column `payload`: given or inferred once, and then fixed in the checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from amqpd.storage.export.checkpoint import CheckpointError, ExportCheckpoint, sync_directory
from amqpd.storage.export.engine import ExportRows
from amqpd.storage.export.file_writer import batches
from amqpd.storage.export.options import ReadOptions
from amqpd.storage.export.payload import SAMPLE_ROWS, BadSchema, infer, json_schema, schema_of_text
from amqpd.storage.export.plan import LogPartition

SCHEMA_FILE: Final = "payload-schema.json"


def known_schema(given: str, ledger: ExportCheckpoint) -> Any:
    """Return the pyarrow struct of a checkpoint that has finished a batch; None if no batch had messages yet.

    Args:
        given: The JSON Schema of this run, which must be the same; "": none.

    Raises: BadSchema, CheckpointError, OSError.
    """
    path = ledger.directory / SCHEMA_FILE
    if not ledger.state.rows and not path.exists():
        return None
    try:
        known = schema_of_text(path.read_bytes())
    except (FileNotFoundError, BadSchema) as error:
        raise CheckpointError(f"{path}: {error}: use another --checkpoint") from None
    if given and schema_of_text(given) != known:
        raise CheckpointError(f"--payload-schema is not that of the checkpoint, {path}: use another --checkpoint")
    return known


def fix_schema(given: str, rows: ExportRows, ledger: ExportCheckpoint) -> Any:
    """Write the schema into the checkpoint, before its first batch with messages. Return it as a pyarrow struct.

    Args:
        given: A JSON Schema; "": infer it from the first of `rows`, and return None if there are none.

    Raises: BadSchema, DataLoss, SourceError, OSError.
    """
    path = ledger.directory / SCHEMA_FILE
    if given:
        kind = schema_of_text(given)
    else:
        bodies = sample(*rows.parts())
        first = next(bodies, None)
        if first is None:
            return None
        kind = infer(chain([first], bodies))
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(json.dumps(json_schema(kind), indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(ledger.directory)
    return kind


def sample(options: ReadOptions, parts: Iterable[LogPartition]) -> Iterator[bytes]:
    """Yield the bodies of the first messages, at most SAMPLE_ROWS."""
    options = replace(options, columns=("value",))
    found = (body for part in parts for batch in batches(options, part) for body in batch.column("value").to_pylist())
    return islice(found, SAMPLE_ROWS)
