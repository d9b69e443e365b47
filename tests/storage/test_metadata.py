"""The metadata store: rows survive, groups commit in order, and only the faulty submission fails."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from pathlib import Path

import pytest
from metadata_rows import EVERY_ROW, OTHER, USER, VHOST, CommitResults, all_rows, open_metadata, post, typed_rows, write

from amqpd.storage.metadata import sqlite
from amqpd.storage.metadata.rows import (
    BindingRow,
    Delete,
    DeleteBindings,
    PermissionRow,
    Put,
    QueueRow,
    Row,
    ScramRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.schema import TABLES
from amqpd.storage.metadata.sql import SqlAlchemyTables
from amqpd.storage.metadata.sqlite import DELETE_BY_DESTINATION, DELETE_BY_SOURCE, SqliteTables
from amqpd.storage.metadata.store import MetadataClosed, MetadataError, SqlMetadataStore, WriteFailed, random_id

ROWS_OUTSIDE_VHOST = [
    row
    for row in EVERY_ROW
    if row is not VHOST and getattr(row, "vhost", "shop") == "shop" and not isinstance(row, StoredOffsetRow | SeenRow)
]
"""Rows that survive the deletion of vhost `/`: all except that vhost and the rows that belong to it."""


@pytest.fixture(params=["own file", "url"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Both code paths: the standard library's sqlite3, or SQLAlchemy."""
    return "" if request.param == "own file" else f"sqlite:///{tmp_path}/elsewhere.sqlite"


def test_every_row_survives(tmp_path: Path, url: str) -> None:
    with open_metadata(tmp_path, url, ()) as (metadata, state):
        assert all_rows(state) == set()
        assert write(metadata, *(Put(row) for row in EVERY_ROW)) is None
    with open_metadata(tmp_path, url) as (_, reopened):
        assert reopened.instance_id == state.instance_id
        assert all_rows(reopened) == typed_rows(EVERY_ROW)


def test_seed_is_written_to_a_fresh_database_only(tmp_path: Path, url: str) -> None:
    with open_metadata(tmp_path, url, EVERY_ROW) as (_, state):
        assert all_rows(state) == typed_rows(EVERY_ROW)
    with open_metadata(tmp_path, url, (VhostRow("never", random_id()),)) as (_, state):
        assert all_rows(state) == typed_rows(EVERY_ROW)


def test_failed_seed_leaves_a_fresh_database(tmp_path: Path, url: str) -> None:
    with pytest.raises(MetadataError), open_metadata(tmp_path, url, (VHOST, PermissionRow("nobody", "/", "", "", ""))):
        pass
    with open_metadata(tmp_path, url) as (_, state):
        assert all_rows(state) == typed_rows((VHOST, USER))


def test_files_are_private(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "data"
    with open_metadata(data_dir) as (metadata, state):
        assert write(metadata, Put(OTHER)) is None
        assert (data_dir / "metadata.sqlite-wal").exists()
        assert data_dir.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in data_dir.iterdir()} == {0o600}
        assert (data_dir / "instance-id").read_text() == f"{state.instance_id}\n"


@pytest.mark.parametrize("name", ["a?mode=memory", "a#b", "a%20b", "file:a", "ünï 'q\""])
def test_data_directory_name_with_special_characters(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name
    with open_metadata(data_dir) as (metadata, _):
        assert write(metadata, Put(OTHER)) is None
    with open_metadata(data_dir) as (_, state):
        assert state.vhosts == [VHOST, OTHER]
    assert (data_dir / "metadata.sqlite").stat().st_size > 0
    assert list(tmp_path.iterdir()) == [data_dir]


def test_sqlite_pragmas(tmp_path: Path) -> None:
    with open_metadata(tmp_path):
        pass
    store = SqliteTables(tmp_path / "metadata.sqlite")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "trusted_schema": 0}
    connection = store._connected_writer()
    got = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted}
    store.close()
    assert got == wanted


def sqlite_schema(path: Path) -> dict[str, object]:
    """SQLite's own description of tables, keys, references and indexes."""
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


