"""The metadata: rows survive, groups commit in order, only the culprit fails, and strangers' databases are refused."""

from __future__ import annotations

import os
import queue
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpd.storage.metadata.core import CoreStore
from amqpd.storage.metadata.metadata import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    GlobalParameterRow,
    InstanceMismatch,
    Metadata,
    MetadataClosed,
    MetadataError,
    MetadataState,
    NewerSchema,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    Put,
    QueueRow,
    Row,
    TopicPermissionRow,
    UserRow,
    VhostRow,
    WriteFailed,
    random_id,
)
from amqpd.storage.metadata.schema import SCHEMA_VERSION, TABLES
from amqpd.storage.metadata.sqlite import SqliteStart

VHOST = VhostRow("/", "0" * 32)
OTHER = VhostRow("shop", "1" * 32, "the 'shop'; DROP TABLE vhosts", ("a", "b,c"), "quorum")
USER = UserRow("guest", "$argon2id$...", "argon2id", ("administrator", "ünï"))
ODD = "a'\"`;--\x00%s{}é☃\U0001f407"

EVERY_ROW: tuple[Row, ...] = (
    VHOST,
    OTHER,
    USER,
    PermissionRow("guest", "/", "^a.*", "", ".*"),
    TopicPermissionRow("guest", "shop", "amq.topic", "^{username}", ".*"),
    ExchangeRow("/", ODD, "topic", True, False, True, b"\x00\x00\x00\x03\x01x\xff"),
    QueueRow("/", ODD, "2" * 32, True, True, False, bytes(range(256))),
    BindingRow("/", "amq.topic", ODD, "queue", "not utf-8: \udcff\udc80", b"\x00"),
    BindingRow("/", "amq.topic", ODD, "queue", "", b""),
    BindingRow("/", "amq.topic", ODD, "exchange", "", b""),
    PolicyRow("/", "p", "^q", "queues", '{"max-length":1}', 7, True),
    PolicyRow("/", "p", "^q", "all", "{}", -1),
    ParameterRow("shop", "shovel", "s", "{}"),
    GlobalParameterRow("cluster_name", '"rabbit"'),
)


class Answers:
    """`done` callbacks that remember what came, and in which order."""

    def __init__(self) -> None:
        self._arrived: queue.Queue[tuple[object, BaseException | None]] = queue.Queue()

    def done(self, name: object) -> Callable[[BaseException | None], None]:
        return lambda error: self._arrived.put((name, error))

    def take(self, count: int) -> list[tuple[object, BaseException | None]]:
        return [self._arrived.get(timeout=20) for _ in range(count)]


