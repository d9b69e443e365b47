"""Shared exports to object stores, Delta and Iceberg: a process is paused or killed at each step, another one works."""

from __future__ import annotations

import io
import os
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpd.cli.main import run as run_command
from amqpd.storage.export import claims, delta, iceberg, shared_checkpoint
from amqpd.storage.export.checkpoint import CheckpointError
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import BadExport, ExportOptions
from amqpd.storage.export.object_store import ObjectStore
from amqpd.storage.export.payload import PayloadOptions
from amqpd.storage.export.shared_job import SharedExportJob
from amqpd.storage.export.targets import TargetError

obstore = pytest.importorskip("obstore")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

# Directories have both in each run (test_shared_job.py).
ALSO_BEFORE = pytest.param(False, marks=pytest.mark.on_demand)

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
STORE_STEPS = ("replace", "copy", "delete", "publish")  # `read` is called by the life thread, too


def run(wanted):
    return SharedExportJob(wanted, PyarrowEngine(workers=1), lambda report: None, lambda: False).run()


def options(lake, to, checkpoint, **given):
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", to, checkpoint, take_over_s=0.3, **given)


class Objects:
    """Parquet files in a bucket."""

    def __init__(self, tmp_path, monkeypatch):
        self.steps = [(ObjectStore, STORE_STEPS)]

    def options(self, lake, number, **given):
        return options(lake, f"s3://lake/o{number}", f"s3://lake/o{number}/_checkpoint", **given)

    def objects(self, number):
        store = obstore.store.from_url(f"s3://lake/o{number}", client_options={"allow_http": True})
        names = [each["path"] for chunk in obstore.list(store) for each in chunk]
        return {name: bytes(obstore.get(store, name).bytes()) for name in names}

    def offsets(self, number):
        """Return what a reader of the bare bucket sees."""
        found = []
        for name, data in self.objects(number).items():
            if name.endswith(".parquet"):
                found += pq.ParquetFile(io.BytesIO(data)).read(["offset"]).column("offset").to_pylist()
        return sorted(found)

    def check_left_over(self, number):
        names = [name for name in self.objects(number) if not name.endswith(".parquet")]
        assert names == ["_checkpoint/state.json"]


class Delta:
    """A Delta table in a directory; the checkpoint, too."""

    def __init__(self, tmp_path, monkeypatch):
        self.tmp_path = tmp_path
        table = deltalake.DeltaTable
        self.steps = [(table, ("create", "create_write_transaction")), *self.checkpoint_steps()]

    def checkpoint_steps(self):
        return [(os, ("link",)), (Path, ("replace",))]

    def options(self, lake, number, **given):
        return options(
            lake, str(self.tmp_path / f"t{number}"), str(self.tmp_path / f"c{number}"), format="delta", **given
        )

    def offsets(self, number):
        place = str(self.tmp_path / f"t{number}")
        if not deltalake.DeltaTable.is_deltatable(place):
            return []
        return sorted(deltalake.DeltaTable(place).to_pyarrow_table().column("offset").to_pylist())

    def check_left_over(self, number):
        found = [path for path in (self.tmp_path / f"c{number}" / "staging").rglob("*") if path.is_file()]
        assert found == []


class DeltaObjects(Delta):
    """A Delta table in a bucket; the checkpoint in a folder beside it."""

    def __init__(self, tmp_path, monkeypatch):
        table = deltalake.DeltaTable
        self.monkeypatch = monkeypatch
        self.steps = [(table, ("create", "create_write_transaction")), (ObjectStore, STORE_STEPS)]

    def options(self, lake, number, **given):
        return options(lake, f"s3://lake/d{number}", f"s3://lake/checkpoints/d{number}", format="delta", **given)

    def offsets(self, number):
        given = {"allow_http": "true"}
        if not deltalake.DeltaTable.is_deltatable(f"s3://lake/d{number}", given):
            return []
        table = deltalake.DeltaTable(f"s3://lake/d{number}", storage_options=given)
        return sorted(table.to_pyarrow_table().column("offset").to_pylist())

    def check_left_over(self, number):
        store = obstore.store.from_url(f"s3://lake/checkpoints/d{number}", client_options={"allow_http": True})
        assert [each["path"] for chunk in obstore.list(store) for each in chunk] == ["state.json"]


