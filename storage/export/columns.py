"""Columns of the Spark source and their types.

Options, schema, decoder and documentation use this table. Types are text in Spark's DDL, so this module needs no
pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def chosen(columns: Sequence[str], include_properties: bool, include_headers: bool) -> list[str]:
    """Return the names of a query's columns, in order.

    Args:
        columns: Value of the option `columns`; empty for the base columns.
        include_properties: Add `properties` and `raw_properties`.
        include_headers: Add `headers` and `raw_headers`.

    Raises: UnknownColumn.
    """
    names = list(columns) or list(BASE)
    if include_properties:
        names += ["properties", "raw_properties"]
    if include_headers:
        names += ["headers", "raw_headers"]
    for name in names:
        if name not in COLUMNS:
            raise UnknownColumn(f"unknown column '{name}', expected one of {', '.join(COLUMNS)}")
    return list(dict.fromkeys(names))


def ddl(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in names)