def post(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


@contextmanager
def opened(
    data_dir: Path, url: str = "", seed: Sequence[Row] = (VHOST, USER)
) -> Iterator[tuple[Metadata, MetadataState]]:
    metadata = Metadata(url, data_dir, post)
    state = metadata.open(lambda: seed)
    try:
        yield metadata, state
    finally:
        metadata.close()


def write(metadata: Metadata, *changes: Change) -> BaseException | None:
    answers = Answers()
    metadata.submit(changes, answers.done(None))
    return answers.take(1)[0][1]


def all_rows(state: MetadataState) -> set[tuple[str, Row]]:
    """Rows with their type, since NamedTuples of different types with the same values are equal."""
    lists = [value for value in state if isinstance(value, list)]
    return {(type(row).__name__, row) for rows in lists for row in rows}


def named(rows: Sequence[Row]) -> set[tuple[str, Row]]:
    return {(type(row).__name__, row) for row in rows}


@pytest.fixture(params=["own file", "url"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Both roads: the standard library at start, or SQLAlchemy for everything."""
    return "" if request.param == "own file" else f"sqlite:///{tmp_path}/elsewhere.sqlite"


def test_every_row_survives(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url, ()) as (metadata, state):
        assert state.fresh
        assert all_rows(state) == set()
        assert write(metadata, *(Put(row) for row in EVERY_ROW)) is None
    with opened(tmp_path, url) as (_, again):
        assert not again.fresh
        assert again.instance_id == state.instance_id
        assert all_rows(again) == named(EVERY_ROW)


def test_seed_is_in_a_fresh_database_only(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url, EVERY_ROW) as (_, state):
        assert all_rows(state) == named(EVERY_ROW)
    with opened(tmp_path, url, (VhostRow("never", random_id()),)) as (_, state):
        assert all_rows(state) == named(EVERY_ROW)


def test_a_seed_that_fails_leaves_nothing_behind(tmp_path: Path, url: str) -> None:
    with pytest.raises(MetadataError), opened(tmp_path, url, (VHOST, PermissionRow("nobody", "/", "", "", ""))):
        pass
    with opened(tmp_path, url) as (_, state):
        assert state.fresh
        assert all_rows(state) == named((VHOST, USER))


def test_files_are_private(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "data"
    with opened(data_dir) as (metadata, state):
        assert write(metadata, Put(OTHER)) is None
        assert (data_dir / "metadata.sqlite-wal").exists()
        assert data_dir.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in data_dir.iterdir()} == {0o600}
        assert (data_dir / "instance-id").read_text() == f"{state.instance_id}\n"


@pytest.mark.parametrize("name", ["a?mode=memory", "a#b", "a%20b", "file:a", "ünï 'q\""])
def test_any_directory_name(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name
    with opened(data_dir) as (metadata, _):
        assert write(metadata, Put(OTHER)) is None
    with opened(data_dir) as (_, state):
        assert state.vhosts == [VHOST, OTHER]
    assert (data_dir / "metadata.sqlite").stat().st_size > 0
    assert list(tmp_path.iterdir()) == [data_dir]


def test_pragmas(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    store = CoreStore(tmp_path / "metadata.sqlite")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "trusted_schema": 0}
    with store._engine.connect() as connection:
        got = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in wanted}
    store.close()
    assert got == wanted


def described(path: Path) -> dict[str, object]:
    """What SQLite itself says of tables, keys, references and indexes."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: {
                "columns": connection.execute(f"PRAGMA table_info('{name}')").fetchall(),
                "references": {row[2:] for row in connection.execute(f"PRAGMA foreign_key_list('{name}')")},
                "indexes": {
                    (row[1], tuple(connection.execute(f"PRAGMA index_info('{row[1]}')").fetchall()))
                    for row in connection.execute(f"PRAGMA index_list('{name}')")
                },
            }
            for name in names
        }


def test_both_roads_make_the_same_schema(tmp_path: Path) -> None:
    SqliteStart(tmp_path / "a.sqlite").create({"instance_id": "x"}, ())
    store = CoreStore(tmp_path / "b.sqlite")
    store.create({"instance_id": "x"}, ())
    store.close()
    ours = described(tmp_path / "a.sqlite")
    assert ours == described(tmp_path / "b.sqlite")
    assert set(ours) == {table.name for table in TABLES} | {"amqpd_metadata"}


def test_columns_are_the_fields_of_the_rows() -> None:
    for table in TABLES:
        columns = [name for name, _ in table.columns]
        assert columns == (["digest"] if table.has_digest else []) + list(table.row._fields)


def test_put_replaces_and_delete_looks_at_the_key_only(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url) as (metadata, _):
        changed = USER._replace(tags=(), password_hash="other")
        assert write(metadata, Put(changed), Put(OTHER), Put(OTHER._replace(description="again"))) is None
        assert write(metadata, Delete(VhostRow("shop", "")), Delete(VhostRow("absent", ""))) is None
    with opened(tmp_path, url) as (_, state):
        assert all_rows(state) == named((VHOST, changed))


def test_a_dialect_without_upsert(tmp_path: Path) -> None:
    store = CoreStore(tmp_path / "m.sqlite")
    store._puts = {table.name: None for table in TABLES}
    store.create({"instance_id": "x"}, EVERY_ROW)
    store.write([Put(USER._replace(tags=())), Put(EVERY_ROW[7]), Put(UserRow("new", "", ""))])
    rows = store.rows()
    store.close()
    assert rows[UserRow] == [USER._replace(tags=()), UserRow("new", "", "")]
    assert set(rows[BindingRow]) == set(EVERY_ROW[7:10])


def test_a_vhost_takes_everything_in_it_along(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url, EVERY_ROW) as (metadata, _):
        assert write(metadata, Delete(VHOST)) is None
    with opened(tmp_path, url) as (_, state):
        kept = [row for row in EVERY_ROW if row is not VHOST and getattr(row, "vhost", "shop") == "shop"]
        assert all_rows(state) == named(kept)


def test_a_user_takes_the_permissions_along(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url, EVERY_ROW) as (metadata, _):
        assert write(metadata, Delete(USER)) is None
    with opened(tmp_path, url) as (_, state):
        gone = UserRow | PermissionRow | TopicPermissionRow
        assert all_rows(state) == named([row for row in EVERY_ROW if not isinstance(row, gone)])


def test_delete_bindings(tmp_path: Path) -> None:
    to_queue = BindingRow("/", "e", "x", "queue", "k")
    to_exchange = BindingRow("/", "e", "x", "exchange", "k")
    from_exchange = BindingRow("/", "x", "q", "queue", "k")
    elsewhere = BindingRow("shop", "x", "x", "queue", "k")
    every = (VHOST, OTHER, to_queue, to_exchange, from_exchange, elsewhere)
    with opened(tmp_path, "", every) as (metadata, _):
        assert write(metadata, DeleteBindings("/", "x", "queue")) is None
    with opened(tmp_path) as (metadata, state):
        assert set(state.bindings) == {to_exchange, from_exchange, elsewhere}
        assert write(metadata, DeleteBindings("/", "x", "exchange")) is None
    with opened(tmp_path) as (_, state):
        assert state.bindings == [elsewhere]


def test_tombstones_stand_apart_and_leave_the_name_free(tmp_path: Path, url: str) -> None:
    old, new = QueueRow("/", "q", random_id(), state="deleting"), QueueRow("/", "q", random_id())
    leaving = OTHER._replace(state="deleting")
    with opened(tmp_path, url) as (metadata, _):
        assert write(metadata, Put(old._replace(state="live"))) is None
        assert write(metadata, Put(old), Put(new), Put(leaving)) is None
    with opened(tmp_path, url) as (metadata, state):
        assert (state.queues, state.deleting_queues) == ([new], [old])
        assert (state.vhosts, state.deleting_vhosts) == ([VHOST], [leaving])
        assert write(metadata, Delete(old)) is None
    with opened(tmp_path, url) as (_, state):
        assert (state.queues, state.deleting_queues) == ([new], [])


def test_a_vhost_that_is_being_deleted_takes_everything_out_of_the_lists(tmp_path: Path) -> None:
    leaving = VHOST._replace(state="deleting")
    with opened(tmp_path, "", EVERY_ROW) as (metadata, _):
        assert write(metadata, Put(QueueRow("/", "q", random_id(), state="deleting")), Put(leaving)) is None
    with opened(tmp_path) as (_, state):
        kept = [row for row in EVERY_ROW if row is not VHOST and getattr(row, "vhost", "shop") == "shop"]
        assert all_rows(state) == named([*kept, leaving])
        assert state.deleting_vhosts == [leaving]


def test_only_the_culprit_fails_and_answers_keep_their_order(tmp_path: Path, url: str) -> None:
    answers = Answers()
    with opened(tmp_path, url) as (metadata, _):
        with metadata._changed:  # everything gathers into one group
            for number in range(20):
                vhost = "nowhere" if number == 7 else "/"
                metadata.submit([Put(QueueRow(vhost, f"q{number}", random_id()))], answers.done(number))
        arrived = answers.take(20)
    assert [name for name, _ in arrived] == list(range(20))
    assert [name for name, error in arrived if error is not None] == [7]
    assert isinstance(arrived[7][1], WriteFailed)
    with opened(tmp_path, url) as (_, state):
        assert sorted(row.name for row in state.queues) == sorted(f"q{number}" for number in range(20) if number != 7)


def test_a_submission_is_all_or_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as (metadata, _):
        error = write(metadata, Put(OTHER), Delete(USER), Put(PermissionRow("nobody", "/", "", "", "")))
        assert isinstance(error, WriteFailed)
        assert "FOREIGN KEY" in str(error)
    with opened(tmp_path) as (_, state):
        assert all_rows(state) == named((VHOST, USER))


@pytest.mark.parametrize("row", [VhostRow("\udcff", "x"), VhostRow("x" * 256, "x"), UserRow(None, "", "")])
def test_what_cannot_be_stored_is_refused(tmp_path: Path, row: Row) -> None:
    with opened(tmp_path) as (metadata, _):
        assert isinstance(write(metadata, Put(row)), WriteFailed)
        assert write(metadata, Put(OTHER)) is None


def test_more_than_one_group(tmp_path: Path) -> None:
    answers = Answers()
    with opened(tmp_path) as (metadata, _):
        with metadata._changed:
            for number in range(2500):
                metadata.submit([Put(QueueRow("/", f"q{number}", random_id()))], answers.done(number))
        assert answers.take(2500) == [(number, None) for number in range(2500)]
    with opened(tmp_path) as (_, state):
        assert len(state.queues) == 2500


def test_a_failing_callback_does_not_cost_the_others_their_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(error: BaseException | None) -> None:
        raise ZeroDivisionError

    answers = Answers()
    with opened(tmp_path) as (metadata, _):
        with metadata._changed:
            metadata.submit([Put(OTHER)], fails)
            metadata.submit([Put(OTHER)], answers.done("second"))
        assert answers.take(1) == [("second", None)]
    assert "a done callback failed" in caplog.text


def test_close_writes_what_waits(tmp_path: Path) -> None:
    answers = Answers()
    metadata = Metadata("", tmp_path, post)
    metadata.open(lambda: (VHOST,))
    metadata.submit([Put(OTHER)], answers.done("last"))
    metadata.close()
    assert answers.take(1) == [("last", None)]
    with pytest.raises(MetadataClosed):
        metadata.submit([Put(OTHER)], answers.done("late"))
    assert not [thread for thread in threading.enumerate() if thread.name == "amqpd-metadata"]
    with opened(tmp_path) as (_, state):
        assert state.vhosts == [VHOST, OTHER]


def test_a_closed_loop_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def closed(*arguments: object) -> None:
        raise RuntimeError("Event loop is closed")

    metadata = Metadata("", tmp_path, closed)
    metadata.open(lambda: (VHOST,))
    metadata.submit([Put(OTHER)], lambda error: None)
    metadata.close()
    assert "after the end of the loop" in caplog.text
    with opened(tmp_path) as (_, state):
        assert state.vhosts == [VHOST, OTHER]


def test_warm_then_write(tmp_path: Path) -> None:
    with opened(tmp_path) as (metadata, _):
        metadata.warm()
        assert write(metadata, Put(OTHER)) is None


def test_submit_before_open(tmp_path: Path) -> None:
    with pytest.raises(MetadataClosed):
        Metadata("", tmp_path, post).submit([], lambda error: None)


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The compiled package, when that is what is tested, is found as this process found it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


def test_a_killed_process_keeps_what_was_answered(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from amqpd.storage.metadata.metadata import Metadata, Put, VhostRow
        count = 0
        def done(error):
            global count
            count += 1
            if count == 50:
                os.write(1, b"50 answered")
                os.kill(os.getpid(), signal.SIGKILL)
        metadata = Metadata("", Path(sys.argv[1]), lambda function, *arguments: function(*arguments))
        metadata.open()
        for number in range(100):
            metadata.submit([Put(VhostRow(f"v{number:03}", "id"))], done)
        metadata.close()
    """
    killed = run_python(script, str(tmp_path))
    assert (killed.returncode, killed.stdout) == (-9, "50 answered"), killed.stderr
    with opened(tmp_path) as (metadata, state):
        names = [row.name for row in state.vhosts]
        assert names[:50] == [f"v{number:03}" for number in range(50)]
        assert write(metadata, Put(VHOST)) is None


@pytest.mark.parametrize("with_shm", [True, False])
def test_a_torn_wal_leaves_a_prefix_of_what_was_submitted(tmp_path: Path, with_shm: bool) -> None:
    """What a power cut may leave of an unsynced tail: every length of the log, in steps that cut frames in two."""
    count = 12
    data_dir = tmp_path / "data"
    with opened(data_dir, "", ()) as (metadata, _):
        for number in range(count):
            assert (
                write(metadata, Put(VhostRow(f"v{number:02}", "x" * 250)), Put(UserRow(f"u{number:02}", "", "")))
                is None
            )
        files = {path.name: path.read_bytes() for path in data_dir.iterdir()}
    wal = files["metadata.sqlite-wal"]
    seen = set()
    for cut, size in enumerate([*range(0, len(wal), 1777), len(wal)]):
        copy = tmp_path / f"cut{cut}"
        copy.mkdir()
        for name, content in files.items():
            if name != "metadata.sqlite-shm" or with_shm:
                (copy / name).write_bytes(content[:size] if name == "metadata.sqlite-wal" else content)
        with opened(copy, "", (VHOST,)) as (metadata, state):
            kept = len(state.vhosts)
            assert [row.name for row in state.vhosts] == [f"v{number:02}" for number in range(kept)]
            assert [row.name for row in state.users] == [f"u{number:02}" for number in range(kept)]
            assert not state.fresh
            if cut % 8 == 0:
                assert write(metadata, Put(OTHER)) is None
        seen.add(kept)
    assert seen >= set(range(1, count + 1))  # else the cuts would not be between the commits


def test_the_start_of_our_own_file_does_not_import_sqlalchemy(tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from amqpd.storage.metadata.metadata import Metadata
        metadata = Metadata("", Path(sys.argv[1]), print)
        metadata.open()
        print("sqlalchemy" in sys.modules, "asyncio" in sys.modules)
        metadata.close()
    """
    for _ in range(2):  # a fresh file, then one that exists
        done = run_python(script, str(tmp_path))
        assert done.stdout == "False False\n", done.stderr


# --- whose database is it ---------------------------------------------------------------------------------------------


def set_header(path: Path, name: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE amqpd_metadata SET value = ? WHERE name = ?", (value, name))


def refused(data_dir: Path, error: type[MetadataError], url: str = "") -> str:
    """Opens, expects `error`, and that no file of the data directory changed. Returns the error's text."""
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    with pytest.raises(error) as caught, opened(data_dir, url):
        pass
    assert {path: path.read_bytes() for path in before} == before
    return str(caught.value)


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    set_header(tmp_path / "metadata.sqlite", "schema_version", str(SCHEMA_VERSION + 1))
    assert f"schema version {SCHEMA_VERSION + 1}" in refused(tmp_path, NewerSchema)


@pytest.mark.parametrize("version", ["0", "", "-1", "one"])
def test_an_unknown_schema_is_refused(tmp_path: Path, version: str) -> None:
    with opened(tmp_path):
        pass
    set_header(tmp_path / "metadata.sqlite", "schema_version", version)
    assert "schema version" in refused(tmp_path, MetadataError)


def test_another_instance_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as (_, a), opened(tmp_path / "b") as (_, b):
        pass
    (tmp_path / "a" / "metadata.sqlite").replace(tmp_path / "b" / "metadata.sqlite")
    text = refused(tmp_path / "b", InstanceMismatch)
    assert a.instance_id in text
    assert b.instance_id in text


def test_two_directories_cannot_share_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.sqlite"
    with opened(tmp_path / "a", url) as (_, state):
        pass
    (tmp_path / "b").mkdir()
    assert state.instance_id in refused(tmp_path / "b", InstanceMismatch, url)
    with opened(tmp_path / "a", url) as (_, again):
        assert not again.fresh


def test_queues_without_their_metadata_are_not_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / "vhosts" / VHOST.id / "queues" / random_id()).mkdir(parents=True)
    (tmp_path / "metadata.sqlite").unlink()
    for path in tmp_path.glob("metadata.sqlite-*"):
        path.unlink()
    assert "holds queues" in refused(tmp_path, InstanceMismatch)
    assert not (tmp_path / "metadata.sqlite").exists()


@pytest.mark.parametrize("left", ["instance-id only", "empty file", "pragma only"])
def test_a_first_start_that_was_killed_goes_on(tmp_path: Path, left: str) -> None:
    instance = random_id()
    (tmp_path / "instance-id").write_text(f"{instance}\n")
    if left != "instance-id only":
        (tmp_path / "metadata.sqlite").touch(0o600)
    if left == "pragma only":
        with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    with opened(tmp_path) as (metadata, state):
        assert state.fresh
        assert state.instance_id == instance
        assert state.vhosts == [VHOST]
        assert write(metadata, Put(OTHER)) is None


@pytest.mark.parametrize("content", [b"", b"abc\n", b"\xff" * 32, b"G" * 32])
def test_a_damaged_instance_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / "instance-id").write_bytes(content)
    assert "instance id" in refused(tmp_path, InstanceMismatch)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 1000)
    assert "metadata.sqlite" in refused(tmp_path, MetadataError)


