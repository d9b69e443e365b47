"""Logs to export, in memory or on disk, and a Spark session if Java is installed.

Spark tests are skipped without Spark or a Java for it. With TEST_REQUIRE_SPARK they fail instead, so that CI must run
them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.export.files import LogFiles, LogSource, QueueName
from amqpd.storage.export.plan import LogPartition, Snapshot
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.storage.export.options import ReadOptions

if find_spec("pyarrow") is None:
    # The extra `test` has it. Without it these modules cannot be imported, and the end of the run says so.
    if os.environ.get("TEST_REQUIRE_SPARK"):
        raise ModuleNotFoundError("pyarrow")
    collect_ignore_glob = ["test_*.py"]

    def pytest_terminal_summary(terminalreporter: Any) -> None:
        terminalreporter.write_line("tests/export left out: pyarrow is missing")


TEST_TIMEOUT_S = 1800
"""The default timeout of a test: on a busy machine a start of Spark takes minutes."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


PERSISTENT = b"\x10\x00\x02"
EU = RecordRoute(b"orders", b"eu.new")


class Memory(LogSource):
    """Simulated files as a source. read_size: small, so that reads cut records at every place. by_name: each read opens
    the file by its name, as over the network; otherwise it stays open.
    """

    by_name = True

    def __init__(self, filesystem: SimulatedFileSystem, queues: Sequence[QueueName], read_size: int = 700) -> None:
        self.filesystem = filesystem
        self.names = list(queues)
        self.read_size = read_size

    def queues(self, vhost: str) -> list[QueueName]:
        return [name for name in self.names if name.vhost == vhost]

    def open(self, queue: QueueName) -> LogFiles:
        return _MemoryFiles(self, queue)


class _MemoryFiles(LogFiles):
    header_size = 100

    def __init__(self, source: Memory, queue: QueueName) -> None:
        self.source = source
        self.read_size = source.read_size
        self.place = queue.place
        self.opened: dict[str, bytes] = {}

    def sizes(self) -> dict[str, int]:
        filesystem = self.source.filesystem
        return {name: filesystem.size(f"{self.place}/{name}") for name in filesystem.listdir(self.place)}

    def size(self, name: str) -> int:
        filesystem, path = self.source.filesystem, f"{self.place}/{name}"
        return filesystem.size(path) if filesystem.exists(path) else -1

    def pread(self, name: str, size: int, position: int) -> bytes:
        if self.source.by_name:
            data = self.source.filesystem.read_file(f"{self.place}/{name}")
        else:
            data = self.opened.get(name) or self.source.filesystem.read_file(f"{self.place}/{name}")
            self.opened[name] = data
        return data[position : position + size]

    def close(self) -> None:
        return


