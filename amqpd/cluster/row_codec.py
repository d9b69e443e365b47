"""Rows of the metadata as records of the topic `meta`.

    key      JSON array: the table's name, then the row's key columns       ["queues","1b8e..."]
    value    JSON object: the other columns; null deletes the row            {"vhost":"/","name":"orders", ...}

Tables, columns and keys are those of `storage/metadata/schema.py`; bytes are base64. A binding's key is its digest,
and its value has all columns. So each row is one record, and compaction keeps the present rows.

Besides rows, `meta` contains **notes**: JSON objects that belong to no table, under keys such as `["owner",5]`,
`["vhost-slot","/"]` or `["place","1b8e..."]`. NOTES lists their kinds.

Unknown records have two causes. A key that no version of amqpd writes, or a value that is no JSON object, is
`Foreign`: the reader skips and logs it. An unknown table, column or format of a known kind is `NewerFormat`: a
later version wrote it. A record with a foreign key and without value is a barrier or an hourly record.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from amqpd.storage.metadata.rows import Change, Delete, DeleteBindings, Put, Row
from amqpd.storage.metadata.schema import TABLE_OF, TABLES, ColumnType, Plain, Table

OWNER: Final = "owner"
"""`["owner", slot]`: the node that serves the slot; in the slot's own `meta`."""
VHOST_SLOT: Final = "vhost-slot"
"""`["vhost-slot", name]`: the slot of a vhost; in slot 0."""
PLACE: Final = "place"
"""`["place", queue id]`: the position of a durable queue; in its slot. Deleted with the queue's row."""
OWN_TOPIC: Final = "own-topic"
"""`["own-topic", name]`: a dedicated topic; in its queue's slot.

It exists from before the topic's creation until after its deletion, so that a crash leaves no topic behind.
"""
WISH: Final = "wish"
"""`["wish", slot]`: the node to which an operator moved the slot; in slot 0."""
NOTES: Final = frozenset((OWNER, VHOST_SLOT, PLACE, OWN_TOPIC, WISH))

NoteKey: TypeAlias = tuple[str | int, ...]
Note: TypeAlias = Mapping[str, Any]

_BY_NAME: Final = {table.name: table for table in TABLES}
_KIND: Final = {table.name: dict(table.columns) for table in TABLES}
_BINARY: Final = frozenset((ColumnType.BYTES, ColumnType.KEY))


class Foreign(ValueError):
    """Error: no program of ours wrote this record."""


class NewerFormat(ValueError):
    """Error: a later version wrote this record. The text names what is unknown here."""


class RowKey(NamedTuple):
    """Key of a row's record.

    Attributes:
        values: the key columns, encoded as for the database.
    """

    table: Table
    values: tuple[Plain, ...]


class PutAnnotation(NamedTuple):
    """Change that writes a note, or deletes it if the value is None.

    Attributes:
        key: begins with its kind, one of NOTES.
    """

    key: NoteKey
    value: Note | None


SlotChange: TypeAlias = Change | PutAnnotation
"""A change of a slot's `meta`."""


# -- keys -------------------------------------------------------------------------------------------------------------


def _row_key(table: Table, values: Mapping[str, Plain]) -> bytes:
    return _json([table.name, *(_out(values[name]) for name in table.key)])


def key_of(row: Row) -> bytes:
    """Return the key of a row's record. Raises ValueError, see `Table.encode`."""
    table = TABLE_OF[type(row)]
    return _row_key(table, table.encode(row))


def note_key(key: NoteKey) -> bytes:
    return _json(list(key))


def decode_key(key: bytes) -> RowKey | NoteKey:
    """Decode the key of a record. Raises Foreign or NewerFormat."""
    try:
        parts = json.loads(key)
    except (ValueError, RecursionError):
        raise Foreign("its key is no JSON") from None
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise Foreign("its key is not the key of a row")
    if parts[0] in NOTES:
        if not all(isinstance(part, str) or type(part) is int for part in parts):
            raise Foreign("its key is not the key of a note")
        if len(parts) != 2:
            raise NewerFormat(f"the note {parts[0]!r} has another key than in this version of amqpd")
        return tuple(parts)
    table = _BY_NAME.get(parts[0])
    if table is None:
        raise NewerFormat(f"table {parts[0]!r} is not known to this version of amqpd")
    if len(parts) != 1 + len(table.key):
        raise NewerFormat(f"table {parts[0]!r} has another key than in this version of amqpd")
    kinds = _KIND[table.name]
    return RowKey(table, tuple(_in(kinds[name], part) for name, part in zip(table.key, parts[1:], strict=True)))


