"""Whose database it is: strangers', newer and damaged ones are refused, and nothing in them is touched."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from metadata_rows import EVERY_ROW, OTHER, VHOST, all_rows, named, opened, write

from amqpd.storage.metadata import sqlite
from amqpd.storage.metadata.rows import Row
from amqpd.storage.metadata.schema import SCHEMA_VERSION, tables_after
from amqpd.storage.metadata.sqlite import SqliteBootstrap
from amqpd.storage.metadata.store import InstanceMismatch, MetadataError, NewerSchema, Put, random_id


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


def as_version(path: Path, version: int) -> tuple[type[Row], ...]:
    """The database as that schema version had it. Returns which rows it lacks."""
    missing = tables_after(version)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in missing:
            connection.execute(f"DROP TABLE {table.name}")
    set_header(path, "schema_version", str(version))
    return tuple(table.row for table in missing)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
@pytest.mark.parametrize("road", ["own file", "url"])
def test_an_older_schema_becomes_the_one_of_today(tmp_path: Path, road: str, version: int) -> None:
    fresh, path = tmp_path / "fresh", tmp_path / "metadata.sqlite"
    url = "" if road == "own file" else f"sqlite:///{path}"
    with opened(fresh):
        pass
    with opened(tmp_path, url, EVERY_ROW):
        pass
    lacks = as_version(path, version)
    new = [row for row in EVERY_ROW if isinstance(row, lacks)]
    assert new
    with opened(tmp_path, url) as (metadata, state):
        assert not state.fresh
        assert all_rows(state) == named([row for row in EVERY_ROW if not isinstance(row, lacks)])
        assert write(metadata, *(Put(row) for row in new)) is None
    with opened(tmp_path, url) as (_, state):
        assert all_rows(state) == named(EVERY_ROW)
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(fresh / "metadata.sqlite")) as made:
        schema = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
        tables = [{name: " ".join(sql.split()) for name, sql in each.execute(schema)} for each in (old, made)]
        if not url:
            assert tables[0] == tables[1]
        assert tables[0].keys() == tables[1].keys()


def test_an_upgrade_that_was_cut_short_is_made_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, "", EVERY_ROW):
        pass
    as_version(tmp_path / "metadata.sqlite", 1)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "HEADER_TABLE", "nowhere")  # its last statement fails
        with pytest.raises(sqlite3.OperationalError):
            SqliteBootstrap(tmp_path / "metadata.sqlite").upgrade(1)
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "stored_offsets" not in names
    with opened(tmp_path) as (_, state):
        assert state.stored_offsets == []


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
