"""Rows of one slot in memory.

`apply_in_steps` makes changes as the database of a single node does: in order, all or none, with the dependent
rows. For example, a user's permissions and a vhost's queues are deleted with their parent
(`storage/metadata/schema.py`). The result is the records to write. `read` applies records from Kafka. Both ways give
the same rows.

Slot 0 has the rows of the whole cluster (CLUSTER_TABLES), the other slots those of their vhosts (SLOT_TABLES). A
row needs its parents if they are in the same slot. If a vhost's row is deleted in slot 0, the same change goes to
the vhost's slot, which deletes the rows of the vhost.

A submission has requested records and tombstones of dependent rows. If a batch cannot contain both, the tombstones
follow in further batches. A crash in between leaves rows whose parent is missing, or a row in state `deleting`; the
next owner deletes them (`orphan_deletions`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from amqpd.cluster.row_codec import (
    PLACE,
    Foreign,
    Note,
    NoteKey,
    PutAnnotation,
    RowKey,
    SlotChange,
    decode_key,
    decode_object,
    decode_row,
    encode_note,
    encode_row,
    key_of,
    note_key,
)
from amqpd.kafka.keyed_records import KeyedRecord
from amqpd.storage.metadata.rows import (
    BindingRow,
    Delete,
    DeleteBindings,
    Put,
    QueueRow,
    Row,
    VhostRow,
)
from amqpd.storage.metadata.schema import TABLE_OF, TABLES, Table, parent_key
from amqpd.storage.metadata.store import MetadataState, WriteFailed, state_of

CLUSTER_TABLES: Final = frozenset(
    ("vhosts", "users", "permissions", "topic_permissions", "global_parameters", "user_limits")
)
"""Tables of slot 0."""
ALL_TABLES: Final = frozenset(table.name for table in TABLES)
"""Tables that slot 0 may contain. In a cluster of one slot it also has the vhosts' tables."""
SLOT_TABLES: Final = ALL_TABLES - CLUSTER_TABLES
"""Tables of the other slots."""

R = TypeVar("R", bound=Row)
_TABLE: Final = {table.name: table for table in TABLES}
_CHILDREN_OF: Final = {
    table.name: [child for child in TABLES if any(parent == table.name for _, parent in child.parents)]
    for table in TABLES
}


class Submission(NamedTuple):
    """Records of one group of changes.

    Attributes:
        requested: the requested records, in one batch.
        dependent: tombstones of dependent rows; they may follow in later batches.
        deleted_positions: positions of deleted queues.
        size: bytes of all records.
    """

    requested: list[KeyedRecord]
    dependent: list[KeyedRecord]
    deleted_positions: list[PutAnnotation]
    size: int


class _Undo(NamedTuple):
    key: bytes
    table: Table
    row: Row | None


class _UndoNote(NamedTuple):
    key: NoteKey
    value: Note | None