# -- rows -------------------------------------------------------------------------------------------------------------


def encode_row(row: Row) -> tuple[bytes, bytes]:
    """Return key and value of a row's record. Cost: about 10 us. Raises ValueError, see `Table.encode`."""
    table = TABLE_OF[type(row)]
    values = table.encode(row)
    rest = {name: _out(value) for name, value in values.items() if name not in table.key}
    return _row_key(table, values), _json(rest)


def decode_row(key: RowKey, value: bytes) -> Row:
    """Decode the row of a record. Raises Foreign or NewerFormat."""
    table = key.table
    kinds = _KIND[table.name]
    values: dict[str, object] = {}
    if not table.has_digest:
        values.update(zip(table.key, key.values, strict=True))
    for name, found in decode_object(value).items():
        if name not in kinds:
            raise NewerFormat(f"column {name!r} of table {table.name!r} is not known to this version of amqpd")
        values[name] = _in(kinds[name], found)
    try:
        return table.decode_named(values)
    except ValueError as error:
        raise Foreign(str(error)) from None


def decode_object(value: bytes) -> dict[str, Any]:
    """Decode the JSON object of a value. Raises Foreign."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise Foreign("its value is no JSON") from None
    if not isinstance(found, dict):
        raise Foreign("its value is no JSON object")
    return found


def encode_note(note: PutAnnotation) -> tuple[bytes, bytes | None]:
    return note_key(note.key), None if note.value is None else _json(dict(note.value))


# -- changes between nodes --------------------------------------------------------------------------------------------


def changes_to_json(changes: Iterable[SlotChange]) -> list[Any]:
    """Encode changes for another node, which decodes them by `changes_from_json`. Raises ValueError as `key_of`."""
    found: list[Any] = []
    for change in changes:
        if isinstance(change, PutAnnotation):
            found.append(["note", list(change.key), None if change.value is None else dict(change.value)])
        elif isinstance(change, DeleteBindings):
            found.append(["unbind", *change])
        else:
            key, value = encode_row(change.row)
            found.append(["put" if isinstance(change, Put) else "delete", json.loads(key), json.loads(value)])
    return found


def changes_from_json(found: object) -> list[SlotChange]:
    """Decode changes of another node. Raises Foreign or NewerFormat."""
    if not isinstance(found, list):
        raise Foreign("no list of changes")
    return [_change(each) for each in found]


def _change(found: object) -> SlotChange:
    match found:
        case ["note", list(key), dict() | None as value]:
            known = decode_key(_json(key))
            if isinstance(known, RowKey):
                raise Foreign("no note")
            return PutAnnotation(known, value)
        case ["unbind", str(vhost), str(name), "queue" | "exchange" as kind]:
            return DeleteBindings(vhost, name, kind)
        case ["put" | "delete" as what, list(key), dict(value)]:
            known = decode_key(_json(key))
            if not isinstance(known, RowKey):
                raise Foreign("no row")
            row = decode_row(known, _json(value))
            return Put(row) if what == "put" else Delete(row)
    raise Foreign("no change")


# -- values -----------------------------------------------------------------------------------------------------------


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _out(value: Plain) -> str | int:
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _in(kind: ColumnType, value: object) -> Plain:
    if kind in _BINARY:
        try:
            return b64decode(value if isinstance(value, str) else b"?", validate=True)
        except (NotBase64, ValueError):
            raise Foreign(f"{value!r} is not base64") from None
    if not isinstance(value, str) and type(value) is not int:
        raise Foreign(f"{value!r} is neither text nor a number")
    return value
