"""The server process from outside: start, ready line, refused starts, stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import io
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import amqp
import pamqp.commands as spec
import pamqp.frame
import pika
import pika.exceptions
import pytest

from amqpd import __version__, server
from amqpd._build import is_compiled
from amqpd.config import load
from amqpd.connection import server as amqp_server
from amqpd.logging_config import LogOutput
from amqpd.management import front_end
from amqpd.management.front_end import AdminFrontEnd
from amqpd.management.server import AdminServer
from amqpd.storage.storage import Storage
from amqpd.testing import BrokerFailed, BrokerProcess, embedded, parse_ready_line
from amqpd.testing.broker_fixture import NO_FILE

BUILD = "compiled" if is_compiled() else "interpreted"
COMMAND = [sys.executable, "-P", "-m", "amqpd"]
FREE_PORTS = ["--amqp.port", "0", "--http.port", "0", "--amqp.host", "127.0.0.1"]
HOME = str(Path(__import__("amqpd").__file__).parent.parent)


def environment(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AMQPD_", "RABBITMQ_"))}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [HOME, env.get("PYTHONPATH")]))
    return {**env, **more}


def run(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env=env or environment(),
        cwd=cwd,
    )


def connect(broker: BrokerProcess, user: str = "guest", password: str = "guest", vhost: str = "/") -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, pika.PlainCredentials(user, password))
    )


# -- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_is_the_only_output_and_signal_stops_cleanly(tmp_path: Path, signal_number: signal.Signals) -> None:
    """Standard output has only the ready line; both signals end the process with exit code 0."""
    with subprocess.Popen(
        [*COMMAND, *FREE_PORTS, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = parse_ready_line(line)
        assert ready is not None, line
        assert (ready.version, ready.build, ready.data) == (__version__, BUILD, str(tmp_path / "data"))
        assert set(ready.listeners) == {"amqp", "http"}
        for host, port in ready.listeners.values():  # both ports accept connections once the line is printed
            socket.create_connection((host, port), timeout=30).close()
        process.send_signal(signal_number)
        rest = process.stdout.read()
        assert (process.wait(30), rest) == (0, "")
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0, "others can read the data directory"


def test_version() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.startswith(f"amqpd {__version__} ({BUILD}")
    assert result.stdout.count("\n") == 1


def test_print_settings(tmp_path: Path) -> None:
    """The command prints value and source of each setting; it starts nothing and makes no directory."""
    (tmp_path / "amqpd.toml").write_text("[log]\nlevel = 'warning'\n")
    result = run("--print-settings", "--amqp.port", "5999", env=environment(AMQPD_HTTP__PORT="16000"), cwd=tmp_path)
    assert result.returncode == 0
    found = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for name, value, source in (
        ("amqp.port", "5999", "command line"),
        ("http.port", "16000", "AMQPD_HTTP__PORT"),
        ("log.level", "warning", "amqpd.toml"),
        ("amqp.frame_max", "131072", "default"),
    ):
        assert value in found[name]
        assert source in found[name]
    assert "guest" not in found["default.password"]
    assert [path.name for path in tmp_path.iterdir()] == ["amqpd.toml"]


def test_invalid_settings_fail_with_exit_code_64() -> None:
    result = run("--amqp.port", "70000", "--no.such", "1")
    assert result.returncode == 64
    assert result.stdout == ""
    assert "amqp.port" in result.stderr
    assert "no.such" in result.stderr
    assert "Traceback" not in result.stderr


def refused(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    result = run(*FREE_PORTS, *arguments, env=env)
    assert result.returncode == 69, result.stderr
    assert result.stdout == "", "a ready line of a broker that failed"
    assert "Traceback" not in result.stderr, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("amqpd: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_interpreted_broker_logs_a_warning(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.stop()  # so that its whole log is read
        assert " ready in " not in broker.stderr, "the ready line belongs on standard output"
        assert ("amqpd runs interpreted, several times slower" in broker.stderr) is (not is_compiled()), broker.stderr


@pytest.mark.parametrize("name", ["amqp.port", "http.port"])
def test_port_in_use_is_refused(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problem = refused("--data-dir", str(tmp_path / "data"), f"--{name}", str(port))
    assert problem == (
        f"amqpd: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "stop the program that has this port, or set another one (amqp.port, http.port ...)"
    )


def test_failed_start_ends_its_threads(tmp_path: Path) -> None:
    """One that outlived the event loop would print a traceback at its next wake-up."""
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ["--data-dir", str(tmp_path / "data"), *FREE_PORTS, "--amqp.port", str(taken.getsockname()[1])]
        settings = load(options, NO_FILE).settings
        start = server.serve(settings, time.time(), LogOutput(settings.log), lambda: settings)
        try:
            with pytest.raises(OSError, match="in use"):
                asyncio.run(start)
        finally:
            gc.enable()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"amqpd-selectors"}


@pytest.mark.parametrize("wait_s", [3600.0, 0.01])
async def test_http_server_starts_at_the_first_connection_or_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Its import takes longer than the rest of a start, and brokers of tests often need none."""
    monkeypatch.setattr(server, "REST_LOOK_S", wait_s)
    started = asyncio.Event()
    start_http = AdminFrontEnd.start_http
    monkeypatch.setattr(AdminFrontEnd, "start_http", lambda self: (started.set(), start_http(self)))
    async with embedded(tmp_path) as running:
        path = running.settings.data_dir / "amqpctl.sock"
        if wait_s > 1:
            await asyncio.sleep(0.05)
            assert not started.is_set()
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET /api/whoami HTTP/1.0\r\n\r\n")
            assert b" 200 " in await reader.readline()
            writer.close()
        async with asyncio.timeout(30):
            await started.wait()
    assert not path.exists()