class Lake:
    """One queue's log, and an export's view of it. arguments: of its declaration, as an encoded table."""

    def __init__(
        self, segment_size_bytes: int = 1 << 26, filesystem: Any = None, data_dir: str = "/data", arguments: bytes = b""
    ) -> None:
        self.filesystem = SimulatedFileSystem() if filesystem is None else filesystem
        self.data_dir = data_dir
        self.clock = SimulatedClock()
        self.segment_size_bytes = segment_size_bytes
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.storage = self._storage()
        self.queue_id, self.store = self.storage.create_queue("v", "tasks", "/", arguments=arguments)

    def _storage(self) -> Storage:
        return Storage(
            self.data_dir,
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            clock=self.clock,
            filesystem=self.filesystem,
            segment_size_bytes=self.segment_size_bytes,
            boot_id="1" * 32,
            inline=True,
        )

    def again(self) -> LocalLog:
        """Restart the broker after a kill."""
        self.filesystem = self.filesystem.killed()
        self.posted = []
        self.storage = self._storage()
        self.store = self.storage.open_queue("v", self.queue_id, "tasks", "/")
        self.store.recover()
        return self.store

    def append(
        self, *bodies: bytes, route: RecordRoute = EU, properties: bytes = PERSISTENT, persistent: bool = True
    ) -> None:
        for body in bodies:
            self.store.append_parts(route, properties, body, persistent)

    def turn(self) -> None:
        self.storage.commits.end_of_turn()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)
        for segment in self.store.log.segments[-1:]:
            segment.flush_index()  # the store flushes when there are many entries

    def settled(self) -> None:
        """Write acks to their files and remove emptied segments."""
        self.turn()
        self.storage.commits.flush()
        self.turn()

    @property
    def place(self) -> str:
        return f"{self.data_dir}/vhosts/v/queues/{self.queue_id}"

    @property
    def name(self) -> QueueName:
        return QueueName("/", "tasks", self.queue_id, self.place)

    def source(self, read_size: int = 700) -> LogSource:
        return Memory(self.filesystem, [self.name], read_size)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.source().open(self.name), self.name)

    def options(self, **given: str) -> ReadOptions:
        from amqpd.storage.export.options import ReadOptions, parse

        parsed = parse({"path": "/elsewhere", "queue": "tasks", **given})
        return ReadOptions(**{**vars(parsed), "source": self.source()})

    def rows(self, read_size: int = 700, **given: str) -> list[dict[str, Any]]:
        """Return the rows of a batch query with these options."""
        from amqpd.storage.export import offsets
        from amqpd.storage.export.options import ReadOptions

        options = ReadOptions(**{**vars(self.options(**given)), "source": self.source(read_size)})
        return list(self.read(options, offsets.batch_parts(options)))

    def read(self, options: ReadOptions, parts: Sequence[LogPartition]) -> Iterator[dict[str, Any]]:
        from amqpd.storage.export.arrow import Decoder, PartReader
        from amqpd.storage.export.columns import COLUMNS

        for part in parts:
            with ExitStack() as stack:
                files = options.source.open(part.queue)
                stack.callback(files.close)
                reader = PartReader(
                    files,
                    part,
                    Decoder(part.queue.vhost, part.queue.queue, list(COLUMNS)),
                    batch_rows=options.batch_rows,
                    check_crc=options.check_crc,
                    fail_on_data_loss=options.fail_on_data_loss,
                    settled_may_be_missing=options.is_job,
                )
                for batch in reader.batches():
                    batch.validate(full=True)
                    yield from batch.to_pylist()

    def offsets(self, **given: str) -> list[int]:
        return [row["offset"] for row in self.rows(**given)]

    def live(self) -> list[Record]:
        """Return the records that the store would deliver."""
        return self.store.cursor.read(0, 1 << 60).records

    def names(self, suffix: str) -> list[str]:
        return sorted(name for name in self.filesystem.listdir(self.place) if name.endswith(suffix))

    def data(self, name: str) -> bytearray:
        """Return the bytes of a file, to damage them."""
        data: bytearray = self.filesystem._get(f"{self.place}/{name}").data
        return data


@pytest.fixture
def lake() -> Lake:
    return Lake()


@pytest.fixture(scope="session")
def make_lake() -> Callable[..., Lake]:
    return Lake


@pytest.fixture(scope="session")
def needs_spark() -> None:
    """Skip the test if Spark cannot run, or fail it if TEST_REQUIRE_SPARK is set."""
    try:
        from amqpd.storage.spark.session import prepare

        prepare()
    except Exception as error:
        if os.environ.get("TEST_REQUIRE_SPARK"):
            raise
        pytest.skip(f"no Spark: {error}")


@pytest.fixture(scope="session")
def kafka_source_jars() -> list[Path]:
    """The jars of Spark's Kafka source (`make kafka kafka-spark`), none if they are missing."""
    sys.path.append(str(Path(__file__).parents[1] / "cluster"))
    try:
        from kafka_rig import spark_jars
    except ImportError:  # kafka-python is missing
        return []
    return spark_jars()


