"""The metadata: rows survive, groups commit in order, and only the culprit fails."""

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
from metadata_rows import EVERY_ROW, OTHER, USER, VHOST, Answers, all_rows, named, opened, post, write

from amqpd.storage.metadata.schema import TABLES
from amqpd.storage.metadata.sql import SqlAlchemyTables
from amqpd.storage.metadata.sqlite import SqliteBootstrap
from amqpd.storage.metadata.store import (
    BindingRow,
    Delete,
    DeleteBindings,
    MetadataClosed,
    MetadataError,
    PermissionRow,
    Put,
    QueueRow,
    Row,
    SeenRow,
    SqlMetadataStore,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
    WriteFailed,
    random_id,
)

OUTSIDE = [
    row
    for row in EVERY_ROW
    if row is not VHOST and getattr(row, "vhost", "shop") == "shop" and not isinstance(row, StoredOffsetRow | SeenRow)
]
"""What does not go with the vhost `/`: all but that vhost, and what lies in it, in a queue or an exchange of it."""


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
    store = SqlAlchemyTables(tmp_path / "metadata.sqlite")
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
    SqliteBootstrap(tmp_path / "a.sqlite").create({"instance_id": "x"}, ())
    store = SqlAlchemyTables(tmp_path / "b.sqlite")
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
    store = SqlAlchemyTables(tmp_path / "m.sqlite")
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
        assert all_rows(state) == named(OUTSIDE)


def test_a_user_takes_the_permissions_along(tmp_path: Path, url: str) -> None:
    with opened(tmp_path, url, EVERY_ROW) as (metadata, _):
        assert write(metadata, Delete(USER)) is None
    with opened(tmp_path, url) as (_, state):
        gone = UserRow | PermissionRow | TopicPermissionRow | UserLimitsRow
        assert all_rows(state) == named([row for row in EVERY_ROW if not isinstance(row, gone)])


def test_a_queue_takes_its_stored_offsets_along(tmp_path: Path, url: str) -> None:
    leaving, staying = QueueRow("/", "a", "a" * 32), QueueRow("/", "b", "b" * 32)
    theirs = [StoredOffsetRow(queue.id, "reader", 7, 1) for queue in (leaving, staying)]
    with opened(tmp_path, url, (VHOST, leaving, staying, *theirs)) as (metadata, _):
        assert write(metadata, Put(leaving._replace(state="deleting"))) is None
    with opened(tmp_path, url) as (metadata, state):
        assert state.stored_offsets == theirs[1:], "not even while it is being deleted"
        assert write(metadata, Delete(leaving)) is None
        assert isinstance(write(metadata, Put(theirs[0])), WriteFailed), "there is no such queue"
    with opened(tmp_path, url) as (_, state):
        assert state.stored_offsets == theirs[1:]


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
        assert all_rows(state) == named([*OUTSIDE, leaving])
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
    metadata = SqlMetadataStore("", tmp_path, post)
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

    metadata = SqlMetadataStore("", tmp_path, closed)
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
        SqlMetadataStore("", tmp_path, post).submit([], lambda error: None)


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The compiled package, when that is what is tested, is found as this process found it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


def test_a_killed_process_keeps_what_was_answered(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from amqpd.storage.metadata.store import SqlMetadataStore, Put, VhostRow
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
        from amqpd.storage.metadata.store import SqlMetadataStore
        metadata = SqlMetadataStore("", Path(sys.argv[1]), print)
        metadata.open()
        print("sqlalchemy" in sys.modules, "asyncio" in sys.modules)
        metadata.close()
    """
    for _ in range(2):  # a fresh file, then one that exists
        done = run_python(script, str(tmp_path))
        assert done.stdout == "False False\n", done.stderr
