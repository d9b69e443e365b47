"""Rows as Kafka records: a slot's table after any changes equals the database after the same changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.cluster.row_codec import (
    Foreign,
    NewerFormat,
    PutAnnotation,
    RowKey,
    changes_from_json,
    changes_to_json,
    decode_key,
    decode_row,
    encode_row,
    note_key,
)
from amqpd.cluster.row_table import ALL_TABLES, CLUSTER_TABLES, SLOT_TABLES, RowTable
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
from amqpd.storage.metadata.schema import TABLE_OF, TABLES, parent_key
from amqpd.storage.metadata.sqlite import SqliteTables
from amqpd.storage.metadata.store import MetadataState, WriteFailed, state_of

ODD = "a'\"`;--\x00%s{}é☃\U0001f407"
ROWS: tuple[Row, ...] = (
    VhostRow("/", "0" * 32),
    VhostRow("shop", "1" * 32, ODD, ("a", "b,c"), "quorum", "deleting"),
    UserRow("guest", "$argon2id$...", "argon2id", ("administrator", "ünï")),
    PermissionRow("guest", "/", "^a.*", "", ".*"),
    TopicPermissionRow("guest", "shop", "amq.topic", "^{username}", ".*"),
    ExchangeRow("/", ODD, "topic", True, False, True, b"\x00\x00\x00\x03\x01x\xff"),
    QueueRow("/", ODD, "2" * 32, True, True, False, bytes(range(256))),
    BindingRow("/", "amq.topic", ODD, "queue", "not utf-8: \udcff\udc80", b"\x00"),
    PolicyRow("/", "p", "^q", "queues", '{"max-length":1}', 7, True),
    ParameterRow("shop", "shovel", "s", "{}"),
    GlobalParameterRow("cluster_name", '"rabbit"'),
    StoredOffsetRow("2" * 32, ODD, (1 << 63) - 1, 1_700_000_000_000),
    UserLimitsRow("guest", '{"max-channels":0}'),
    SeenCacheRow("3" * 32, "/", ODD),
    SeenRow("3" * 32, bytes(range(33)), (1 << 63) - 1, 1_700_000_000_000),
    ScramRow("guest", "4096:c2FsdA==:a2V5:a2V5", ""),
)
"""One row of each kind."""

vhosts = st.sampled_from(("/", "a", "b"))
users = st.sampled_from(("u", "v"))
names = st.sampled_from(("x", "y", "z"))
flags = st.booleans()
octets = st.binary(max_size=3)
states: Any = st.sampled_from(("live", "deleting"))
kinds: Any = st.sampled_from(("queue", "exchange"))
texts = st.sampled_from(("", "t", "ü"))
numbers = st.integers(-3, 3)
rows: st.SearchStrategy[Row] = st.one_of(
    st.builds(VhostRow, vhosts, names, texts, st.lists(texts, max_size=2).map(tuple), texts, states),
    st.builds(UserRow, users, texts, texts, st.just(())),
    st.builds(PermissionRow, users, vhosts, texts, texts, texts),
    st.builds(TopicPermissionRow, users, vhosts, names, texts, texts),
    st.builds(ExchangeRow, vhosts, names, texts, flags, flags, flags, octets),
    st.builds(QueueRow, vhosts, names, st.sampled_from("1234"), flags, flags, flags, octets, states),
    st.builds(BindingRow, vhosts, names, names, kinds, texts, octets),
    st.builds(PolicyRow, vhosts, names, texts, texts, texts, numbers, flags),
    st.builds(ParameterRow, vhosts, names, names, texts),
    st.builds(GlobalParameterRow, names, texts),
    st.builds(StoredOffsetRow, st.sampled_from("1234"), names, numbers, numbers),
    st.builds(UserLimitsRow, users, texts),
    st.builds(ScramRow, users, texts, texts),
    st.builds(SeenCacheRow, st.sampled_from("56"), vhosts, names),
    st.builds(SeenRow, st.sampled_from("56"), octets, numbers, numbers),
)
changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(Put, rows),
    st.builds(Put, rows),
    st.builds(Delete, rows),
    st.builds(DeleteBindings, vhosts, names, kinds),
)
FIRST: tuple[Change, ...] = (
    *(Put(VhostRow(name, name)) for name in ("/", "a")),
    Put(UserRow("u", "", "")),
    *(Put(QueueRow("/", "x", each)) for each in "12"),
    Put(SeenCacheRow("5", "/", "x")),
)


def rows_of_state(state: MetadataState) -> list[tuple[str, Row]]:
    """Return the rows with their kinds, because NamedTuples of different kinds may be equal."""
    found = [(type(row).__name__, row) for part in state if isinstance(part, list) for row in part]
    return sorted(found, key=repr)


def rows_of_table(table: RowTable) -> list[tuple[str, Row]]:
    """Return the table's rows with their kinds."""
    return sorted(((type(row).__name__, row) for each in TABLES for row in table.rows(each.row)), key=repr)