class RowTable:
    """Rows by the keys of their records.

    Args:
        tables: names of the tables; rows of other tables are refused.
    """

    def __init__(self, tables: Iterable[str] = SLOT_TABLES) -> None:
        self.tables = frozenset(tables)
        self.notes: dict[NoteKey, Note] = {}
        self.foreign_count = 0
        """Records that no program of ours wrote."""
        self._rows: dict[str, dict[bytes, Row]] = {name: {} for name in self.tables}
        # (child table, column) -> key of the parent -> keys of the children
        self._children: dict[tuple[str, str], dict[object, dict[bytes, None]]] = {}
        # keys of bindings by (vhost, destination type, destination) and by (vhost, "source", source)
        self._bindings_of: dict[tuple[str, str, str], dict[bytes, None]] = {}
        for name in self.tables:
            for column, _ in _TABLE[name].parents:
                self._children[name, column] = {}

    # -- reading -------------------------------------------------------------------------------------------------------

    def rows(self, kind: type[R]) -> Iterable[R]:
        """Return the rows of one table. Invalid after the next change."""
        name = TABLE_OF[cast("type[Row]", kind)].name
        return cast("Iterable[R]", self._rows.get(name, {}).values())

    def row(self, like: R) -> R | None:
        found = self._rows.get(TABLE_OF[type(cast("Row", like))].name, {}).get(key_of(cast("Row", like)))
        return cast("R | None", found)

    def has(self, table: Table, key: bytes) -> bool:
        """Return whether the table has a row with this record key. Cost: two look-ups."""
        return key in self._rows[table.name]

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def orphan_deletions(self) -> Iterator[Delete]:
        """Yield deletions of rows whose parent in this slot is missing: a crash between two batches left them."""
        for name in self.tables:
            for column, parent in _TABLE[name].parents:
                if parent not in self.tables:
                    continue
                known = {getattr(row, parent_key(parent)) for row in self._rows[parent].values()}
                for row in self._rows[name].values():
                    if getattr(row, column) not in known:
                        yield Delete(row)

    def state(self, vhosts: Sequence[VhostRow], instance_id: str = "") -> MetadataState:
        """Return the contents of the vhosts, as a single node reads them at its start. Cost: 0.3 us per row."""
        names = {row.name for row in vhosts if row.state != "deleting"}
        rows: dict[type[Row], list[Row]] = {
            table.row: [row for row in self.rows(table.row) if getattr(row, "vhost", None) in names]
            if "vhost" in table.row._fields
            else list(self.rows(table.row))
            for table in TABLES
        }
        return state_of(instance_id, {**rows, VhostRow: list(vhosts)})

    # -- records from Kafka --------------------------------------------------------------------------------------------

    def read(self, key: bytes, value: bytes | None) -> SlotChange | None:
        """Apply a record from Kafka; call in the order of the partition. Foreign records are counted and skipped.

        Returns: The change; a Delete has the previous row. None if nothing changed.

        Cost: about 10 us.

        Raises: NewerFormat: a later version wrote the record.
        """
        try:
            known = decode_key(key)
        except Foreign:
            if value is not None:  # otherwise a barrier
                self.foreign_count += 1
            return None
        try:
            if isinstance(known, RowKey):
                return self._read_row(known, key, value)
            return self._read_note(known, value)
        except Foreign:
            self.foreign_count += 1
            return None

    def _read_row(self, known: RowKey, key: bytes, value: bytes | None) -> SlotChange | None:
        table = known.table
        if table.name not in self.tables:
            self.foreign_count += 1  # no version of ours writes this table to this slot
            return None
        before = self._rows[table.name].get(key)
        if value is None:
            if before is None:
                return None
            self._drop(table, key, before)
            return Delete(before)
        row = decode_row(known, value)
        if row == before:
            return None
        self._keep(table, key, row)
        return Put(row)

    def _read_note(self, key: NoteKey, value: bytes | None) -> SlotChange | None:
        note = None if value is None else decode_object(value)
        if self.notes.get(key) == note:
            return None
        self._put_note(key, note)
        return PutAnnotation(key, note)

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply(self, changes: Iterable[SlotChange], size_max: int = 0) -> Submission:
        steps = self.apply_in_steps(changes, size_max)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("Submission", end.value)

    def apply_in_steps(self, changes: Iterable[SlotChange], size_max: int = 0) -> Generator[None, None, Submission]:
        """Apply the changes, all or none, as a generator. Its return value is their `Submission`.

        The caller must exhaust the generator before another change. It yields after each change and record.

        Args:
            size_max: limit of the requested records' bytes; 0: none.

        Cost: about 20 us per change or record.

        Raises: WriteFailed: nothing has changed.
        """
        undo: list[_Undo | _UndoNote] = []
        # key of a record -> it was requested
        changed: dict[bytes, bool] = {}
        try:
            for change in changes:
                self._change(change, changed, undo)
                yield
            asked: list[KeyedRecord] = []
            along: list[KeyedRecord] = []
            size = along_size = 0
            for key, was_asked in changed.items():
                record = KeyedRecord(key, self._value(key))
                if was_asked or record.value is not None:
                    asked.append(record)
                    size += record.size()
                else:
                    along.append(record)
                    along_size += record.size()
                yield
            if 0 < size_max < size:
                raise ValueError(
                    f"{len(asked)} rows of {size} bytes do not fit into one record batch of {size_max}: "
                    "declare or import them in parts, or raise cluster.max_message_bytes"
                )
            gone = [
                PutAnnotation(each.key, each.value)
                for each in undo
                if isinstance(each, _UndoNote) and each.key[0] == PLACE and each.key not in self.notes
            ]
        except ValueError as error:
            self._take_back(undo)
            raise WriteFailed(f"cannot write the metadata: {error}") from error
        except GeneratorExit:
            self._take_back(undo)
            raise
        return Submission(asked, along, gone, size + along_size)

    def _change(self, change: SlotChange, changed: dict[bytes, bool], undo: list[_Undo | _UndoNote]) -> None:
        if isinstance(change, PutAnnotation):
            undo.append(_UndoNote(change.key, self.notes.get(change.key)))
            self._put_note(change.key, change.value)
            changed[note_key(change.key)] = True
            return
        if isinstance(change, DeleteBindings):
            for key in self._binding_keys(change):
                self._delete(_TABLE["bindings"], key, changed, undo, asked=False)
            return
        row = change.row
        table = TABLE_OF[type(row)]
        if isinstance(change, Put):
            if table.name not in self.tables:
                raise ValueError(f"rows of {table.name} do not belong to this slot")
            self._check_parents(table, row)
            key = key_of(row)
            undo.append(_Undo(key, table, self._rows[table.name].get(key)))
            self._keep(table, key, row)
            changed[key] = True
        elif table.name in self.tables:
            self._delete(table, key_of(row), changed, undo, asked=True)
        else:
            self._delete_children(table, row, changed, undo)

    def _check_parents(self, table: Table, row: Row) -> None:
        for column, parent in table.parents:
            if parent not in self.tables:
                continue
            named = getattr(row, column)
            if note_key((parent, named)) not in self._rows[parent]:  # a parent's key is one text column
                raise ValueError(f"{table.name}: there is no {named!r} in {parent}")

    def _binding_keys(self, change: DeleteBindings) -> list[bytes]:
        keys = list(self._bindings_of.get((change.vhost, change.kind, change.name), ()))
        if change.kind == "exchange":
            keys += self._bindings_of.get((change.vhost, "source", change.name), ())
        return list(dict.fromkeys(keys))

    def _delete(
        self, table: Table, key: bytes, changed: dict[bytes, bool], undo: list[_Undo | _UndoNote], asked: bool
    ) -> None:
        """Delete a row and its dependent rows.

        A requested row is also deleted in Kafka if it is not here: an earlier submission without answer may have
        stored it.
        """
        row = self._rows[table.name].get(key)
        if row is None:
            if asked:
                changed[key] = True
            return
        undo.append(_Undo(key, table, row))
        self._drop(table, key, row)
        changed[key] = asked or changed.get(key, False)
        self._delete_children(table, row, changed, undo)

    def _delete_children(
        self, table: Table, row: Row, changed: dict[bytes, bool], undo: list[_Undo | _UndoNote]
    ) -> None:
        for child in _CHILDREN_OF[table.name]:
            if child.name not in self.tables:
                continue
            for column, parent in child.parents:
                if parent == table.name:
                    named = getattr(row, parent_key(parent))
                    for key in list(self._children[child.name, column].get(named, ())):
                        self._delete(child, key, changed, undo, asked=False)
        if isinstance(row, QueueRow) and (PLACE, row.id) in self.notes:
            undo.append(_UndoNote((PLACE, row.id), self.notes[PLACE, row.id]))
            del self.notes[PLACE, row.id]
            changed.setdefault(note_key((PLACE, row.id)), False)

    def _value(self, key: bytes) -> bytes | None:
        """Return the present value of the record with that key."""
        known = decode_key(key)
        if not isinstance(known, RowKey):
            return encode_note(PutAnnotation(known, self.notes.get(known)))[1]
        row = self._rows[known.table.name].get(key)
        return None if row is None else encode_row(row)[1]

    def _take_back(self, undo: list[_Undo | _UndoNote]) -> None:
        for each in reversed(undo):
            if isinstance(each, _UndoNote):
                self._put_note(each.key, each.value)
            elif each.row is not None:
                self._keep(each.table, each.key, each.row)
            else:
                now = self._rows[each.table.name].get(each.key)
                if now is not None:
                    self._drop(each.table, each.key, now)

    # -- tables and indexes ------------------------------------------------------------------------------------------

    def _put_note(self, key: NoteKey, note: Note | None) -> None:
        if note is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = note

    def _keep(self, table: Table, key: bytes, row: Row) -> None:
        rows = self._rows[table.name]
        before = rows.get(key)
        if before is not None:
            self._unlist(table, key, before)
        rows[key] = row
        for index, value in self._indexes(table, row):
            index.setdefault(value, {})[key] = None

    def _drop(self, table: Table, key: bytes, row: Row) -> None:
        del self._rows[table.name][key]
        self._unlist(table, key, row)

    def _unlist(self, table: Table, key: bytes, row: Row) -> None:
        for index, value in self._indexes(table, row):
            keys = index[value]
            del keys[key]
            if not keys:
                del index[value]

    def _indexes(self, table: Table, row: Row) -> list[tuple[dict[Any, dict[bytes, None]], object]]:
        found: list[tuple[dict[Any, dict[bytes, None]], object]] = [
            (self._children[table.name, column], getattr(row, column)) for column, _ in table.parents
        ]
        if isinstance(row, BindingRow):
            found.append((self._bindings_of, (row.vhost, row.destination_type, row.destination)))
            found.append((self._bindings_of, (row.vhost, "source", row.source)))
        return found
