"""What the broker keeps besides messages: the tables that its rows (rows.py) live in.

This module is the one definition of the schema. A row is a NamedTuple whose fields are its columns; `TABLES` adds
each column's kind, the key, and whose deletion takes the row along. Two modules read it: store.py (standard library,
at start) and store.py (SQLAlchemy, every write, and every database that is not our own SQLite file).

Values in the database are plain: text, integers (booleans are 0 and 1) and bytes. Three kinds are converted here:
a word list is a JSON array; a routing key is bytes, because AMQP does not promise that it is UTF-8 (in Python it is a
str with surrogateescape); field tables (`arguments`) are the encoded bytes the caller gives, so every AMQP type
survives.

A binding has no short natural key (its arguments may be 64 KiB), so its primary key is the SHA-256 of all its parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from amqpd.storage.metadata.rows import (
    BindingRow,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    QueueRow,
    Row,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)

SCHEMA_VERSION: Final = 4
"""Rises with every change of a table. A database with a larger number is refused untouched, one with a smaller number
is given at its start what it lacks: the tables whose `since` is larger.

1: until the first streams. 2: `stored_offsets`. 3: `user_limits`. 4: `seen_caches`, `seen`.
"""

NAME_LENGTH: Final = 255
"""Longest name, in bytes of UTF-8 (AMQP short string), and so in characters of a VARCHAR."""

Plain: TypeAlias = str | int | bytes
"""A value as the database sees it."""


class ColumnType(IntEnum):
    """What a column holds."""

    NAME = 0  # text of at most NAME_LENGTH characters
    TEXT = 1
    BYTES = 2
    BOOL = 3
    INT = 4
    WORDS = 5  # tuple[str, ...] as a JSON array
    KEY = 6  # str with surrogateescape, as bytes
    LONG = 7  # 64 bits, signed


class Table(NamedTuple):
    """One table: `columns` in the order of the row's fields, after the digest when there is one."""

    name: str
    row: type[Row]
    columns: tuple[tuple[str, ColumnType], ...]
    key: tuple[str, ...]
    parents: tuple[tuple[str, str], ...] = ()
    """(column, table): the row goes when the row with that key in that table goes."""
    indexes: tuple[tuple[str, ...], ...] = ()
    since: int = 1
    """The first schema version that has this table."""

    @property
    def has_digest(self) -> bool:
        """True when the key is the digest of all the row's values."""
        return self.key == ("digest",)

    def encode(self, row: Row) -> dict[str, Plain]:
        """Column name -> value for the database. Raises: ValueError when a str cannot be stored (lone surrogates)."""
        values: list[Plain] = []
        columns = self.columns
        if self.has_digest:
            columns = columns[1:]
        for (name, kind), value in zip(columns, row, strict=True):
            values.append(_to_plain(self, name, kind, value))
        if self.has_digest:
            values.insert(0, _digest(values))
        return dict(zip((name for name, _ in self.columns), values, strict=True))

    def decode(self, values: Sequence[object]) -> Row:
        """A row from the values of `columns`, in order. Raises: ValueError for what no version of ours wrote."""
        columns = self.columns
        if self.has_digest:
            columns = columns[1:]
            values = values[1:]
        try:
            return self.row._make([_READERS[kind](value) for (_, kind), value in zip(columns, values, strict=True)])
        except ValueError as error:
            raise ValueError(f"table {self.name}: {error}") from error

    def decode_named(self, values: Mapping[str, object]) -> Row:
        """As `decode`, by column, without the digest; a column that an earlier version has not had gets the row's
        default. Raises: ValueError.
        """
        columns = self.columns[1:] if self.has_digest else self.columns
        unknown = values.keys() - {name for name, _ in columns}
        if unknown:
            raise ValueError(f"table {self.name}: unknown columns {', '.join(sorted(unknown))}")
        try:
            given: dict[str, Any] = {name: _READERS[kind](values[name]) for name, kind in columns if name in values}
            return self.row(**given)
        except (ValueError, TypeError) as error:
            raise ValueError(f"table {self.name}: {error}") from error


def _to_plain(table: Table, name: str, kind: ColumnType, value: object) -> Plain:
    if isinstance(value, str):
        if kind is ColumnType.KEY:
            return value.encode("utf-8", "surrogateescape")
        value.encode("utf-8")  # every driver would refuse a lone surrogate, each with its own error
        if kind is ColumnType.NAME and len(value) > NAME_LENGTH:
            # SQLite would keep it, other databases refuse it or, worse, cut it.
            raise ValueError(f"{table.name}.{name}: longer than {NAME_LENGTH} characters")
        return value
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | bytes):
        return value
    raise ValueError(f"{table.name}.{name}: cannot store {type(value).__name__}")


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _read_int(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def _read_bool(value: object) -> bool:
    return bool(_read_int(value))


def _read_bytes(value: object) -> bytes:
    if isinstance(value, memoryview):  # some drivers give that for binary columns
        return bytes(value)
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r} is not binary")
    return value


def _read_words(value: object) -> tuple[str, ...]:
    words = json.loads(_read_text(value))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{value!r} is not a list of words")
    return tuple(words)


def _read_key(value: object) -> str:
    return _read_bytes(value).decode("utf-8", "surrogateescape")


