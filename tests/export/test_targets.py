"""The database target of an export, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.dialects.mysql import mariadb

from amqpd.storage.export.checkpoint import ExportCheckpoint, Progress
from amqpd.storage.export.engine import ExportRows
from amqpd.storage.export.targets import Database
from amqpd.storage.spark.engine import plain_value

ARRIVED_US = 1_753_000_000_123_456
COLUMNS = [("offset", "bigint"), ("timestamp", "timestamp"), ("value", "binary")]


class SparkRow:
    """A row as Spark gives it to the driver: timestamps are local and naive."""

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        arrived = datetime.fromtimestamp(ARRIVED_US // 1_000_000)  # noqa: DTZ006 - as pyspark's TimestampType does it
        return {"offset": 7, "timestamp": arrived.replace(microsecond=ARRIVED_US % 1_000_000), "value": bytearray(b"x")}


@pytest.fixture(params=["Asia/Kolkata", "America/New_York", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of this process."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


def test_database_gets_utc_in_any_time_zone(zone: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    ledger = ExportCheckpoint(tmp_path / "check", {})
    target = Database(url, "tasks", COLUMNS, ledger)
    row = {name: plain_value(value) for name, value in SparkRow().asDict().items()}
    engine = SimpleNamespace(dicts=lambda rows: iter([row]))
    target.write(engine, ExportRows((), ()), Progress(1, {}), "label")  # type: ignore[arg-type]
    target.close()
    ledger.close()
    engine = create_engine(url)
    with engine.connect() as connection:
        (found,) = connection.execute(text("SELECT timestamp FROM tasks")).one()
    engine.dispose()
    assert datetime.fromisoformat(found).replace(tzinfo=UTC) == datetime.fromtimestamp(ARRIVED_US / 1e6, UTC)


def test_connection_that_the_server_has_closed_is_opened_again(tmp_path: Path) -> None:
    """An export with --follow may have no message for hours."""
    ledger = ExportCheckpoint(tmp_path / "check", {})
    target = Database(f"sqlite:///{tmp_path}/lake.db", "tasks", COLUMNS, ledger)
    engine: Any = SimpleNamespace(dicts=lambda rows: iter([{"offset": 7, "timestamp": None, "value": b"x"}]))
    for batch in (1, 2):
        target.write(engine, ExportRows(reads=(), columns=()), Progress(batch, {}), "label")
        with target.database.connect() as connection:
            idle: Any = connection.connection.dbapi_connection
        idle.close()
    with target.database.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM tasks")).scalar() == 2
    target.close()
    ledger.close()


def test_postgresql_gets_no_nul_in_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL refuses a NUL in a text, so that one message would end each run."""
    ledger = ExportCheckpoint(tmp_path / "check", {})
    target = Database("sqlite://", "tasks", [("value", "binary"), ("routing_key", "string")], ledger)
    monkeypatch.setattr(target.database.dialect, "name", "postgresql")

    @event.listens_for(target.database, "before_cursor_execute", retval=True)
    def replaced(connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any) -> tuple[str, Any]:
        return ("SELECT 1" if statement.startswith("SET LOCAL") else statement), parameters

    engine: Any = SimpleNamespace(dicts=lambda rows: iter([{"value": b"a\0b", "routing_key": "a\0b"}]))
    target.write(engine, ExportRows(reads=(), columns=()), Progress(1, {}), "label")
    with target.database.connect() as connection:
        assert connection.execute(text("SELECT value, routing_key FROM tasks")).one() == (b"a\0b", "a\ufffdb")
    target.close()
    ledger.close()


def test_staged_files_stay_while_the_state_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk refuses the state after an upload. The next run uploads the files again."""
    ledger = ExportCheckpoint(tmp_path / "check", {})
    progress = ledger.begin({})
    staged = ledger.attempt() / "part"
    staged.parent.mkdir()
    staged.touch()
    progress.moves = [[str(staged), "final"]]
    ledger.save()
    with monkeypatch.context() as patched:
        patched.setattr(ExportCheckpoint, "_write", Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            ledger.commit()
    ledger.close()
    again = ExportCheckpoint(tmp_path / "check", {})
    assert again.state.next == progress and staged.exists()
    again.commit()
    again.close()
    assert not staged.exists()


@pytest.mark.parametrize(
    ("dialect", "kind"),
    [
        (postgresql.dialect(), "TIMESTAMP WITH TIME ZONE"),
        (oracle.dialect(), "TIMESTAMP WITH TIME ZONE"),
        (mssql.dialect(), "DATETIMEOFFSET"),
        (mysql.dialect(), "DATETIME(6)"),
        (sqlite.dialect(), "DATETIME"),
    ],
)
def test_timestamp_column_has_a_zone_if_the_database_supports_it(dialect: Any, kind: str, tmp_path: Path) -> None:
    assert column_types(dialect, tmp_path)["timestamp"] == kind


@pytest.mark.parametrize(
    ("dialect", "value", "headers"),
    [
        (mysql.dialect(), "LONGBLOB", "LONGTEXT"),
        (mariadb.MariaDBDialect(), "LONGBLOB", "LONGTEXT"),
        (mssql.dialect(), "IMAGE", "NTEXT"),
        (postgresql.dialect(), "BYTEA", "TEXT"),
        (sqlite.dialect(), "BLOB", "TEXT"),
    ],
)
def test_columns_hold_bodies_and_texts_of_any_size(dialect: Any, value: str, headers: str, tmp_path: Path) -> None:
    """BLOB and TEXT of MySQL have 64 KiB, and those of SQL Server's older types no Unicode."""
    found = column_types(dialect, tmp_path)
    assert (found["value"], found["headers"]) == (value, headers)


def column_types(dialect: Any, tmp_path: Path) -> dict[str, str]:
    """Return the types of the columns of a database's table, as the dialect writes them."""
    ledger = ExportCheckpoint(tmp_path / "check", {})
    target = Database("sqlite://", "tasks", [*COLUMNS, ("headers", "map<string,string>")], ledger)
    found = {column.name: column.type.compile(dialect=dialect) for column in target.table.columns}
    target.close()
    ledger.close()
    return found
