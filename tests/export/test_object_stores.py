"""Export to an object store: what its readers see, kills of the driver, failures of the store, missing credentials."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpd.cli.main import run as run_command
from amqpd.storage.export import object_store
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import ExportJob, ExportOptions, without_password
from amqpd.storage.export.object_store import ObjectStore, ObjectStoreError
from amqpd.storage.export.targets import TargetError
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log.record import RecordRoute

obstore = pytest.importorskip("obstore")

pytestmark = pytest.mark.external  # packages of the extra `all-tests`

MANUAL = Path(__file__).parents[2] / "docs" / "export.md"


def options(lake, tmp_path, to, **given):
    return ExportOptions({"path": lake.data_dir}, "/", "tasks", to, str(tmp_path / "check"), **given)


def run(wanted):
    return ExportJob(wanted, PyarrowEngine(), lambda report: None, lambda: False).run()


def objects(to):
    """Return each object's name and content."""
    store = obstore.store.from_url(to, client_options={"allow_http": True})
    names = [each["path"] for chunk in obstore.list(store) for each in chunk]
    return {name: bytes(obstore.get(store, name).bytes()) for name in names}


def offsets(to):
    """Return the offsets that a reader of the bare bucket sees. Each object must be a whole file."""
    found = []
    for name, data in objects(to).items():
        if name.endswith(".parquet"):
            found += pq.ParquetFile(io.BytesIO(data)).read(["offset"]).column("offset").to_pylist()
    return sorted(found)


def test_files_of_each_format_are_objects_with_the_names_that_a_directory_has(written, tmp_path, s3):
    names = {}
    for kind in ("parquet", "json", "csv"):
        for to in (f"s3://lake/{kind}", str(tmp_path / kind)):
            given = {"format": kind, "partition_by": ("routing_key",), "columns": ("offset", "value", "routing_key")}
            wanted = replace(options(written, tmp_path, to, **given), checkpoint=str(tmp_path / f"c{len(names)}"))
            assert run(wanted).rows == 4000
            found = objects(to) if "://" in to else [str(each.relative_to(to)) for each in Path(to).rglob("*.*")]
            names[to] = sorted(name.split("-0000")[0] for name in found)
        assert names[f"s3://lake/{kind}"] == names[to] == ["routing_key=eu/tasks", "routing_key=us/tasks"]
    assert offsets("s3://lake/parquet") == list(range(1000, 5000))


def test_odd_routing_keys_are_parts_of_names(make_lake, tmp_path, s3):
    lake = make_lake(1 << 20, FileSystem(), str(tmp_path / "data"))
    keys = ["a/b", "a b", "ä#{}~^|`<>", "..", "", "%2F", "*?&=+:;@,$"]
    for key in keys:
        lake.append(b"x", route=RecordRoute(b"orders", key.encode()))
    lake.turn()
    assert run(options(lake, tmp_path, "s3://lake/odd", partition_by=("routing_key",))).rows == len(keys)
    assert offsets("s3://lake/odd") == list(range(len(keys)))
    assert len(objects("s3://lake/odd")) == len(keys)


def test_rerun_continues_and_another_checkpoint_is_refused(written, tmp_path, s3):
    wanted = options(written, tmp_path, "s3://lake/rerun", batch_rows=1000)
    assert run(replace(wanted, to_offset=2500)).rows == 1500
    assert run(wanted).rows == 2500
    assert run(wanted).rows == 0
    assert offsets("s3://lake/rerun") == list(range(1000, 5000))
    assert not (tmp_path / "check" / "staging").exists()
    with pytest.raises(TargetError, match="of an export with another checkpoint"):
        run(replace(wanted, checkpoint=str(tmp_path / "other")))


@pytest.mark.parametrize("fault", ["500", "500 after", "hang up", "hang up after"])
def test_failed_requests_are_repeated(written, tmp_path, s3, fault):
    """The first attempt of every request fails, before or after the store has done it."""
    s3.reset(lambda number: fault if number % 2 else "")
    to = f"s3://lake/repeated/{fault.replace(' ', '-')}"
    assert run(options(written, tmp_path, to, batch_rows=1000)).rows == 4000
    assert s3.writes >= 8
    s3.reset()
    assert offsets(to) == list(range(1000, 5000))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stall", "stall after"])