def replayed(records: dict[bytes, bytes | None], tables: frozenset[str] = ALL_TABLES) -> RowTable:
    table = RowTable(tables)
    for key, value in records.items():
        table.read(key, value)
    return table


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteTables]:
    tables = SqliteTables(tmp_path_factory.mktemp("rows") / "metadata.sqlite")
    tables.create({"instance_id": "i", "schema_version": "4"}, [])
    with closing(tables):
        yield tables


def has_late_parent(submission: list[Change]) -> bool:
    """Return whether a row precedes a row that it depends on: a database puts parents first, a table refuses it."""
    puts = [change.row for change in submission if isinstance(change, Put)]
    return any(
        parent == TABLE_OF[type(later)].name and getattr(row, column) == getattr(later, parent_key(parent))
        for number, row in enumerate(puts)
        for column, parent in TABLE_OF[type(row)].parents
        for later in puts[number + 1 :]
    )


@pytest.mark.slow
@given(st.lists(st.lists(changes, min_size=1, max_size=4).filter(lambda each: not has_late_parent(each)), max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_table_equals_the_database(store: SqliteTables, submissions: list[list[Change]]) -> None:
    """Both refuse the same submissions, and a table read back from the records is equal too."""
    store.write([Delete(row) for kind in TABLES for row in store.rows()[kind.row]])
    table = RowTable(ALL_TABLES)
    records: dict[bytes, bytes | None] = {}
    for submission in [list(FIRST), *submissions]:
        try:
            store.write(submission)
        except sqlite3.Error:
            with pytest.raises(WriteFailed):
                table.apply(submission)
        else:
            asked, along = table.apply(submission)[:2]
            assert all(value is None for _, value in along)
            keys = [key for key, _ in (*asked, *along)]
            assert len(keys) == len(set(keys))
            records.update(asked)
            records.update(along)
        of_database = sorted(((type(row).__name__, row) for found in store.rows().values() for row in found), key=repr)
        assert rows_of_table(table) == of_database
    assert rows_of_table(replayed(records)) == of_database
    assert list(table.orphan_deletions()) == []
    state = state_of("i", store.rows())
    assert rows_of_state(table.state(sorted(table.rows(VhostRow)), "i")) == rows_of_state(state)


@given(st.lists(st.lists(changes, min_size=1, max_size=4), max_size=12))
@settings(max_examples=examples(100), deadline=None)
def test_cluster_and_vhost_tables_together_equal_one_table(submissions: list[list[Change]]) -> None:
    """One table has the cluster's rows and another the vhosts' rows. The second also gets the deletion of a vhost."""
    whole, cluster, slot = RowTable(ALL_TABLES), RowTable(CLUSTER_TABLES), RowTable(SLOT_TABLES)
    for submission in [list(FIRST), *submissions]:
        for change in submission:
            try:
                whole.apply([change])
            except WriteFailed:
                continue
            of_cluster = not isinstance(change, DeleteBindings) and type(change.row) in {
                table.row for table in TABLES if table.name in CLUSTER_TABLES
            }
            if of_cluster:
                cluster.apply([change])
            if not of_cluster or (isinstance(change, Delete) and isinstance(change.row, VhostRow)):
                slot.apply([change])
    assert sorted(rows_of_table(cluster) + rows_of_table(slot), key=repr) == rows_of_table(whole)


@pytest.mark.parametrize("row", ROWS)
def test_row_survives_encoding(row: Row) -> None:
    key, value = encode_row(row)
    known = decode_key(key)
    assert isinstance(known, RowKey)
    assert decode_row(known, value) == row
    assert changes_from_json(json.loads(json.dumps(changes_to_json([Put(row), Delete(row)])))) == [
        Put(row),
        Delete(row),
    ]


def test_rows_contain_each_kind() -> None:
    assert {type(row) for row in ROWS} == {table.row for table in TABLES}


def test_changes_survive_encoding_as_json() -> None:
    note = PutAnnotation(("wish", 3), {"node": "a"})
    given_changes = [DeleteBindings("/", ODD, "exchange"), note, PutAnnotation(("wish", 4), None)]
    assert changes_from_json(json.loads(json.dumps(changes_to_json(given_changes)))) == given_changes
    for wrong in (None, 5, [5], [["put"]], [["put", ["users", "u"], None]], [["note", ["users", "u"], {}]],
                  [["delete", ["owner", 1], {}]], [["unbind", "/", "x", "y"]], [["put", [], {}]]):  # fmt: skip
        with pytest.raises(Foreign):
            changes_from_json(wrong)
    with pytest.raises(NewerFormat):
        changes_from_json([["put", ["pets", "cat"], {}]])


class TestForeignRecords:
    def test_foreign_record_is_counted_and_skipped(self) -> None:
        table = RowTable(ALL_TABLES)
        key, value = encode_row(ROWS[0])
        for strange, content in (
            (b"no json", b"{}"),
            (b"\xff\x00", b"{}"),
            (b"5", b"{}"),
            (b"[" * 100_000, b"{}"),
            (key, b"[" * 100_000),
            (b"[]", b"{}"),
            (b"[5]", b"{}"),
            (key, b"no json"),
            (key, b"[]"),
            (key, b"{}"),
            (key, b'{"id":5}'),
            (b'["owner",5]', b"5"),
            (b'["owner",[]]', b"{}"),
            (b'["seen","c","no base64!"]', b"{}"),
            (b'["seen","c",null]', b"{}"),
        ):
            before = table.foreign_count
            assert table.read(strange, content) is None
            assert table.foreign_count == before + 1, strange
        assert len(table) == 0
        assert table.read(key, value) == Put(ROWS[0])

    def test_barrier_is_not_a_foreign_record(self) -> None:
        table = RowTable()
        assert table.read(b"amqpd.shop.slot3", None) is None
        assert table.foreign_count == 0

    def test_record_of_a_later_version_is_refused(self) -> None:
        table = RowTable()
        for key, value, text in (
            (b'["pets","cat"]', b"{}", "table 'pets' is not known"),
            (b'["pets","cat"]', None, "table 'pets' is not known"),
            (b'["queues","a","b"]', b"{}", "table 'queues' has another key"),
            (b'["queues","a"]', b'{"colour":1}', "column 'colour' of table 'queues' is not known"),
        ):
            with pytest.raises(NewerFormat, match=text):
                table.read(key, value)

    def test_record_of_an_earlier_version_gets_default_columns(self) -> None:
        table = RowTable(ALL_TABLES)
        assert table.read(b'["vhosts","/"]', b'{"id":"7"}') == Put(VhostRow("/", "7"))


class TestSubmissions:
    def test_failed_submission_changes_nothing(self) -> None:
        table = RowTable(ALL_TABLES)
        table.apply(FIRST)
        before = rows_of_table(table)
        lone = QueueRow("/", "\ud800", "9")
        for wrong in (Put(PermissionRow("nobody", "/", "", "", "")), Put(lone), Put(VhostRow("x" * 256, "9"))):
            with pytest.raises(WriteFailed, match="cannot write the metadata"):
                table.apply([Delete(VhostRow("/", "")), Put(UserRow("w", "", "")), wrong])
            assert rows_of_table(table) == before

    def test_row_of_another_slot_is_refused(self) -> None:
        with pytest.raises(WriteFailed, match="rows of users do not belong to this slot"):
            RowTable().apply([Put(UserRow("u", "", ""))])

    def test_missing_dependent_deletions_are_found_as_orphans(self) -> None:
        """After a crash before the dependent records, the table finds the orphaned rows and deletes them."""
        table = RowTable(ALL_TABLES)
        table.apply(FIRST)
        stored = [StoredOffsetRow("1", "c", 5, 0), StoredOffsetRow("1", "d", 6, 0)]
        records = dict(RowTable(ALL_TABLES).apply([*FIRST, *map(Put, stored)]).requested)
        table.apply([*map(Put, stored)])
        submission = table.apply([Delete(QueueRow("/", "x", "1"))])
        assert [value for _, value in submission.requested] == [None]
        assert len(submission.dependent) == 2
        crashed = replayed({**records, **dict(submission.requested)})
        assert sorted(crashed.orphan_deletions()) == sorted(map(Delete, stored))
        crashed.apply(list(crashed.orphan_deletions()))
        assert rows_of_table(crashed) == rows_of_table(table)

    def test_deletion_of_an_unknown_row_is_written(self) -> None:
        """A submission that was never answered may have put the row into Kafka."""
        row = QueueRow("/", "x", "1")
        assert RowTable().apply([Delete(row)]).requested == [(encode_row(row)[0], None)]

    def test_partition_annotation_is_deleted_with_its_queue(self) -> None:
        table = RowTable()
        queue = QueueRow("/", "x", "1")
        place = PutAnnotation(("place", "1"), {"topic": "t", "partition": 3, "offset": 9})
        table.apply([Put(queue), place])
        assert table.notes == {place.key: place.value}
        submission = table.apply([Delete(queue)])
        assert submission[:3] == ([(encode_row(queue)[0], None)], [(note_key(place.key), None)], [place])
        assert table.notes == {}
        table.apply([Put(queue), place])
        assert dict(table.apply([Delete(VhostRow("/", ""))]).dependent) == {
            encode_row(queue)[0]: None,
            note_key(place.key): None,
        }

    def test_submission_too_large_for_a_batch_is_refused(self) -> None:
        """Dependent deletions may be larger."""
        table = RowTable()
        queues = [QueueRow("/", f"q{each}", f"{each}") for each in range(100)]
        with pytest.raises(WriteFailed, match="100 rows of .* bytes do not fit into one record batch of 5000: declare"):
            table.apply(map(Put, queues), 5000)
        assert len(table) == 0
        for each in queues:
            table.apply([Put(each)], 5000)
        assert len(table.apply([Delete(VhostRow("/", ""))], 10).dependent) == 100

    def test_changes_can_be_applied_in_steps(self) -> None:
        """So ten thousand queues, about twenty thousand steps, need not block the event loop."""
        table = RowTable()
        steps = table.apply_in_steps([Put(QueueRow("/", f"q{each}", f"{each}")) for each in range(100)])
        assert sum(1 for _ in steps) == 200
        steps = table.apply_in_steps([Delete(QueueRow("/", f"q{each}", f"{each}")) for each in range(100)])
        for _ in range(50):
            next(steps)
        steps.close()  # abandoned halfway: the table is unchanged
        assert len(table) == 100