def test_a_row_nobody_wrote_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, "", EVERY_ROW):
        pass
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection, connection:
        connection.execute("UPDATE users SET tags = '{}'")
    assert "users" in refused(tmp_path, MetadataError)


@pytest.mark.parametrize("url", ["nonsense", "nosuchdb://u:sesame@127.0.0.1:1/x", "sqlite:////dev/null/x?a=sesame"])
def test_a_bad_url_is_a_clear_error_without_its_password(tmp_path: Path, url: str) -> None:
    assert "sesame" not in refused(tmp_path, MetadataError, url)


# --- against a naive twin ---------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
keys = st.one_of(names, st.binary(max_size=4).map(lambda key: key.decode("utf-8", "surrogateescape")))
rows = st.one_of(
    st.builds(QueueRow, st.just("/"), names, names, st.booleans(), st.booleans(), st.booleans(), st.binary(max_size=3)),
    st.builds(ExchangeRow, st.just("/"), names, names, arguments=st.binary(max_size=3)),
    st.builds(
        BindingRow, st.just("/"), names, names, st.sampled_from(["queue", "exchange"]), keys, st.binary(max_size=3)
    ),
    st.builds(UserRow, names, names, names, st.lists(names, max_size=2).map(tuple)),
    st.builds(GlobalParameterRow, names, names),
)
changes = st.lists(st.one_of(st.builds(Put, rows), st.builds(Delete, rows)), max_size=12)