async def test_stop_does_not_start_the_http_server(tmp_path: Path) -> None:
    """Clients can delay a stop by 3 s. A check whether the broker is idle must not come in this time."""
    async with embedded(tmp_path) as running:
        timer = running._idle_timer
        assert timer is not None
        assert not timer.cancelled()
        running.stop()
        await asyncio.sleep(0)
        assert timer.cancelled()


async def test_clients_are_refused_if_the_http_server_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(AdminServer, "start", fail)
    async with embedded(tmp_path) as running:
        path = running.settings.data_dir / "amqpctl.sock"
        reader, writer = await asyncio.open_unix_connection(path)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                assert not await reader.read()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(path)
        assert "the admin API is not available: no room" in caplog.text
        _, writer = await asyncio.open_connection("127.0.0.1", running.port("amqp"))
        writer.close()


async def test_http_server_starts_later_if_no_descriptor_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart, many clients reconnect at once, just when the modules of the HTTP server are read."""
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), ImportError("x.so: Too many open files")]
    create = AdminServer.__init__

    def fail_first(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        create(*arguments)

    monkeypatch.setattr(AdminServer, "__init__", fail_first)
    monkeypatch.setattr(front_end, "RETRY_S", 0.01)
    async with embedded(tmp_path) as running:
        reader, writer = await asyncio.open_unix_connection(running.settings.data_dir / "amqpctl.sock")
        writer.write(b"GET /api/whoami HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(30):
            assert b" 200 " in await reader.readline()
        writer.close()
    assert caplog.text.count("the admin API starts when a descriptor is free: x.so: Too many open files") == 1
    assert "not available" not in caplog.text


async def test_unused_admin_sockets_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REST_LOOK_S", 3600.0)
    async with embedded(tmp_path) as running:
        port = running.port("http")
        path = running.settings.data_dir / "amqpctl.sock"
        assert path.exists()
    assert not path.exists()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


def test_data_directory_in_use_is_refused(amqpd_broker: BrokerProcess) -> None:
    problem = refused("--data-dir", str(amqpd_broker.data_dir))
    assert problem == (
        f"amqpd: data directory {amqpd_broker.data_dir} is in use by another broker; another one: --data-dir DIR"
    )
    connect(amqpd_broker).close()  # the first broker still works


def test_kafka_port_starts_where_warnings_are_errors(tmp_path: Path) -> None:
    """kafka-python reads its definitions with `importlib.resources.read_text`, which is deprecated."""
    pytest.importorskip("kafka")
    with BrokerProcess(tmp_path, settings={"kafka.port": 0}, env={"PYTHONWARNINGS": "error"}) as broker:
        assert broker.kafka_port


@pytest.mark.parametrize("text", ["raise ModuleNotFoundError(name='kafka')", ""], ids=["missing", "version 2"])
def test_kafka_port_without_its_version_of_kafka_python_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kafka" / "protocol").mkdir(parents=True)
    (tmp_path / "kafka" / "__init__.py").write_text(text)
    (tmp_path / "kafka" / "protocol" / "__init__.py").touch()
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), HOME]))
    problem = refused("--data-dir", str(tmp_path / "data"), "--kafka.port", "0", env=env)
    found = re.fullmatch(r"amqpd: kafka\.port needs (\S+): pip install '(\S+)'", problem)
    assert found is not None and found[1] == found[2], problem
    extras = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert [found[1]] == extras["optional-dependencies"]["kafka"]


def test_file_as_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    assert refused("--data-dir", str(tmp_path / "file")) == (
        f"amqpd: {tmp_path}/file: Not a directory; "
        "the broker's user must be able to write the data directory. Another one: --data-dir DIR"
    )


@pytest.mark.slow
def test_metadata_of_another_broker_is_refused(tmp_path: Path) -> None:
    """A broker refuses a metadata database of another broker, which would make every queue unknown."""
    for name in ("one", "two"):
        with BrokerProcess(tmp_path / name):
            pass
    databases = [path for path in (tmp_path / "one").iterdir() if path.name.startswith("metadata")]
    assert databases
    for path in databases:
        (tmp_path / "two" / path.name).write_bytes(path.read_bytes())
    assert "two" in refused("--data-dir", str(tmp_path / "two"))


# -- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_with_clients_that_do_not_answer(tmp_path: Path) -> None:
    """Half a handshake, a silent socket, and a client that does not read: the stop does not wait for them."""
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    sockets = [socket.create_connection(("127.0.0.1", broker.amqp_port)) for _ in range(3)]
    sockets[1].sendall(b"AMQP\x00\x00\x09\x01")
    not_reading = connect(broker)
    channel = not_reading.channel()
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", "kept", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    started = time.monotonic()
    broker.stop(30.0)
    assert time.monotonic() - started < 30
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"\(320, "):
        not_reading.process_data_events(1)
    for sock in sockets:
        sock.close()
    assert "Traceback" not in broker.stderr, broker.stderr

    markers = list((tmp_path / "data").rglob("*clean-shutdown*"))
    assert len(markers) == 2  # of the queue's log and of the audit log
    broker.start()
    new_connection = connect(broker)
    assert new_connection.channel().queue_declare("kept", passive=True).method.message_count == 100
    assert "recover" not in broker.stderr.lower(), broker.stderr
    new_connection.close()
    broker.close()


async def test_stop_does_not_wait_for_unopened_or_closed_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop waits neither for a partial handshake nor for a client that keeps its socket after connection.close.
    The wait would be ten minutes.
    """
    monkeypatch.setattr(amqp_server, "STOP_WAIT_S", 600.0)
    client_methods = [
        spec.Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest"),
        spec.Connection.TuneOk(channel_max=1, frame_max=131072, heartbeat=0),
        spec.Connection.Open(),
        spec.Connection.Close(reply_code=200, reply_text="bye", class_id=0, method_id=0),
    ]
    async with asyncio.timeout(60):
        async with embedded(tmp_path, settings={"amqp.handshake_timeout_s": 600}) as server:
            start_reader, partial = await asyncio.open_connection("127.0.0.1", server.port("amqp"))
            partial.write(b"AMQP\x00\x00\x09\x01")
            await start_reader.readexactly(1)  # connection.start
            close_reader, closed = await asyncio.open_connection("127.0.0.1", server.port("amqp"))
            closed.write(
                b"AMQP\x00\x00\x09\x01" + b"".join([pamqp.frame.marshal(method, 0) for method in client_methods])
            )
            await close_reader.readuntil(pamqp.frame.marshal(spec.Connection.CloseOk(), 0))
        for writer in (partial, closed):
            writer.close()


