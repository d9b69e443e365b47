"""Database schema of the metadata: tables and conversion of rows (rows.py).

This is the only definition of the schema. A row is a NamedTuple whose fields are the columns. `TABLES` adds column
types, keys, and the parents whose deletion deletes a row. sqlite.py uses it with the standard library, sql.py with
SQLAlchemy for other databases.

Database values are text, integers (booleans are 0 and 1) and bytes. A word list is a JSON array. A routing key is
bytes, because AMQP does not require UTF-8; in Python it is a str with surrogate escapes. Field tables (`arguments`)
are the encoded bytes of the caller, which preserves every AMQP type.

A binding has no short natural key, because its arguments may have 64 KiB. Its primary key is the SHA-256 of all
values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    Put,
    QueueRow,
    Row,
    ScramRow,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)

SCHEMA_VERSION: Final = 5
"""Rises with every change of a table.

A database with a larger number is refused unchanged. A start adds to a database with a smaller number the tables
whose `since` is larger. 1: until the first streams. 2: `stored_offsets`. 3: `user_limits`. 4: `seen_caches`,
`seen`. 5: `scram_credentials`.
"""

NAME_LENGTH: Final = 255
"""Longest name: an AMQP short string in bytes, and so in characters of a VARCHAR."""

Plain: TypeAlias = str | int | bytes
"""A value in the database."""


class ColumnType(IntEnum):
    NAME = 0  # text of at most NAME_LENGTH characters
    TEXT = 1
    BYTES = 2
    BOOL = 3
    INT = 4
    WORDS = 5  # tuple[str, ...] as a JSON array
    KEY = 6  # str with surrogate escapes, as bytes
    LONG = 7  # 64 bits, signed


class Table(NamedTuple):
    """A table. `columns` are in the order of the row's fields, after the digest if there is one."""

    name: str
    row: type[Row]
    columns: tuple[tuple[str, ColumnType], ...]
    key: tuple[str, ...]
    parents: tuple[tuple[str, str], ...] = ()
    """(column, table): the row is deleted with the row of that table that has this key."""
    indexes: tuple[tuple[str, ...], ...] = ()
    since: int = 1
    """The first schema version with this table."""

    @property
    def has_digest(self) -> bool:
        """True if the key is the digest of all values."""
        return self.key == ("digest",)

    def encode(self, row: Row) -> dict[str, Plain]:
        """Return column name -> database value. Raises: ValueError for a str with lone surrogates."""
        has_digest = self.has_digest
        encoded: dict[str, Plain] = {}
        for (name, kind), value in zip(self.columns[1:] if has_digest else self.columns, row, strict=True):
            if isinstance(value, str):
                if kind is _KEY:
                    encoded[name] = value.encode("utf-8", "surrogateescape")
                    continue
                if len(value) > NAME_LENGTH and kind is _N:
                    # SQLite would store it; other databases refuse or, worse, truncate it.
                    raise ValueError(f"{self.name}.{name}: longer than {NAME_LENGTH} characters")
                if not value.isascii():
                    value.encode()  # every driver refuses a lone surrogate, each with its own error
                encoded[name] = value
            elif isinstance(value, bool):
                encoded[name] = int(value)
            elif isinstance(value, int | bytes):
                encoded[name] = value
            elif isinstance(value, tuple):
                encoded[name] = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
            else:
                raise ValueError(f"{self.name}.{name}: cannot store {type(value).__name__}")
        if has_digest:
            return {"digest": _digest(encoded.values()), **encoded}
        return encoded

    def decode(self, values: Sequence[object]) -> Row:
        """Return the row for the values of `columns`. Raises: ValueError for values that no version wrote."""
        columns = self.columns
        if self.has_digest:
            columns = columns[1:]
            values = values[1:]
        try:
            return self.row._make([_READERS[kind](value) for (_, kind), value in zip(columns, values, strict=True)])
        except ValueError as error:
            raise ValueError(f"table {self.name}: {error}") from error

    def decode_named(self, values: Mapping[str, object]) -> Row:
        """Return the row for values by column, without the digest. Missing columns get the row's default.

        Raises: ValueError.
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
    if isinstance(value, memoryview):  # some drivers return it for binary columns
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
    """Return the SHA-256 of the values with length prefixes, so that different lists have different inputs."""
    digest = hashlib.sha256()
    for value in values:
        part = value if isinstance(value, bytes) else str(value).encode()
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.hexdigest()


HEADER_TABLE: Final = "amqpd_metadata"
"""Table of (name, value) with `instance_id` and `schema_version`. It marks a database of amqpd."""

_N, _T, _B, _X = ColumnType.NAME, ColumnType.TEXT, ColumnType.BOOL, ColumnType.BYTES
_KEY: Final = ColumnType.KEY

# Parents precede children: rows are read, and first rows written, in this order.
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
    Table(
        "scram_credentials",
        ScramRow,
        (("user", _N), ("sha256", _T), ("sha512", _T)),
        ("user",),
        (("user", "users"),),
        since=5,
    ),
)

TABLE_OF: Final[dict[type[Row], Table]] = {table.row: table for table in TABLES}


def parent_key(parent: str) -> str:
    """Return the column of `parent` that its children refer to."""
    return next(table.key[0] for table in TABLES if table.name == parent)


def tables_after(version: int) -> list[Table]:
    """Return the tables that a database of this schema version lacks."""
    return [table for table in TABLES if table.since > version]


class ChangeGroup(NamedTuple):
    """Changes that take one statement for each table and kind: first the deletions, then the rows that are put.

    So a thousand queues with their bindings take two statements.
    """

    unbound: list[DeleteBindings]
    deleted: dict[str, list[Row]]
    """By the name of their table."""
    put: dict[str, list[Row]]
    """By the name of their table."""


def group_changes(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Return groups that together have the same effect as the changes, one after the other."""
    bindings = TABLE_OF[BindingRow].name
    group = ChangeGroup([], {}, {})
    groups = [group]
    for change in changes:
        # A deletion that comes after a row that it can take with it begins the next group.
        if (group.put and isinstance(change, Delete)) or (bindings in group.put and isinstance(change, DeleteBindings)):
            group = ChangeGroup([], {}, {})
            groups.append(group)
        if isinstance(change, DeleteBindings):
            group.unbound.append(change)
        else:
            rows = group.put if isinstance(change, Put) else group.deleted
            rows.setdefault(TABLE_OF[type(change.row)].name, []).append(change.row)
    return groups