def key_of(row: Row) -> tuple[object, ...]:
    match row:
        case QueueRow():
            return ("q", row.id)
        case ExchangeRow():
            return ("e", row.vhost, row.name)
        case UserRow():
            return ("u", row.name)
        case GlobalParameterRow():
            return ("g", row.name)
        case _:
            return ("b", *row)


@settings(max_examples=40, deadline=None)
@given(submissions=st.lists(changes, max_size=6), split=st.integers(0, 6))
def test_like_a_dict(tmp_path_factory: pytest.TempPathFactory, submissions: list[list[Change]], split: int) -> None:
    data_dir = tmp_path_factory.mktemp("twin")
    twin: dict[tuple[object, ...], Row] = {}
    answers = Answers()
    for part in (submissions[:split], submissions[split:]):
        with opened(data_dir, "", (VHOST,)) as (metadata, _):
            with metadata._changed:
                for submission in part:
                    metadata.submit(submission, answers.done(None))
            assert all(error is None for _, error in answers.take(len(part)))
        for change in (change for submission in part for change in submission):
            if isinstance(change, Put):
                twin[key_of(change.row)] = change.row
            elif isinstance(change, Delete):
                twin.pop(key_of(change.row), None)
    with opened(data_dir) as (_, state):
        assert all_rows(state) == named([VHOST, *twin.values()])