def test_request_that_is_never_answered_is_repeated(written, tmp_path, s3, monkeypatch, fault):
    monkeypatch.setattr(object_store, "CLIENT", object_store.CLIENT | {"timeout": timedelta(seconds=2)})
    s3.reset(lambda number: fault if number in (1, 3) else "")
    to = f"s3://lake/repeated/{fault.replace(' ', '-')}"
    assert run(options(written, tmp_path, to, batch_rows=1000)).rows == 4000
    assert s3.writes >= 6
    s3.reset()
    assert offsets(to) == list(range(1000, 5000))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "500 after", "hang up", "hang up after"])
def test_store_that_stays_away_ends_the_export_and_the_next_run_completes_it(written, tmp_path, s3, monkeypatch, fault):
    monkeypatch.setattr(object_store, "RETRY", object_store.RETRY | {"max_retries": 0})
    to = f"s3://lake/away/{fault.replace(' ', '-')}"
    wanted = options(written, tmp_path, to, batch_rows=1000, partition_by=("routing_key",))
    errors = []
    for first in range(1, 12):  # each run fails one request later than the run before, in its current batch
        s3.reset(lambda number, first=first: fault if number >= first else "")
        try:
            assert run(wanted).lag == 0
            break
        except ObjectStoreError as error:
            errors.append(str(error))
        s3.reset()
        seen = offsets(to)
        assert len(set(seen)) == len(seen)
    assert len(errors) == 4 and all(each.startswith(f"--to {to}: Generic S3 error") for each in errors)
    s3.reset()
    assert offsets(to) == list(range(1000, 5000))


def test_missing_bucket_and_credentials_are_clear_errors(written, tmp_path, s3, monkeypatch):
    def answer(*arguments):
        out = io.StringIO()
        where = ("--data-dir", written.data_dir, "--queue", "tasks", "--checkpoint", str(tmp_path / "c"))
        code = run_command(["export", *where, *arguments], out, out, io.StringIO(), {})
        return code, out.getvalue()

    code, text = answer("--to", "s3://nosuchbucket/lake")
    assert (code, "NoSuchBucket: The specified bucket does not exist" in text) == (69, True), text
    for name in s3.environment:
        monkeypatch.delenv(name)
    clouds = (
        ("s3://bucket/lake", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
        ("gs://bucket/lake", "set GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://c@account.dfs.core.windows.net/lake", "set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID"),
        ("az://container/lake", "Account must be specified"),
        ("s3://bucket/lake?region=x", "options after ? are not read"),
    )
    for to, words in clouds:
        code, text = answer("--to", to)
        assert (code, words in text) == (69, True), text
    code, text = answer("--to", "file://host/lake")
    assert (code, "expected file:///DIRECTORY" in text) == (64, True), text
    code, text = answer("--to", "hdfs://host/lake")
    assert (code, "hdfs:// is not supported" in text) == (64, True), text


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("S3://b/x", "S3Store"),
        ("s3a://b/x", "S3Store"),
        ("gs://b/x", "GCSStore"),
        ("az://c/x", "AzureStore"),
        ("abfs://c@a.dfs.core.windows.net/x", "AzureStore"),
        ("abfss://c@a.dfs.core.windows.net/x", "AzureStore"),
    ],
)
def test_each_scheme_has_its_store(url, kind, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
    monkeypatch.setattr(ObjectStore, "_listed", lambda self, store: iter(()))
    assert type(ObjectStore(url)._store).__name__ == kind
    assert without_password(url) == url


def test_file_url_is_a_directory(written, tmp_path):
    out = io.StringIO()
    to = f"file://{tmp_path}/my%20lake"
    where = ("--data-dir", written.data_dir, "--queue", "tasks", "--to", to)
    assert run_command(["export", *where], out, out, io.StringIO(), {}) == 0, out.getvalue()
    assert len(list((tmp_path / "my lake").iterdir())) == 1 and (tmp_path / "my lake.checkpoint").is_dir()


def test_command_of_the_manual_runs(written, tmp_path, s3, monkeypatch):
    section = MANUAL.read_text("utf-8").partition("## Object stores")[2].partition("\n## ")[0]
    (line,) = re.findall(r"^amqpctl (export .*)$", section, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(line.replace("--queue orders", "--queue tasks"))
    out = io.StringIO()
    code = run_command(["--data-dir", written.data_dir, *arguments], out, out, io.StringIO(), {})
    assert (code, "Exported 4,000 records" in out.getvalue()) == (0, True), out.getvalue()
    assert offsets("s3://lake/orders") == list(range(1000, 5000)) and Path("orders.done/state.json").exists()


# -- kills of the driver


@pytest.fixture(scope="module")
def large_bodies(make_lake, tmp_path_factory):
    """20,000 records of 1 KB that cannot be compressed, and 200 small ones: files of several parts, and small files."""
    rng = random.Random(5)
    lake = make_lake(16 << 20, FileSystem(), str(tmp_path_factory.mktemp("bodies") / "data"))
    for number in range(14_200):
        size = 1000 if number < 14_000 else 10
        lake.append(rng.randbytes(size), route=RecordRoute(b"orders", b"eu" if number % 2 else b"us"))
        if number % 500 == 499:
            lake.turn()
    lake.turn()
    return lake


class Export:
    """`amqpctl export` as a process."""

    def __init__(self, lake, directory, to, *arguments):
        self.directory = directory
        self.to = to
        root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "PYTHONPATH": path}
        self.arguments = [
            "--data-dir", lake.data_dir, "--formatter", "json", "export", "--queue", "tasks", "--to", to,
            "--checkpoint", str(directory / "check"), *arguments,
        ]  # fmt: skip

    def start(self, program=("-m", "amqpd.cli"), **environment):
        return subprocess.Popen(
            [sys.executable, "-P", *program, *self.arguments],
            env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, program=("-m", "amqpd.cli"), **environment):
        """Return the exit code and the summary."""
        with self.start(program, **environment) as process:
            out, err = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), err
        return process.returncode, json.loads(out) if process.returncode == 0 else None


