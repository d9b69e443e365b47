"""Iceberg catalogs that fail in the middle of an export: a REST catalog, and a SQL catalog that is locked or fails.

After each fault the next run continues, and the table and the files of rejected messages have each offset once.
"""

from __future__ import annotations

import json
import sqlite3
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from amqpd.storage.export import iceberg
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import ExportJob, ExportOptions
from amqpd.storage.export.payload import PayloadOptions
from amqpd.storage.export.targets import TargetError
from amqpd.storage.filesystem import FileSystem

pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

COUNT = 200
GOOD = [number for number in range(COUNT) if number % 7 != 6]
BAD = [number for number in range(COUNT) if number % 7 == 6]
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
MORE = '{"type": "object", "properties": {"n": {"type": "integer"}, "more": {"type": "string"}}}'


@pytest.fixture
def orders(make_lake, tmp_path):
    lake = make_lake(64 * 1024, FileSystem(), str(tmp_path / "orders"))
    lake.append(*[b'{"n": %d, "more": "x"}' % n if n % 7 != 6 else b"no json" for n in range(COUNT)])
    lake.turn()
    return lake


@pytest.fixture
def rest(tmp_path, monkeypatch):
    """A REST catalog, with the name `rest` in pyiceberg's configuration."""
    spec = spec_from_file_location("rest_catalog_stand_in", Path(__file__).with_name("rest_catalog_stand_in.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.RestCatalogStandIn(tmp_path, f"file://{tmp_path}/warehouse")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__URI", server.url)
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
    yield server
    server.close()


def options(lake, tmp_path, to, schema=SCHEMA, **given):
    defaults = {"checkpoint": str(tmp_path / "check"), "table": "shop.orders", "columns": ("offset",)}
    payload = PayloadOptions("json", schema)
    return ExportOptions(
        {"path": lake.data_dir}, "/", "tasks", to, format="iceberg", payload=payload, **(defaults | given)
    )


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def seen(database, name="shop.orders"):
    """Return the offsets in a table and those of rejected messages, as the database of the catalog shows them."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("stand-in" if database.name == "rest.db" else "amqpd", uri=f"sqlite:///{database}")
    try:
        table = catalog.load_table(name)
        rows = table.scan().to_arrow().column("offset").to_pylist()
        place = Path(table.location().removeprefix("file://"))
    finally:
        catalog.close()
    lines = [line for path in place.glob("_rejected/*") for line in path.read_text().splitlines()]
    return sorted(rows), sorted(json.loads(line)["offset"] for line in lines)


def fail_at_each_request(lake, tmp_path, rest, fault):
    """Run an export whose requests fail one after the other. Return the number of runs that ended with an error.

    Each export begins with a new table: the first batches create it, and a later schema adds a field.
    """
    errors = 0
    for number in range(1, 30):
        name = f"t{number}"
        given = {
            "to": f"iceberg://rest/{name}.orders",
            "checkpoint": str(tmp_path / f"check-{name}"),
            "batch_rows": 100,
        }
        rest.reset(lambda count, number=number: fault if count == number else "")
        for schema, stop in ((SCHEMA, 100), (MORE, None)):
            wanted = options(lake, tmp_path, schema=schema, to_offset=stop, **given)
            for _ in range(2):
                try:
                    run(wanted)
                    break
                except TargetError:
                    errors += 1
        has_failed = rest.writes >= number
        rest.reset()
        assert seen(tmp_path / "rest.db", f"{name}.orders") == (GOOD, BAD), (number, fault)
        if not has_failed:
            return errors
    raise AssertionError("the export has more requests than expected")


def test_lost_answer_to_each_request_of_a_rest_catalog(orders, tmp_path, rest):
    """The catalog is killed after it has done a request, and before it answers."""
    assert fail_at_each_request(orders, tmp_path, rest, "hang up after") >= 5


def test_request_that_a_proxy_sends_twice(orders, tmp_path, rest):
    """The second answer is a conflict, although the commit has succeeded: its files must stay."""
    assert fail_at_each_request(orders, tmp_path, rest, "twice") == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang up", "500 after", "503", "409"])
def test_each_request_of_a_rest_catalog_fails(orders, tmp_path, rest, fault):
    errors = fail_at_each_request(orders, tmp_path, rest, fault)
    print(f"{errors} errors")
    assert errors >= (1 if fault == "409" else 3)  # a refused commit is repeated


@pytest.mark.slow
def test_rest_catalog_that_never_answers_ends_the_export(orders, tmp_path, rest, monkeypatch):
    monkeypatch.setattr(iceberg, "REQUEST_TIMEOUT_S", (20.0, 8.0))  # other answers take less on a busy machine
    wanted = options(orders, tmp_path, "iceberg://rest/stall.orders")
    rest.reset(lambda count: "stall after" if count >= 4 else "")  # after namespace, staged table, creation
    with pytest.raises(TargetError, match=r"Iceberg, stall\.orders: ReadTimeout"):
        run(wanted)
    assert rest.writes == 4
    rest.reset()
    run(wanted)
    assert seen(tmp_path / "rest.db", "stall.orders") == (GOOD, BAD)


@pytest.mark.slow
def test_each_statement_of_a_sql_catalog_fails(orders, tmp_path, monkeypatch):
    """The database fails before or after it has done a statement that ends a transaction."""
    from sqlalchemy.exc import OperationalError
    from sqlalchemy.orm import Session

    real, left, errors = Session.commit, [0], 0

    def commit(self):
        left[0] -= 1
        if left[0] == 0 and not after:
            raise OperationalError("COMMIT", {}, Exception("the database is away"))
        real(self)
        if left[0] == 0:
            raise OperationalError("COMMIT", {}, Exception("the database is away"))

    monkeypatch.setattr(Session, "commit", commit)
    for number in range(1, 30):
        for after in (False, True):
            name = f"{number}-{after}"
            to, check = tmp_path / name, str(tmp_path / f"check-{name}")
            wanted = options(orders, tmp_path, str(to), checkpoint=check, batch_rows=90)
            left[0] = number
            try:
                run(wanted)
            except TargetError:
                errors += 1
            has_failed, left[0] = left[0] <= 0, 0
            run(wanted)
            assert seen(to / "catalog.db") == (GOOD, BAD)
        if not has_failed:
            break
    assert errors >= 8, errors


@pytest.mark.slow
def test_locked_sql_catalog_ends_the_export(orders, tmp_path):
    """SQLite waits for five seconds."""
    to = tmp_path / "lake"
    wanted = options(orders, tmp_path, str(to), batch_rows=90)
    run(options(orders, tmp_path, str(to), batch_rows=90, to_offset=90))
    other = sqlite3.connect(to / "catalog.db")
    try:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TargetError, match="database is locked"):
            run(wanted)
    finally:
        other.close()
    run(wanted)
    assert seen(to / "catalog.db") == (GOOD, BAD)
