"""Rows as records: any changes, applied to a table of a slot, leave what today's database has after the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from sqlalchemy.exc import SQLAlchemyError

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
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.schema import TABLES
from amqpd.storage.metadata.sql import SqlAlchemyTables
from amqpd.storage.metadata.store import MetadataState, WriteFailed, _state

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
)
"""One of each kind."""

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


def everything(state: MetadataState) -> list[tuple[str, Row]]:
    """Its rows with their kinds; NamedTuples of different kinds may be equal."""
    found = [(type(row).__name__, row) for part in state if isinstance(part, list) for row in part]
    return sorted(found, key=repr)


def held(table: RowTable) -> list[tuple[str, Row]]:
    """Its rows with their kinds."""
    return sorted(((type(row).__name__, row) for each in TABLES for row in table.rows(each.row)), key=repr)


def replayed(records: dict[bytes, bytes | None], tables: frozenset[str] = ALL_TABLES) -> RowTable:
    table = RowTable(tables)
    for key, value in records.items():
        table.read(key, value)
    return table


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlAlchemyTables]:
    made = SqlAlchemyTables(tmp_path_factory.mktemp("rows") / "metadata.sqlite")
    made.create({"instance_id": "i", "schema_version": "4"}, [])
    with closing(made):
        yield made


@pytest.mark.slow
@given(st.lists(st.lists(changes, min_size=1, max_size=4), max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_the_same_rows_as_in_the_database(store: SqlAlchemyTables, submissions: list[list[Change]]) -> None:
    """And the same submissions refused; the records alone, read back, are the table."""
    store.write([Delete(row) for kind in TABLES for row in store.rows()[kind.row]])
    table = RowTable(ALL_TABLES)
    records: dict[bytes, bytes | None] = {}
    for submission in [list(FIRST), *submissions]:
        try:
            store.write(submission)
        except SQLAlchemyError:
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
        assert held(table) == of_database
    assert held(replayed(records)) == of_database
    assert list(table.orphan_deletions()) == []
    state = _state("i", False, store.rows())
    assert everything(table.state(sorted(table.rows(VhostRow)), "i")) == everything(state)


@given(st.lists(st.lists(changes, min_size=1, max_size=4), max_size=12))
@settings(max_examples=examples(100), deadline=None)
def test_the_same_rows_in_two_slots(submissions: list[list[Change]]) -> None:
    """What is the cluster's in one table and what is in vhosts in another are what one table has: a vhost's slot is
    given the vhost's deletion, too.
    """
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
    assert sorted(held(cluster) + held(slot), key=repr) == held(whole)


@pytest.mark.parametrize("row", ROWS)
def test_each_kind_there_and_back(row: Row) -> None:
    key, value = encode_row(row)
    known = decode_key(key)
    assert isinstance(known, RowKey)
    assert decode_row(known, value) == row
    assert changes_from_json(json.loads(json.dumps(changes_to_json([Put(row), Delete(row)])))) == [
        Put(row),
        Delete(row),
    ]


def test_there_is_one_of_each_kind() -> None:
    assert {type(row) for row in ROWS} == {table.row for table in TABLES}


def test_other_changes_between_nodes() -> None:
    note = PutAnnotation(("wish", 3), {"node": "a"})
    given_changes = [DeleteBindings("/", ODD, "exchange"), note, PutAnnotation(("wish", 4), None)]
    assert changes_from_json(json.loads(json.dumps(changes_to_json(given_changes)))) == given_changes
    for wrong in (None, 5, [5], [["put"]], [["put", ["users", "u"], None]], [["note", ["users", "u"], {}]],
                  [["delete", ["owner", 1], {}]], [["unbind", "/", "x", "y"]], [["put", [], {}]]):  # fmt: skip
        with pytest.raises(Foreign):
            changes_from_json(wrong)
    with pytest.raises(NewerFormat):
        changes_from_json([["put", ["pets", "cat"], {}]])


class TestWhatIsNotOurs:
    def test_it_is_counted_and_passed_over(self) -> None:
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

    def test_a_barrier_is_no_stranger(self) -> None:
        table = RowTable()
        assert table.read(b"amqpd.shop.slot3", None) is None
        assert table.foreign_count == 0

    def test_what_a_later_version_wrote_is_refused(self) -> None:
        table = RowTable()
        for key, value, text in (
            (b'["pets","cat"]', b"{}", "table 'pets' is not known"),
            (b'["pets","cat"]', None, "table 'pets' is not known"),
            (b'["queues","a","b"]', b"{}", "table 'queues' has another key"),
            (b'["queues","a"]', b'{"colour":1}', "column 'colour' of table 'queues' is not known"),
        ):
            with pytest.raises(NewerFormat, match=text):
                table.read(key, value)

    def test_an_earlier_version_had_fewer_columns(self) -> None:
        table = RowTable(ALL_TABLES)
        assert table.read(b'["vhosts","/"]', b'{"id":"7"}') == Put(VhostRow("/", "7"))


class TestSubmissions:
    def test_all_or_none(self) -> None:
        table = RowTable(ALL_TABLES)
        table.apply(FIRST)
        before = held(table)
        lone = QueueRow("/", "\ud800", "9")
        for wrong in (Put(PermissionRow("nobody", "/", "", "", "")), Put(lone), Put(VhostRow("x" * 256, "9"))):
            with pytest.raises(WriteFailed, match="cannot write the metadata"):
                table.apply([Delete(VhostRow("/", "")), Put(UserRow("w", "", "")), wrong])
            assert held(table) == before

    def test_a_row_of_another_slot(self) -> None:
        with pytest.raises(WriteFailed, match="rows of users do not belong to this slot"):
            RowTable().apply([Put(UserRow("u", "", ""))])

    def test_what_goes_along_may_come_behind(self) -> None:
        """Without it the rest is found adrift, and goes then."""
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
        assert held(crashed) == held(table)

    def test_a_deletion_of_what_is_not_there_is_written(self) -> None:
        """It may be in Kafka by a submission whose answer never came."""
        row = QueueRow("/", "x", "1")
        assert RowTable().apply([Delete(row)]).requested == [(encode_row(row)[0], None)]

    def test_a_place_goes_with_its_queue(self) -> None:
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

    def test_what_is_too_large_for_a_batch(self) -> None:
        """It is refused whole; what only goes along may be larger."""
        table = RowTable()
        queues = [QueueRow("/", f"q{each}", f"{each}") for each in range(100)]
        with pytest.raises(WriteFailed, match="100 rows of .* bytes do not fit into one record batch of 5000: declare"):
            table.apply(map(Put, queues), 5000)
        assert len(table) == 0
        for each in queues:
            table.apply([Put(each)], 5000)
        assert len(table.apply([Delete(VhostRow("/", ""))], 10).dependent) == 100

    def test_it_gives_way(self) -> None:
        """Ten thousand queues are some twenty thousand steps."""
        table = RowTable()
        steps = table.apply_in_steps([Put(QueueRow("/", f"q{each}", f"{each}")) for each in range(100)])
        assert sum(1 for _ in steps) == 200
        steps = table.apply_in_steps([Delete(QueueRow("/", f"q{each}", f"{each}")) for each in range(100)])
        for _ in range(50):
            next(steps)
        steps.close()  # given up in the middle: as if it had never begun
        assert len(table) == 100
