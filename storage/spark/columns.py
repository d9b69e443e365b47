"""The columns a reader gives, their Spark types, and which of them a query gets.

The table is the one place: options, schema, decoder and documentation follow it. No type here needs pyspark: they are
written as the DDL that Spark takes.
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
"""Fields of the struct `properties`; the headers have columns of their own."""

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
"""What an export may be split by beside columns: the UTC date and hour of `timestamp`."""


class UnknownColumn(ValueError):
    """A column that there is not was asked for."""


def chosen(columns: Sequence[str], include_properties: bool, include_headers: bool) -> list[str]:
    """Names of the columns a query gets, in order.

    columns: those named by the option, empty for the base columns; what the two flags add comes behind, and the raw
    bytes beside it. Raises: UnknownColumn.
    """
    names = list(columns) or list(BASE)
    if include_properties:
        names += ["properties", "raw_properties"]
    if include_headers:
        names += ["headers", "raw_headers"]
    for name in names:
        if name not in COLUMNS:
            raise UnknownColumn(f"there is no column '{name}'; there are {', '.join(COLUMNS)}")
    return list(dict.fromkeys(names))


def ddl(names: Sequence[str]) -> str:
    """The schema of these columns as Spark's DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in names)