def test_both_code_paths_create_the_same_schema(tmp_path: Path) -> None:
    SqliteTables(tmp_path / "a.sqlite").create({"instance_id": "x"}, ())
    store = SqlAlchemyTables(f"sqlite:///{tmp_path}/b.sqlite")
    store.create({"instance_id": "x"}, ())
    store.close()
    ours = sqlite_schema(tmp_path / "a.sqlite")
    assert ours == sqlite_schema(tmp_path / "b.sqlite")
    assert set(ours) == {table.name for table in TABLES} | {"amqpd_metadata"}


@pytest.mark.parametrize("statement", [DELETE_BY_DESTINATION, DELETE_BY_SOURCE])
def test_deleting_bindings_does_not_search_all_bindings_of_the_vhost(tmp_path: Path, statement: str) -> None:
    store = SqliteTables(tmp_path / "m.sqlite")
    store.create({"instance_id": "x"}, ())
    store.close()
    with closing(sqlite3.connect(tmp_path / "m.sqlite")) as connection:
        values = {"vhost": "/", "name": "x", "kind": "exchange"}
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    steps = [step for *_, step in plan]
    assert not [step for step in steps if "SCAN" in step or step.endswith("(vhost=?)")], steps


def test_columns_are_the_fields_of_the_rows() -> None:
    for table in TABLES:
        columns = [name for name, _ in table.columns]
        assert columns == (["digest"] if table.has_digest else []) + list(table.row._fields)


def test_put_replaces_and_delete_compares_only_the_key(tmp_path: Path, url: str) -> None:
    with open_metadata(tmp_path, url) as (metadata, _):
        changed = USER._replace(tags=(), password_hash="other")
        assert write(metadata, Put(changed), Put(OTHER), Put(OTHER._replace(description="again"))) is None
        assert write(metadata, Delete(VhostRow("shop", "")), Delete(VhostRow("absent", ""))) is None
    with open_metadata(tmp_path, url) as (_, state):
        assert all_rows(state) == typed_rows((VHOST, changed))


def test_dialect_without_upsert(tmp_path: Path) -> None:
    store = SqlAlchemyTables(f"sqlite:///{tmp_path}/m.sqlite")
    store._puts = {table.name: None for table in TABLES}
    store.create({"instance_id": "x"}, EVERY_ROW)
    store.write([Put(USER._replace(tags=())), Put(EVERY_ROW[7]), Put(UserRow("new", "", ""))])
    rows = store.rows()
    store.close()
    assert rows[UserRow] == [USER._replace(tags=()), UserRow("new", "", "")]
    assert set(rows[BindingRow]) == set(EVERY_ROW[7:10])


def test_deleting_a_vhost_deletes_its_rows(tmp_path: Path, url: str) -> None:
    with open_metadata(tmp_path, url, EVERY_ROW) as (metadata, _):
        assert write(metadata, Delete(VHOST)) is None
    with open_metadata(tmp_path, url) as (_, state):
        assert all_rows(state) == typed_rows(ROWS_OUTSIDE_VHOST)


def test_deleting_a_user_deletes_its_permissions(tmp_path: Path, url: str) -> None:
    with open_metadata(tmp_path, url, EVERY_ROW) as (metadata, _):
        assert write(metadata, Delete(USER)) is None
    with open_metadata(tmp_path, url) as (_, state):
        deleted_types = UserRow | PermissionRow | TopicPermissionRow | UserLimitsRow | ScramRow
        assert all_rows(state) == typed_rows([row for row in EVERY_ROW if not isinstance(row, deleted_types)])


def test_deleting_a_queue_deletes_its_stored_offsets(tmp_path: Path, url: str) -> None:
    deleted, kept = QueueRow("/", "a", "a" * 32), QueueRow("/", "b", "b" * 32)
    offsets = [StoredOffsetRow(queue.id, "reader", 7, 1) for queue in (deleted, kept)]
    with open_metadata(tmp_path, url, (VHOST, deleted, kept, *offsets)) as (metadata, _):
        assert write(metadata, Put(deleted._replace(state="deleting"))) is None
    with open_metadata(tmp_path, url) as (metadata, state):
        assert state.stored_offsets == offsets[1:], "already gone while the queue is being deleted"
        assert write(metadata, Delete(deleted)) is None
        assert isinstance(write(metadata, Put(offsets[0])), WriteFailed), "there is no such queue"
    with open_metadata(tmp_path, url) as (_, state):
        assert state.stored_offsets == offsets[1:]


