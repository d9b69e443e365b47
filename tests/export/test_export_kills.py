"""Kills of the export, of the broker, of the object store and of the catalog, while messages arrive: each offset once.

Rejected messages count, too. TEST_EXPORT_KILLS is the number of kills of each (default 1), TEST_CRASH_SEED the seed:

    TEST_EXPORT_KILLS=20 .venv/bin/python -P -m pytest tests/export/test_export_kills.py -s -m ""
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pika
import pyarrow.parquet as pq
import pytest

from amqpd.protocol import properties as p
from amqpd.storage.export.publisher import PublishError, SinkPublisher, SinkTarget
from amqpd.testing import BrokerProcess

obstore = pytest.importorskip("obstore")
pytest.importorskip("pyiceberg")

pytestmark = [pytest.mark.external, pytest.mark.slow]

KILLS = int(os.environ.get("TEST_EXPORT_KILLS", "1"))
BAD = 7
"""Every so many messages, one does not fit."""
WAIT_S = 300.0


class Publisher(threading.Thread):
    """Publishes numbered messages with confirms, also across kills of the broker.

    Attributes:
        confirmed: Numbers that the broker has confirmed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._target = SinkTarget.from_url(url)
        self._stopped = threading.Event()
        self.confirmed: list[int] = []
        self.start()

    def run(self) -> None:
        persistent = p.encode_properties(p.Properties(delivery_mode=2))
        number = 0
        while not self._stopped.is_set():
            publisher = None
            try:
                publisher = SinkPublisher(self._target)
                while not self._stopped.wait(0.1):
                    numbers = list(range(number, number + 40))
                    number += 40
                    for each in numbers:
                        body = b"no json %d" if each % BAD == 0 else b'{"n": %d, "text": "some"}'
                        publisher.publish("", "orders", persistent, body % each)
                    publisher.finish()
                    self.confirmed += numbers
            except (PublishError, OSError):
                self._stopped.wait(0.1)
            finally:
                if publisher is not None:
                    publisher.close()

    def stop(self) -> None:
        self._stopped.set()
        self.join()


