"""Databases of another instance, newer ones and damaged ones are refused and left unchanged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from metadata_rows import EVERY_ROW, OTHER, VHOST, all_rows, open_metadata, typed_rows, write

from amqpd.storage.metadata.rows import Put, Row
from amqpd.storage.metadata.schema import SCHEMA_VERSION, tables_after
from amqpd.storage.metadata.store import InstanceMismatch, MetadataError, NewerSchema, random_id


def set_header(path: Path, name: str, value: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE amqpd_metadata SET value = ? WHERE name = ?", (value, name))


def refused_open(data_dir: Path, error: type[MetadataError], url: str = "") -> str:
    """Open, expect `error`, and check that no file of the data directory changed. Return the error's text."""
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    with pytest.raises(error) as caught, open_metadata(data_dir, url):
        pass
    assert {path: path.read_bytes() for path in before} == before
    return str(caught.value)


def test_newer_schema_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    with open_metadata(tmp_path):
        pass
    set_header(tmp_path / "metadata.sqlite", "schema_version", str(SCHEMA_VERSION + 1))
    assert f"schema version {SCHEMA_VERSION + 1}" in refused_open(tmp_path, NewerSchema)


@pytest.mark.parametrize("version", ["0", "", "-1", "one"])
def test_unknown_schema_is_refused(tmp_path: Path, version: str) -> None:
    with open_metadata(tmp_path):
        pass
    set_header(tmp_path / "metadata.sqlite", "schema_version", version)
    assert "schema version" in refused_open(tmp_path, MetadataError)


def downgrade(path: Path, version: int) -> tuple[type[Row], ...]:
    """Turn the database into one of that schema version. Return the row types that it lacks."""
    missing = tables_after(version)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in missing:
            connection.execute(f"DROP TABLE {table.name}")
    set_header(path, "schema_version", str(version))
    return tuple(table.row for table in missing)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
@pytest.mark.parametrize("code_path", ["own file", "url"])
def test_older_schema_is_upgraded(tmp_path: Path, code_path: str, version: int) -> None:
    fresh, path = tmp_path / "fresh", tmp_path / "metadata.sqlite"
    url = "" if code_path == "own file" else f"sqlite:///{path}"
    with open_metadata(fresh):
        pass
    with open_metadata(tmp_path, url, EVERY_ROW):
        pass
    lacks = downgrade(path, version)
    new = [row for row in EVERY_ROW if isinstance(row, lacks)]
    assert new
    with open_metadata(tmp_path, url) as (metadata, state):
        assert all_rows(state) == typed_rows([row for row in EVERY_ROW if not isinstance(row, lacks)])
        assert write(metadata, *(Put(row) for row in new)) is None
    with open_metadata(tmp_path, url) as (_, state):
        assert all_rows(state) == typed_rows(EVERY_ROW)
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(fresh / "metadata.sqlite")) as made:
        schema = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
        tables = [{name: " ".join(sql.split()) for name, sql in each.execute(schema)} for each in (old, made)]
        if not url:
            assert tables[0] == tables[1]
        assert tables[0].keys() == tables[1].keys()


@pytest.mark.parametrize("code_path", ["own file", "url"])
def test_interrupted_upgrade_is_repeated_by_the_next_start(tmp_path: Path, code_path: str) -> None:
    path = tmp_path / "metadata.sqlite"
    url = "" if code_path == "own file" else f"sqlite:///{path}"
    with open_metadata(tmp_path, "", EVERY_ROW):
        pass
    downgrade(path, 1)
    fail_last_statement = "BEFORE UPDATE ON amqpd_metadata BEGIN SELECT RAISE(ABORT, 'interrupted'); END"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TRIGGER stop {fail_last_statement}")
    assert "interrupted" in refused_open(tmp_path, MetadataError, url)
    with closing(sqlite3.connect(path)) as connection, connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        connection.execute("DROP TRIGGER stop")
    assert "stored_offsets" not in names
    with open_metadata(tmp_path, url) as (_, state):
        assert state.stored_offsets == []


def test_database_of_another_instance_is_refused(tmp_path: Path) -> None:
    with open_metadata(tmp_path / "a") as (_, a), open_metadata(tmp_path / "b") as (_, b):
        pass
    (tmp_path / "a" / "metadata.sqlite").replace(tmp_path / "b" / "metadata.sqlite")
    text = refused_open(tmp_path / "b", InstanceMismatch)
    assert a.instance_id in text
    assert b.instance_id in text


def test_two_directories_cannot_share_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.sqlite"
    with open_metadata(tmp_path / "a", url) as (_, state):
        pass
    (tmp_path / "b").mkdir()
    assert state.instance_id in refused_open(tmp_path / "b", InstanceMismatch, url)
    with open_metadata(tmp_path / "a", url) as (_, reopened):
        assert reopened.instance_id == state.instance_id


def test_missing_database_of_existing_queues_is_refused(tmp_path: Path) -> None:
    with open_metadata(tmp_path):
        pass
    (tmp_path / "vhosts" / VHOST.id / "queues" / random_id()).mkdir(parents=True)
    (tmp_path / "metadata.sqlite").unlink()
    for path in tmp_path.glob("metadata.sqlite-*"):
        path.unlink()
    assert "holds queues" in refused_open(tmp_path, InstanceMismatch)
    assert not (tmp_path / "metadata.sqlite").exists()


@pytest.mark.parametrize("leftover", ["instance-id only", "empty file", "pragma only"])
def test_first_start_continues_after_a_kill(tmp_path: Path, leftover: str) -> None:
    instance = random_id()
    (tmp_path / "instance-id").write_text(f"{instance}\n")
    if leftover != "instance-id only":
        (tmp_path / "metadata.sqlite").touch(0o600)
    if leftover == "pragma only":
        with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    with open_metadata(tmp_path) as (metadata, state):
        assert state.instance_id == instance
        assert state.vhosts == [VHOST]
        assert write(metadata, Put(OTHER)) is None


@pytest.mark.parametrize("content", [b"", b"abc\n", b"\xff" * 32, b"G" * 32])
def test_damaged_instance_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with open_metadata(tmp_path):
        pass
    (tmp_path / "instance-id").write_bytes(content)
    assert "instance id" in refused_open(tmp_path, InstanceMismatch)


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    with open_metadata(tmp_path):
        pass
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 1000)
    assert "metadata.sqlite" in refused_open(tmp_path, MetadataError)


def test_row_with_invalid_content_is_refused(tmp_path: Path) -> None:
    with open_metadata(tmp_path, "", EVERY_ROW):
        pass
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection, connection:
        connection.execute("UPDATE users SET tags = '{}'")
    assert "users" in refused_open(tmp_path, MetadataError)


@pytest.mark.parametrize("url", ["nonsense", "nosuchdb://u:sesame@127.0.0.1:1/x", "sqlite:////dev/null/x?a=sesame"])
def test_error_of_a_bad_url_does_not_show_the_password(tmp_path: Path, url: str) -> None:
    assert "sesame" not in refused_open(tmp_path, MetadataError, url)