def test_delete_bindings(tmp_path: Path) -> None:
    to_queue = BindingRow("/", "e", "x", "queue", "k")
    to_exchange = BindingRow("/", "e", "x", "exchange", "k")
    from_exchange = BindingRow("/", "x", "q", "queue", "k")
    in_other_vhost = BindingRow("shop", "x", "x", "queue", "k")
    every = (VHOST, OTHER, to_queue, to_exchange, from_exchange, in_other_vhost)
    with open_metadata(tmp_path, "", every) as (metadata, _):
        assert write(metadata, DeleteBindings("/", "x", "queue")) is None
    with open_metadata(tmp_path) as (metadata, state):
        assert set(state.bindings) == {to_exchange, from_exchange, in_other_vhost}
        assert write(metadata, DeleteBindings("/", "x", "exchange")) is None
    with open_metadata(tmp_path) as (_, state):
        assert state.bindings == [in_other_vhost]


def test_deleting_rows_are_listed_apart_and_leave_the_name_free(tmp_path: Path, url: str) -> None:
    old, new = QueueRow("/", "q", random_id(), state="deleting"), QueueRow("/", "q", random_id())
    deleting = OTHER._replace(state="deleting")
    with open_metadata(tmp_path, url) as (metadata, _):
        assert write(metadata, Put(old._replace(state="live"))) is None
        assert write(metadata, Put(old), Put(new), Put(deleting)) is None
    with open_metadata(tmp_path, url) as (metadata, state):
        assert (state.queues, state.deleting_queues) == ([new], [old])
        assert (state.vhosts, state.deleting_vhosts) == ([VHOST], [deleting])
        assert write(metadata, Delete(old)) is None
    with open_metadata(tmp_path, url) as (_, state):
        assert (state.queues, state.deleting_queues) == ([new], [])


def test_rows_of_a_deleting_vhost_are_not_listed(tmp_path: Path) -> None:
    deleting = VHOST._replace(state="deleting")
    with open_metadata(tmp_path, "", EVERY_ROW) as (metadata, _):
        assert write(metadata, Put(QueueRow("/", "q", random_id(), state="deleting")), Put(deleting)) is None
    with open_metadata(tmp_path) as (_, state):
        assert all_rows(state) == typed_rows([*ROWS_OUTSIDE_VHOST, deleting])
        assert state.deleting_vhosts == [deleting]


def test_only_the_faulty_submission_fails_and_order_is_kept(tmp_path: Path, url: str) -> None:
    results = CommitResults()
    with open_metadata(tmp_path, url) as (metadata, _):
        with metadata._changed:  # all submissions gather into one group
            for number in range(20):
                vhost = "nowhere" if number == 7 else "/"
                metadata.submit([Put(QueueRow(vhost, f"q{number}", random_id()))], results.done(number))
        arrived = results.take(20)
    assert [name for name, _ in arrived] == list(range(20))
    assert [name for name, error in arrived if error is not None] == [7]
    assert isinstance(arrived[7][1], WriteFailed)
    with open_metadata(tmp_path, url) as (_, state):
        assert sorted(row.name for row in state.queues) == sorted(f"q{number}" for number in range(20) if number != 7)


def test_submission_is_all_or_nothing(tmp_path: Path) -> None:
    with open_metadata(tmp_path) as (metadata, _):
        error = write(metadata, Put(OTHER), Delete(USER), Put(PermissionRow("nobody", "/", "", "", "")))
        assert isinstance(error, WriteFailed)
        assert "FOREIGN KEY" in str(error)
    with open_metadata(tmp_path) as (_, state):
        assert all_rows(state) == typed_rows((VHOST, USER))