class Export:
    """Runs of `amqpctl export --follow`, one after the other."""

    def __init__(self, broker, directory, to, *arguments, **environment):
        schema = directory / "schema.json"
        schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}}')
        root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "PYTHONPATH": path, **environment}
        self.checkpoint = directory / "check"
        self._sources = (
            ["--data-dir", str(broker.data_dir)],
            ["--uri", broker.http_url.replace("://", "://guest:guest@")],
        )
        self._arguments = [
            "--formatter", "json", "export", "--queue", "orders", "--name", "nightly", "--to", to, "--checkpoint",
            str(self.checkpoint), "--batch", "400", "--payload", "json", "--payload-schema", str(schema), *arguments,
        ]  # fmt: skip
        self._log = directory / "export.log"
        self.ends: Counter[int] = Counter()
        self.runs = 0
        self.process: subprocess.Popen[bytes] | None = None

    def command(self):
        """Return the command: it reads the files of the queue and, each second time, over the admin API."""
        self.runs += 1
        return [sys.executable, "-P", "-m", "amqpd.cli", *self._sources[self.runs % 2], *self._arguments]

    def ensure(self):
        """Start it, if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        self.reap()
        with self._log.open("ab") as log:
            command = [*self.command(), "--follow", "--min-batch-bytes", "1"]
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def reap(self):
        if self.process is not None:
            code = self.process.wait()
            self.ends[code] += 1
            assert code in (0, 69, -signal.SIGKILL), self._log.read_text()[-3000:]
            assert "Traceback" not in self._log.read_text(), self._log.read_text()[-5000:]
            self.process = None

    def kill(self):
        self.process.kill()
        self.reap()

    def batch(self):
        try:
            return json.loads((self.checkpoint / "state.json").read_text())["batch"]
        except FileNotFoundError:
            return 0

    def progress(self):
        """Wait until a batch is committed."""
        goal, until = self.batch() + 1, time.monotonic() + WAIT_S
        while self.batch() < goal:
            assert time.monotonic() < until, self._log.read_text()[-3000:]
            self.ensure()
            time.sleep(0.02)

    def finish(self):
        if self.process is not None:
            self.process.terminate()
            self.reap()
        command = [*self.command(), "--batch", "100000"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def stand_in(name):
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("target", ["iceberg", "files"])
def test_kills_lose_and_repeat_nothing(tmp_path, s3, target):
    seed = int(os.environ.get("TEST_CRASH_SEED", "29"))
    rng = random.Random(seed)
    victims = ["export", "broker", "store"] + ["catalog"] * (target == "iceberg")
    rest = None
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        connection.channel().queue_declare("orders", durable=True, arguments={"x-export": "nightly"})
        connection.close()
        if target == "iceberg":
            given = {"s3.endpoint": s3.direct_url, "s3.region": "us-east-1"}
            rest = stand_in("rest_catalog_stand_in").RestCatalogStandIn(tmp_path, "s3://lake/warehouse", **given)
            environment = {
                "PYICEBERG_CATALOG__REST__TYPE": "rest",
                "PYICEBERG_CATALOG__REST__URI": rest.url,
                "PYICEBERG_CATALOG__REST__S3__ENDPOINT": s3.url,
                "PYICEBERG_CATALOG__REST__S3__REGION": "us-east-1",
            }
            export = Export(broker, tmp_path, "iceberg://rest/shop.orders", **environment)
        else:
            export = Export(broker, tmp_path, "s3://lake/files")
        publisher = Publisher(broker.url)
        try:
            export.progress()
            for number in range(KILLS * len(victims)):
                hit(victims[number % len(victims)], rng, broker, s3, rest, export)
                export.progress()
            publisher.stop()
            summary = export.finish()
        finally:
            publisher.stop()
            if export.process is not None:
                export.process.kill()
            if rest is not None:
                rest.close()
    assert summary["waiting"] == 0
    found, numbers = stored(tmp_path, s3, target)
    end = json.loads((export.checkpoint / "state.json").read_text())["position"]["//orders"]["offset"]
    assert Counter(found) == Counter(range(end))
    assert set(publisher.confirmed) <= set(numbers)
    print(
        f"seed {seed}: {KILLS} kills each of {', '.join(victims)}; {export.runs} runs, ends {dict(export.ends)}, "
        f"{summary['batch']} batches, {end:,} offsets"
    )


def hit(victim, rng, broker, s3, rest, export):
    """Kill one part at a random moment, and start it again."""
    export.ensure()
    time.sleep(rng.random() * 1.5)
    if victim == "export":
        export.kill()
    elif victim == "broker":
        broker.kill()
        time.sleep(rng.random())
        broker.start()
    elif victim == "store":
        fault = rng.choice(["hang up", "hang up after", "500", "500 after"])
        s3.reset(lambda number: fault)
        time.sleep(rng.random() * 3)
        s3.reset()
    else:
        if rng.random() < 0.5:  # killed between a commit and its answer
            until = time.monotonic() + WAIT_S
            rest.reset(lambda number: "hang up after" if number == 1 else "")
            while not rest.writes and time.monotonic() < until:
                export.ensure()
                time.sleep(0.01)
            assert rest.writes
        rest.close()
        time.sleep(rng.random())
        rest.start()
        rest.reset()


def stored(tmp_path, s3, target):
    """Return the offsets and the numbers of all stored messages."""
    store = obstore.store.from_url("s3://lake", client_options={"allow_http": True})
    names = [each["path"] for chunk in obstore.list(store) for each in chunk]
    offsets, numbers = [], []
    for name in names:
        if "/_rejected/" in name:
            rows = [json.loads(line) for line in bytes(obstore.get(store, name).bytes()).splitlines()]
            offsets += [row["offset"] for row in rows]
            numbers += [int(row["value"].removeprefix("no json ")) for row in rows]
    if target == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        where = {"s3.endpoint": s3.direct_url, "s3.region": "us-east-1"}
        catalog = SqlCatalog("stand-in", uri=f"sqlite:///{tmp_path / 'rest.db'}", **where)
        tables = [catalog.load_table("shop.orders").scan().to_arrow()]
        catalog.close()
    else:
        files = [bytes(obstore.get(store, name).bytes()) for name in names if name.endswith(".parquet")]
        tables = [pq.read_table(io.BytesIO(data)) for data in files]
    for table in tables:
        offsets += table.column("offset").to_pylist()
        numbers += [row["n"] for row in table.column("payload").to_pylist()]
    return offsets, numbers