_READERS: Final[dict[ColumnType, Callable[[object], object]]] = {
    ColumnType.NAME: _read_text,
    ColumnType.TEXT: _read_text,
    ColumnType.BYTES: _read_bytes,
    ColumnType.BOOL: _read_bool,
    ColumnType.INT: _read_int,
    ColumnType.WORDS: _read_words,
    ColumnType.KEY: _read_key,
    ColumnType.LONG: _read_int,
}


def _digest(values: Iterable[Plain]) -> str:
    """SHA-256 over the values, each with its length in front, so that no two lists of values read the same."""
    digest = hashlib.sha256()
    for value in values:
        part = value if isinstance(value, bytes) else str(value).encode()
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.hexdigest()


HEADER_TABLE: Final = "amqpd_metadata"
"""Table of (name, value): `instance_id` and `schema_version`. It tells a database of ours from an empty one."""

_N, _T, _B, _X = ColumnType.NAME, ColumnType.TEXT, ColumnType.BOOL, ColumnType.BYTES

# Parents come before their children: rows are read, and seeds written, in this order.
TABLES: Final[tuple[Table, ...]] = (
    Table(
        "vhosts",
        VhostRow,
        (
            ("name", _N),
            ("id", _N),
            ("description", _T),
            ("tags", ColumnType.WORDS),
            ("default_queue_type", _N),
            ("state", _N),
        ),
        ("name",),
    ),
    Table(
        "users",
        UserRow,
        (("name", _N), ("password_hash", _T), ("hashing_algorithm", _N), ("tags", ColumnType.WORDS)),
        ("name",),
    ),
    Table(
        "permissions",
        PermissionRow,
        (("user", _N), ("vhost", _N), ("configure", _T), ("write", _T), ("read", _T)),
        ("user", "vhost"),
        (("user", "users"), ("vhost", "vhosts")),
    ),
    Table(
        "topic_permissions",
        TopicPermissionRow,
        (("user", _N), ("vhost", _N), ("exchange", _N), ("write", _T), ("read", _T)),
        ("user", "vhost", "exchange"),
        (("user", "users"), ("vhost", "vhosts")),
    ),
    Table(
        "exchanges",
        ExchangeRow,
        (
            ("vhost", _N),
            ("name", _N),
            ("type", _N),
            ("durable", _B),
            ("auto_delete", _B),
            ("internal", _B),
            ("arguments", _X),
        ),
        ("vhost", "name"),
        (("vhost", "vhosts"),),
    ),
    Table(
        "queues",
        QueueRow,
        (
            ("vhost", _N),
            ("name", _N),
            ("id", _N),
            ("durable", _B),
            ("auto_delete", _B),
            ("exclusive", _B),
            ("arguments", _X),
            ("state", _N),
        ),
        ("id",),
        (("vhost", "vhosts"),),
        (("vhost", "name"),),
    ),
    Table(
        "bindings",
        BindingRow,
        (
            ("digest", _N),
            ("vhost", _N),
            ("source", _N),
            ("destination", _N),
            ("destination_type", _N),
            ("routing_key", ColumnType.KEY),
            ("arguments", _X),
        ),
        ("digest",),
        (("vhost", "vhosts"),),
        (("vhost", "destination"), ("vhost", "source")),
    ),
    Table(
        "policies",
        PolicyRow,
        (
            ("vhost", _N),
            ("name", _N),
            ("pattern", _T),
            ("apply_to", _N),
            ("definition", _T),
            ("priority", ColumnType.INT),
            ("operator", _B),
        ),
        ("vhost", "name", "operator"),
        (("vhost", "vhosts"),),
    ),
    Table(
        "parameters",
        ParameterRow,
        (("vhost", _N), ("component", _N), ("name", _N), ("value", _T)),
        ("vhost", "component", "name"),
        (("vhost", "vhosts"),),
    ),
    Table("global_parameters", GlobalParameterRow, (("name", _N), ("value", _T)), ("name",)),
    Table(
        "stored_offsets",
        StoredOffsetRow,
        (("queue_id", _N), ("name", _N), ("offset", ColumnType.LONG), ("time_ms", ColumnType.LONG)),
        ("queue_id", "name"),
        (("queue_id", "queues"),),
        since=2,
    ),
    Table(
        "user_limits",
        UserLimitsRow,
        (("user", _N), ("limits", _T)),
        ("user",),
        (("user", "users"),),
        since=3,
    ),
    Table(
        "seen_caches",
        SeenCacheRow,
        (("id", _N), ("vhost", _N), ("exchange", _N)),
        ("id",),
        (("vhost", "vhosts"),),
        since=4,
    ),
    Table(
        "seen",
        SeenRow,
        (("cache_id", _N), ("id", _X), ("number", ColumnType.LONG), ("expires_ms", ColumnType.LONG)),
        ("cache_id", "id"),
        (("cache_id", "seen_caches"),),
        since=4,
    ),
)

TABLE_OF: Final[dict[type[Row], Table]] = {table.row: table for table in TABLES}


def parent_key(parent: str) -> str:
    """The column of that table which its children name."""
    return next(table.key[0] for table in TABLES if table.name == parent)


def tables_after(version: int) -> list[Table]:
    """Those that a database of that schema version lacks."""
    return [table for table in TABLES if table.since > version]