class Iceberg(Delta):
    """A table of a catalog that pyiceberg's configuration names; the checkpoint in a directory."""

    def __init__(self, tmp_path, monkeypatch):
        from pyiceberg import catalog
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.utils.config import Config

        self.tmp_path = tmp_path
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__TYPE", "sql")
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"sqlite:///{tmp_path}/shop.db")
        monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__WAREHOUSE", f"file://{tmp_path}/warehouse")
        monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
        self.load = lambda: catalog.load_catalog("shop")
        names = ("create_table", "create_namespace_if_not_exists", "load_table", "commit_table")
        self.steps = [(SqlCatalog, names), *self.checkpoint_steps()]

    def options(self, lake, number, **given):
        checkpoint = str(self.tmp_path / f"c{number}")
        return options(lake, f"iceberg://shop/orders.t{number}", checkpoint, format="iceberg", **given)

    def table(self, number):
        catalog = self.load()
        try:
            name = f"orders.t{number}"
            return catalog.load_table(name) if catalog.table_exists(name) else None
        finally:
            catalog.close()

    def offsets(self, number):
        table = self.table(number)
        return [] if table is None else sorted(table.scan().to_arrow().column("offset").to_pylist())


class IcebergObjects(Iceberg):
    """The same table; the checkpoint in a bucket."""

    def checkpoint_steps(self):
        return [(ObjectStore, STORE_STEPS)]

    def options(self, lake, number, **given):
        to = f"iceberg://shop/orders.t{number}"
        return options(lake, to, f"s3://lake/checkpoints/i{number}", format="iceberg", **given)

    def check_left_over(self, number):
        store = obstore.store.from_url(f"s3://lake/checkpoints/i{number}", client_options={"allow_http": True})
        assert [each["path"] for chunk in obstore.list(store) for each in chunk] == ["state.json"]


TARGETS = {
    "objects": Objects,
    "delta": Delta,
    "delta objects": DeltaObjects,
    "iceberg": Iceberg,
    "iceberg objects": IcebergObjects,
}


# The table is the one of "iceberg", the checkpoint the one of "objects".
EACH_STEP = [pytest.param(name, marks=pytest.mark.on_demand) if name == "iceberg objects" else name for name in TARGETS]


@pytest.fixture(params=list(TARGETS))
def target(request, tmp_path, monkeypatch):
    if "objects" in request.param:
        s3 = request.getfixturevalue("s3")
        if request.param == "delta objects":  # deltalake holds the interpreter's lock during requests
            monkeypatch.setenv("AWS_ENDPOINT_URL", s3.direct_url)
    return TARGETS[request.param](tmp_path, monkeypatch)


def test_processes_continue_and_another_checkpoint_is_refused(written, tmp_path, target):
    assert run(target.options(written, 0, batch_rows=1500, to_offset=2500)).rows == 1500
    assert run(target.options(written, 0, batch_rows=1000)).rows == 2500
    assert run(target.options(written, 0)).rows == 0
    assert target.offsets(0) == list(range(1000, 5000))
    target.check_left_over(0)
    other = target.options(written, 0)
    place = "s3://lake/o0/_other" if isinstance(target, Objects) else str(tmp_path / "other")
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(ExportOptions(**{**vars(other), "checkpoint": place}))


def test_more_batches_than_slots(written, target, monkeypatch):
    for module in (claims, delta, iceberg):
        monkeypatch.setattr(module, "WINDOW", 3)
    assert run(target.options(written, 0, batch_rows=500, start="1000", columns=("offset",))).batches == 8
    assert target.offsets(0) == list(range(1000, 5000))