async def test_removed_data_directory_stops_the_broker_and_another_one_there_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are still open: it would confirm messages that no start finds."""
    data_dir = tmp_path / "data"
    async with asyncio.timeout(60), embedded(data_dir) as server:
        for _ in range(2):
            server.check_data_directory()
            data_dir.rename(tmp_path / "old")
            server.check_data_directory()
            (tmp_path / "old").rename(data_dir)
        assert not server.failed, "a backup may move it for a moment"
        server.check_data_directory()
        data_dir.rename(tmp_path / "old")
        async with embedded(data_dir):
            files = sorted(data_dir.iterdir())
            server.check_data_directory()
            server.check_data_directory()
            await server.stopped.wait()
            assert sorted(data_dir.iterdir()) == files
    assert f"the broker stops: {data_dir}, or .lock in it, was removed, moved or replaced" in caplog.text


# -- the first start -------------------------------------------------------------------------------------------------


def test_first_user_and_vhost(tmp_path: Path) -> None:
    """RABBITMQ_DEFAULT_* create the first user and vhost; later starts change nothing."""
    first = {"RABBITMQ_DEFAULT_USER": "ada", "RABBITMQ_DEFAULT_PASS": "secret", "RABBITMQ_DEFAULT_VHOST": "works"}
    with BrokerProcess(tmp_path / "data", env=first) as broker:
        connect(broker, "ada", "secret", "works").close()
        for user, password, vhost in (("guest", "guest", "works"), ("ada", "guest", "works"), ("ada", "secret", "/")):
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                connect(broker, user, password, vhost)
    later = {"RABBITMQ_DEFAULT_USER": "eve", "RABBITMQ_DEFAULT_PASS": "other", "RABBITMQ_DEFAULT_VHOST": "new"}
    with BrokerProcess(tmp_path / "data", env=later) as broker:
        connect(broker, "ada", "secret", "works").close()
        for user, password, vhost in (("eve", "other", "new"), ("eve", "other", "works"), ("ada", "other", "works")):
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                connect(broker, user, password, vhost)


# -- server properties and compatibility -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compatible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("compatible"), settings={"compat": "rabbitmq-3.12"}) as broker:
        yield broker


def product_and_version(broker: BrokerProcess) -> tuple[object, object]:
    connection = connect(broker)
    properties = connection._impl.server_properties
    connection.close()
    return properties["product"], properties["version"]


def test_product_and_version_in_server_properties(amqpd_broker: BrokerProcess) -> None:
    assert product_and_version(amqpd_broker) == ("amqpd", __version__)


def test_compat_setting_changes_product_and_version(compatible: BrokerProcess) -> None:
    assert product_and_version(compatible) == ("RabbitMQ", "3.12.0")


def unacked_at_once(broker: BrokerProcess, prefetches: list[int]) -> list[int]:
    """Return how many deliveries two consumers of one py-amqp channel have, after each prefetch.

    Ten messages are ready; none is acked.
    """
    deliveries: list[object] = []
    counts = []
    with amqp.Connection(f"127.0.0.1:{broker.amqp_port}", "guest", "guest") as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        for _ in range(10):
            channel.basic_publish(amqp.Message("x"), "", queue)
        channel.basic_qos(0, prefetches[0], False)
        for _ in range(2):
            channel.basic_consume(queue, callback=deliveries.append)
        for prefetch in [None, *prefetches[1:]]:
            if prefetch is not None:
                channel.basic_qos(0, prefetch, False)
            channel.queue_declare(queue, passive=True)  # its reply comes after all due deliveries
            counts.append(len(deliveries))
    return counts


def test_py_amqp_qos_is_one_window_for_the_channel(amqpd_broker: BrokerProcess) -> None:
    """py-amqp reads global=false as the specification does, and raises it under running consumers."""
    assert unacked_at_once(amqpd_broker, [3, 5, 1, 8]) == [3, 5, 5, 8]


def test_py_amqp_qos_for_each_consumer_is_a_window_of_its_own(amqpd_broker: BrokerProcess) -> None:
    """nameko sends one basic.qos for each consumer, and then consumes. Its unacked requests wait for replies to
    another consumer of the channel, which need credit of their own.
    """
    deliveries: dict[str, list[object]] = {"requests": [], "replies": []}
    with amqp.Connection(f"127.0.0.1:{amqpd_broker.amqp_port}", "guest", "guest") as connection:
        channel = connection.channel()
        queues = {name: channel.queue_declare(exclusive=True).queue for name in deliveries}
        for _ in queues:
            channel.basic_qos(0, 2, False)
        for name, queue in queues.items():
            channel.basic_consume(queue, callback=deliveries[name].append)
        for queue in queues.values():
            for _ in range(3):
                channel.basic_publish(amqp.Message("x"), "", queue)
        channel.queue_declare(queues["replies"], passive=True)  # its reply comes after all due deliveries
        assert [len(each) for each in deliveries.values()] == [2, 2]


def test_py_amqp_global_qos_is_one_window_however_often_it_is_sent(amqpd_broker: BrokerProcess) -> None:
    deliveries: list[object] = []
    with amqp.Connection(f"127.0.0.1:{amqpd_broker.amqp_port}", "guest", "guest") as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        for _ in range(6):
            channel.basic_publish(amqp.Message("x"), "", queue)
        for _ in range(2):
            channel.basic_qos(0, 2, True)
        for _ in range(2):
            channel.basic_consume(queue, callback=deliveries.append)
        channel.basic_qos(0, 3, False)
        channel.queue_declare(queue, passive=True)  # its reply comes after all due deliveries
        assert len(deliveries) == 3


def test_py_amqp_qos_towards_rabbitmq(compatible: BrokerProcess) -> None:
    """Towards RabbitMQ, py-amqp knows that global=false is per consumer, for later consumers."""
    assert unacked_at_once(compatible, [3, 5]) == [6, 6]


# -- how long a start takes ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.compiled_only
@pytest.mark.skipif(not is_compiled(), reason="the figure is the compiled package's")
def test_start_time_is_reported_and_short(tmp_path: Path) -> None:
    """The ready line has the true start time. In processor time a start and a stop take at most three times the 600
    ms that `make bench` allows a start (median of 20).
    """
    took_s = []
    for _ in range(3):
        started = time.monotonic()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with BrokerProcess(tmp_path / "data") as broker:
            wall_ms = (time.monotonic() - started) * 1000
            assert broker.ready is not None
            assert broker.ready.took_ms <= wall_ms + 1
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took_s) < 1.8, took_s


@pytest.mark.parametrize("name", ["format", "boot-id", ".lock", "instance-id", "amqpctl.sock", "metadata.sqlite"])
def test_directory_in_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    result = run("--data-dir", str(tmp_path), *FREE_PORTS)
    assert result.returncode == 69
    assert str(tmp_path / name) in result.stderr


def test_start_as_root_on_the_data_of_another_user_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That user's next broker cannot read the files that root has written, so that queues are down."""
    assert server._owner_warning(tmp_path) == ""  # a broker without files
    (tmp_path / ".lock").touch()
    assert server._owner_warning(tmp_path) == ""
    if os.geteuid() == 0:
        os.chown(tmp_path / ".lock", 65534, -1)
    owner = (tmp_path / ".lock").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = server._owner_warning(tmp_path)
    assert f"{tmp_path} belongs to user {owner}" in found
    assert f"chown -R {owner} {tmp_path}" in found