@pytest.fixture(scope="session")
def spark(
    needs_spark: None, kafka_source_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Any, None, None]:
    """A Spark session on local[2] with format("amqp"), and format("kafka") if its jars are installed."""
    from amqpd.storage.spark.session import spark_session

    jars = ",".join(map(str, kafka_source_jars))  # before the start of Java, because later sources are not found
    directory = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "local[2]",
        memory="1g",
        quick=True,
        settings={
            "spark.local.dir": str(directory),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            **({"spark.jars": jars} if jars else {}),
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def written(tmp_path: Path) -> Lake:
    """A log on disk: 5000 records in several segments, the first 1000 of them acked."""
    from amqpd.storage.filesystem import FileSystem

    lake = Lake(256 * 1024, FileSystem(), str(tmp_path / "data"))
    for number in range(5000):
        route = RecordRoute(b"orders", b"eu" if number % 2 else b"us")
        lake.append(b"%05d" % number + b"." * 195, route=route)
        if number % 250 == 249:
            lake.turn()
            lake.clock.now_ms += 1000
    lake.store.ack_range(0, 999)
    lake.settled()
    return lake


@pytest.fixture(scope="session")
def s3_server() -> Generator[Any, None, None]:
    """A local S3 with the bucket `lake` (s3_stand_in.py)."""
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip("no moto, flask: the extra `all-tests`, which make test-all installs")
    spec = spec_from_file_location("s3_stand_in", Path(__file__).with_name("s3_stand_in.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.S3StandIn()
    yield server
    server.close()


@pytest.fixture
def s3(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The local S3, with an empty bucket, and its credentials in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    s3_server.reset()
    s3_server.clear()
    return s3_server


@pytest.fixture
def registry() -> Generator[Any, None, None]:
    """A local schema registry (schema_registry_stand_in.py), whose client does not wait between its attempts."""
    from amqpd.storage.export import schema_registry

    spec = spec_from_file_location("schema_registry_stand_in", Path(__file__).with_name("schema_registry_stand_in.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.RegistryStandIn("user:secret word")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_registry, "BACKOFF_S", 0.001)
        yield server
    server.close()


class Killed(BaseException):
    """A simulated kill: it passes every `except Exception`."""


class KillSteps:
    """Functions that count as steps of a batch. One of them ends with a simulated kill: before it, or right after it.

    Attributes:
        count: kills so far.
    """

    Killed = Killed

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._monkeypatch = monkeypatch
        self._left = 0
        self._after = False

    def wrap(self, owner: Any, *names: str) -> None:
        for name in names:
            self._monkeypatch.setattr(owner, name, self._step(getattr(owner, name)))

    def _step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            is_last = self._left == 0
            if is_last and not self._after:
                raise Killed
            try:
                return real(*arguments, **named)
            finally:
                if is_last:
                    raise Killed

        return step

    def run(self, number: int, after: bool, batch: Callable[[], object]) -> None:
        """Call `batch`; its step `number` is killed."""
        self._left, self._after = number, after
        try:
            batch()
        except Killed:
            self.count += 1
        finally:
            self._left = 0


@pytest.fixture
def kill_steps(monkeypatch: pytest.MonkeyPatch) -> KillSteps:
    steps = KillSteps(monkeypatch)
    steps.wrap(os, "fsync")
    steps.wrap(Path, "replace", "mkdir")
    return steps


class PauseSteps:
    """Functions that count as steps of a shared export. At one of them its process is paused, as by SIGSTOP.

    It shows no life then, and other processes work.

    Attributes:
        count: Pauses so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from amqpd.storage.export.shared_checkpoint import LifeThread

        self.count = 0
        self._monkeypatch = monkeypatch
        self._left = 0
        self._after = False
        self._is_paused = False
        self._thread = threading.current_thread()
        self._threads: list[Any] = []  # the first one belongs to the process that is paused
        real_init, real_turn = LifeThread.__init__, LifeThread.turn

        def init(thread: Any, *arguments: Any) -> None:
            self._threads.append(thread)
            real_init(thread, *arguments)

        def turn(thread: Any) -> None:
            if not (self._is_paused and thread is self._threads[0]):
                real_turn(thread)

        monkeypatch.setattr(LifeThread, "__init__", init)
        monkeypatch.setattr(LifeThread, "turn", turn)

    def wrap(self, owner: Any, *names: str) -> None:
        for name in names:
            self._monkeypatch.setattr(owner, name, self._step(getattr(owner, name)))

    def _step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if self._is_paused or threading.current_thread() is not self._thread:
                return real(*arguments, **named)
            self._left -= 1
            is_last = self._left == 0
            if is_last and not self._after:
                self._pause()
            try:
                return real(*arguments, **named)
            finally:
                if is_last and self._after:
                    self._pause()

        return step

    def _pause(self) -> None:
        self._is_paused = True
        try:
            self._meanwhile()
        finally:
            self._is_paused = False
        self.count += 1

    def run(self, number: int, after: bool, job: Callable[[], Any], meanwhile: Callable[[], object]) -> Any:
        """Call `job`, which is paused at its step `number`. Return what it returns."""
        self._left, self._after, self._meanwhile = number, after, meanwhile
        self._threads.clear()
        try:
            return job()
        finally:
            self._left = 0


@pytest.fixture
def pause_steps(monkeypatch: pytest.MonkeyPatch) -> PauseSteps:
    return PauseSteps(monkeypatch)