def test_commands(written, tmp_path, s3, monkeypatch):
    """The command of the manual, its rerun, and commands that are refused."""
    manual = Path(__file__).parents[2] / "docs" / "export.md"
    section = manual.read_text("utf-8").partition("## Several machines")[2].partition("\n## ")[0]
    (line,) = re.findall(r"^amqpctl (export .* s3://.*)$", section, re.MULTILINE)
    command = shlex.split(line.replace("--queue orders", "--queue tasks"))
    lake, check = str(tmp_path / "lake"), str(tmp_path / "check")
    there = ["export", "--queue", "tasks", "--to", lake, "--checkpoint", check]
    for arguments, code, words in (
        (command, 0, "Exported 4,000 records"),
        (command, 0, "Exported 0 records"),
        ([*command[:-1]], 64, "with --share also a URL"),
        ([*there, "--to-offset", "2000"], 0, "Exported 1,000 records"),
        ([*there, "--share"], 0, "Exported 3,000 records"),  # the checkpoint becomes a shared one
        (there, 64, "belongs to a shared export: give --share"),
        ([*there, "--share", "--format", "json"], 64, "belongs to an export with --format 'parquet', not 'json'"),
        ([*there, "--share", "--engine", "spark"], 64, "--share: not with --engine spark"),
        ([*there, "--share", "--take-over-after", "0"], 64, "--take-over-after : 0"),
        ([*there, "--take-over-after", "9"], 64, "--take-over-after needs --share"),
        ([*there, "--share", "--compress"], 64, "--compress needs --uri"),
        (["compact_export", "--to", "s3://lake/orders", "--checkpoint", command[6]], 64, "expected a directory"),
        (["compact_export", "--to", lake, "--checkpoint", check], 0, "Merged"),
    ):
        out = io.StringIO()
        found = run_command(["--data-dir", written.data_dir, *arguments], out, out, io.StringIO(), {})
        assert (found, words in out.getvalue()) == (code, True), (arguments, out.getvalue())
        assert "Traceback" not in out.getvalue()
    assert sorted(pq.read_table(lake, columns=["offset"])["offset"].to_pylist()) == list(range(1000, 5000))
    target = Objects(tmp_path, monkeypatch)
    names = [name for name in target.objects("rders") if name.endswith(".parquet")]
    assert names and sorted(target.offsets("rders")) == list(range(1000, 5000))


@pytest.mark.slow
@pytest.mark.parametrize("target", EACH_STEP, indirect=True)
@pytest.mark.parametrize("after", [ALSO_BEFORE, True], ids=["before", "after"])
def test_paused_at_each_step(written, target, pause_steps, monkeypatch, after):
    monkeypatch.setattr(shared_checkpoint, "LOCK_S", 0.0)
    for owner, names in target.steps:
        pause_steps.wrap(owner, *names)
    for number in range(1, 100):
        wanted = target.options(written, number, batch_rows=2500, columns=("offset", "routing_key"))
        before = pause_steps.count

        def meanwhile(wanted=wanted):
            try:
                run(wanted)
            except CheckpointError as error:  # the other one is paused while it creates the checkpoint
                if "another export uses the checkpoint" not in str(error):
                    raise

        total = pause_steps.run(number, after, lambda wanted=wanted: run(wanted), meanwhile)
        assert total.lag == 0
        assert target.offsets(number) == list(range(1000, 5000)), number
        target.check_left_over(number)
        if pause_steps.count == before:
            break
    print(f"{pause_steps.count} pauses")
    assert pause_steps.count >= 10


@pytest.mark.slow
@pytest.mark.parametrize("target", EACH_STEP, indirect=True)
@pytest.mark.parametrize("after", [ALSO_BEFORE, True], ids=["before", "after"])
def test_killed_at_each_step(written, target, kill_steps, after):
    for owner, names in target.steps:
        kill_steps.wrap(owner, *names)
    for number in range(1, 100):
        wanted = target.options(written, number, batch_rows=2500, columns=("offset", "routing_key"))
        before = kill_steps.count
        kill_steps.run(number, after, lambda wanted=wanted: run(wanted))
        assert run(wanted).lag == 0
        assert target.offsets(number) == list(range(1000, 5000)), number
        target.check_left_over(number)
        if kill_steps.count == before:
            break
    print(f"{kill_steps.count} kills")
    assert kill_steps.count >= 10


@pytest.mark.parametrize(
    ("to", "checkpoint", "given", "words"),
    [
        ("s3://lake/o", "s3://lake/other", {}, "a --checkpoint below --to whose name begins with _"),
        ("s3://lake/o", "s3://lake/o/checkpoint", {}, "such as s3://lake/o/_checkpoint"),
        ("s3://lake/o", "/tmp/check", {}, "a --checkpoint below --to"),
        ("/tmp/lake", "s3://lake/_c", {}, "a --checkpoint in a directory of its file system"),
        ("/tmp/lake", "/tmp/check", {"format": "iceberg"}, "--to iceberg://CATALOG/NAMESPACE.TABLE"),
        ("sqlite:///x.db", "/tmp/check", {}, "not for a database"),
        ("/tmp/lake", "/tmp/check", {"where": "true"}, "not with --where"),
        (
            "/tmp/lake",
            "/tmp/check",
            {"format": "delta", "payload": PayloadOptions("json", SCHEMA)},
            "--payload.* for files",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(written, to, checkpoint, given, words):
    with pytest.raises(BadExport, match=words):
        SharedExportJob(options(written, to, checkpoint, **given), PyarrowEngine(), lambda report: None, lambda: False)