def test_path_that_standard_output_cannot_encode_is_escaped(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "dä", env={"PYTHONIOENCODING": "ascii"}) as broker:
        assert broker.ready is not None
        assert broker.ready.data == str(tmp_path / "d\\xe4")


def test_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match=r"No locks available: '\S*/\.lock'"):
        Storage(tmp_path, post=lambda *_: None, inline=True)


def test_failed_start_shows_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="exit code 69"):
        BrokerProcess(tmp_path / "data", settings={"metadata.url": "nosuchdb://x/y"}).start()


def test_login_of_a_connection_that_was_reset_before_it_was_accepted(tmp_path: Path) -> None:
    """Its address is unknown, so it does not count as loopback."""
    with BrokerProcess(tmp_path) as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with socket.create_connection(("127.0.0.1", broker.http_port)) as sock:
                sock.sendall(b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        while "login from unknown refused: user 'guest' can only connect via a loopback" not in broker.stderr:
            time.sleep(0.01)
        broker.stop()


def test_low_limit_of_open_files_is_an_error_with_the_limit(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", 'ulimit -n 20; exec "$@"', "sh", *COMMAND, "--data-dir", str(tmp_path), *FREE_PORTS]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment())
    assert ended.returncode == 69
    assert ended.stderr.startswith("amqpd: the limit of open files is 20, and amqpd needs 64: ")
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_stream_without_an_encoding_gets_the_ready_line() -> None:
    """A program that runs `amqpd.__main__.main` may have redirected standard output to a StringIO."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert server._print("amqpd is ready \udcff")
    assert output.getvalue() == "amqpd is ready \\udcff\n"
