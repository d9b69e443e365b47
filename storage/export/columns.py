"""Columns of the Spark source and their types.

Options, schema, decoder and documentation use this table. Types are text in Spark's DDL, so this module needs no
pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PROPERTIES: Final = (
    ("content_type", "string"),
    ("content_encoding", "string"),
    ("delivery_mode", "int"),
    ("priority", "int"),
    ("correlation_id", "string"),
    ("reply_to", "string"),
    ("expiration", "string"),
    ("message_id", "string"),
    ("timestamp", "timestamp"),
    ("type", "string"),
    ("user_id", "string"),
    ("app_id", "string"),
)
"""Fields of the struct `properties`. Headers have columns of their own."""

COLUMNS: Final = {
    "value": "binary",
    "vhost": "string",
    "queue": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "exchange": "string",
    "routing_key": "string",
    "properties": "struct<" + ",".join(f"{name}:{kind}" for name, kind in PROPERTIES) + ">",
    "headers": "map<string,string>",
    "raw_properties": "binary",
    "raw_headers": "binary",
}
BASE: Final = ("value", "vhost", "queue", "offset", "timestamp", "exchange", "routing_key")

TIMES: Final = ("date", "hour")
"""Values for --partition-by besides columns: the UTC date and hour of `timestamp`."""


class UnknownColumn(ValueError):
    """The requested column does not exist."""


def check_columns(names: Iterable[str]) -> None:
    """Raises: UnknownColumn."""
    for name in names:
        if name not in COLUMNS:
            raise UnknownColumn(f"unknown column '{name}', expected one of {', '.join(COLUMNS)}")


def ddl(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in names)