def test_refused_submission_is_rolled_back_and_keeps_the_lock(tmp_path: Path) -> None:
    """A closed connection rolls back as well, but until the next one another process could open the file."""
    store = SqliteTables(tmp_path / "m.sqlite")
    store.create({"instance_id": "x"}, (VHOST, USER))
    with pytest.raises(sqlite3.IntegrityError):
        store.write([Put(OTHER), Put(PermissionRow("nobody", "/", "", "", ""))])
    assert store.rows()[VhostRow] == [VHOST], "a half-written transaction is visible"
    with (
        closing(sqlite3.connect(tmp_path / "m.sqlite", timeout=0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("SELECT * FROM vhosts")
    store.write([Put(VhostRow("later", "x"))])
    store.close()
    assert {row.name for row in store.rows()[VhostRow]} == {"/", "later"}


def test_write_after_a_rollback_that_failed(tmp_path: Path) -> None:
    def deny_rollback(action: int, operation: str | None, *_: str | None) -> int:
        is_rollback = action == sqlite3.SQLITE_TRANSACTION and operation == "ROLLBACK"
        return sqlite3.SQLITE_DENY if is_rollback else sqlite3.SQLITE_OK

    store = SqliteTables(tmp_path / "m.sqlite")
    store.create({"instance_id": "x"}, (VHOST, USER))
    store._connected_writer().set_authorizer(deny_rollback)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        store.write([Put(OTHER), Put(PermissionRow("nobody", "/", "", "", ""))])
    store.write([Put(VhostRow("later", "x"))])
    store.close()
    assert {row.name for row in store.rows()[VhostRow]} == {"/", "later"}


@pytest.mark.parametrize("count", [1, 20])
def test_group_waits_twice_at_most_for_a_locked_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """With one wait of 5 s per submission, a thousand declarations would stop the metadata for 83 minutes."""
    waits: list[int] = []
    opened = SqliteTables._open

    def open_counted(self: SqliteTables) -> sqlite3.Connection:
        waits.append(1)
        return opened(self)

    results = CommitResults()
    monkeypatch.setattr(sqlite, "PRAGMAS", ("PRAGMA busy_timeout=0", *sqlite.PRAGMAS[:-1]))
    with open_metadata(tmp_path) as (metadata, _):
        with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as reader:
            reader.execute("SELECT * FROM vhosts").fetchall()  # in WAL mode the lock lasts as long as the connection
            monkeypatch.setattr(SqliteTables, "_open", open_counted)
            with metadata._changed:
                for number in range(count):
                    metadata.submit([Put(VhostRow(f"v{number}", "x"))], results.done(number))
            arrived = results.take(count)
        assert [name for name, error in arrived if isinstance(error, WriteFailed)] == list(range(count))
        assert len(waits) <= 2
        assert write(metadata, Put(OTHER)) is None


@pytest.mark.parametrize("row", [VhostRow("\udcff", "x"), VhostRow("x" * 256, "x"), UserRow(None, "", "")])
def test_row_that_cannot_be_stored_is_refused(tmp_path: Path, row: Row) -> None:
    with open_metadata(tmp_path) as (metadata, _):
        assert isinstance(write(metadata, Put(row)), WriteFailed)
        assert write(metadata, Put(OTHER)) is None


def test_submissions_of_more_than_one_group(tmp_path: Path) -> None:
    results = CommitResults()
    with open_metadata(tmp_path) as (metadata, _):
        with metadata._changed:
            for number in range(2500):
                metadata.submit([Put(QueueRow("/", f"q{number}", random_id()))], results.done(number))
        assert results.take(2500) == [(number, None) for number in range(2500)]
    with open_metadata(tmp_path) as (_, state):
        assert len(state.queues) == 2500


def test_failing_callback_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing_callback(error: BaseException | None) -> None:
        raise ZeroDivisionError

    results = CommitResults()
    with open_metadata(tmp_path) as (metadata, _):
        with metadata._changed:
            metadata.submit([Put(OTHER)], failing_callback)
            metadata.submit([Put(OTHER)], results.done("second"))
        assert results.take(1) == [("second", None)]
    assert "a done callback failed" in caplog.text


def test_close_commits_pending_submissions(tmp_path: Path) -> None:
    results = CommitResults()
    metadata = SqlMetadataStore("", tmp_path, post)
    metadata.open(lambda: (VHOST,))
    metadata.submit([Put(OTHER)], results.done("last"))
    metadata.close()
    assert results.take(1) == [("last", None)]
    with pytest.raises(MetadataClosed):
        metadata.submit([Put(OTHER)], results.done("late"))
    assert not [thread for thread in threading.enumerate() if thread.name == "amqpd-metadata"]
    with open_metadata(tmp_path) as (_, state):
        assert state.vhosts == [VHOST, OTHER]


def test_commit_after_the_end_of_the_loop_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def closed(*arguments: object) -> None:
        raise RuntimeError("Event loop is closed")

    metadata = SqlMetadataStore("", tmp_path, closed)
    metadata.open(lambda: (VHOST,))
    metadata.submit([Put(OTHER)], lambda error: None)
    metadata.close()
    assert "after the end of the loop" in caplog.text
    with open_metadata(tmp_path) as (_, state):
        assert state.vhosts == [VHOST, OTHER]


def test_submit_before_open_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetadataClosed):
        SqlMetadataStore("", tmp_path, post).submit([], lambda error: None)


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The child process finds the same package, compiled or not, as this process.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


def test_killed_process_keeps_answered_commits(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from amqpd.storage.metadata.rows import Put, VhostRow
        from amqpd.storage.metadata.store import SqlMetadataStore
        count = 0
        def done(error):
            global count
            count += 1
            if count == 50:
                os.write(1, b"50 answered")
                os.kill(os.getpid(), signal.SIGKILL)
        metadata = SqlMetadataStore("", Path(sys.argv[1]), lambda function, *arguments: function(*arguments))
        metadata.open()
        for number in range(100):
            metadata.submit([Put(VhostRow(f"v{number:03}", "id"))], done)
        metadata.close()
    """
    killed = run_python(script, str(tmp_path))
    assert (killed.returncode, killed.stdout) == (-9, "50 answered"), killed.stderr
    with open_metadata(tmp_path) as (metadata, state):
        names = [row.name for row in state.vhosts]
        assert names[:50] == [f"v{number:03}" for number in range(50)]
        assert write(metadata, Put(VHOST)) is None


@pytest.mark.parametrize("with_shm", [True, False])
def test_torn_wal_leaves_a_prefix_of_the_submissions(tmp_path: Path, with_shm: bool) -> None:
    """A power cut may leave any length of an unsynced tail. The steps also cut frames in two."""
    count = 12
    data_dir = tmp_path / "data"
    with open_metadata(data_dir, "", ()) as (metadata, _):
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
        with open_metadata(copy, "", (VHOST,)) as (metadata, state):
            kept = len(state.vhosts)
            assert [row.name for row in state.vhosts] == [f"v{number:02}" for number in range(kept)]
            assert [row.name for row in state.users] == [f"u{number:02}" for number in range(kept)]
            if cut % 8 == 0:
                assert write(metadata, Put(OTHER)) is None
        seen.add(kept)
    assert seen >= set(range(1, count + 1))  # otherwise the cuts are not between the commits


def test_own_sqlite_file_needs_no_sqlalchemy(tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from amqpd.storage.metadata.rows import Put, VhostRow
        from amqpd.storage.metadata.store import SqlMetadataStore
        metadata = SqlMetadataStore("", Path(sys.argv[1]), lambda function, *arguments: function(*arguments))
        metadata.open()
        metadata.submit([Put(VhostRow("v", "id"))], print)
        metadata.close()
        print("sqlalchemy" in sys.modules, "asyncio" in sys.modules)
    """
    for _ in range(2):  # first a new file, then an existing one
        done = run_python(script, str(tmp_path))
        assert done.stdout == "None\nFalse False\n", done.stderr