@pytest.mark.slow
def test_kill_of_the_driver_at_each_request_loses_and_repeats_nothing(large_bodies, tmp_path, s3):
    """`kill -9` before the store has the first request, and then before the answer to each request arrives.

    After one request is before the next one: between them only the checkpoint changes (the test of local steps).
    """
    kills = 0
    for number in range(60):
        fault, at = ("kill after", number) if number else ("kill", 1)
        to = f"s3://lake/killed/{number}"
        export = Export(large_bodies, tmp_path / str(number), to, "--batch", "14000", "--partition-by", "routing_key")
        s3.reset(lambda count, fault=fault, at=at: fault if count == at else "")
        s3.victim = process = export.start()
        _, err = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), err
        s3.reset()
        seen = offsets(to)
        assert len(set(seen)) == len(seen)
        if process.returncode == 0:
            break
        kills += 1
        code, summary = export.run()
        assert (code, summary["waiting"]) == (0, 0)
        assert offsets(to) == list(range(14_200))
        totals = json.loads((export.directory / "check" / "state.json").read_text())
        assert (totals["rows"], totals["bytes"], totals["batch"]) == (14_200, 14_002_000, 2)
    print(f"{kills} kills")
    assert kills == 11  # two files of two parts: start, parts, completion; two small files


KILLED_AT_STEP = """
import os, signal, sys
from pathlib import Path
left = int(os.environ["KILL_AT_STEP"])
def counted(real):
    def step(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if left == 1 and real.__name__ in ("replace", "put", "rmtree"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return step
import shutil, obstore
for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir"), (obstore, "put"), (shutil, "rmtree")):
    setattr(owner, name, counted(getattr(owner, name)))
from amqpd.cli.main import main
sys.argv[0] = "amqpctl"
sys.exit(main())
"""


@pytest.mark.slow
def test_kill_of_the_driver_at_each_local_step_loses_and_repeats_nothing(written, tmp_path, s3):
    """Each run is killed one step later than the run before, in its current batch."""
    export = Export(written, tmp_path, "s3://lake/steps", "--batch", "400", "--partition-by", "routing_key")
    kills = 0
    for number in range(2, 60):
        code, _ = export.run(("-c", KILLED_AT_STEP), KILL_AT_STEP=str(number))
        seen = offsets(export.to)
        assert len(set(seen)) == len(seen)
        if code == 0:
            break
        kills += 1
    print(f"{kills} kills")
    assert kills >= 12
    export.run()
    assert offsets(export.to) == list(range(1000, 5000))
    assert not (tmp_path / "check" / "staging").exists()
