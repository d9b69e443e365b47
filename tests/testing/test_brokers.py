"""Brokers in a thread and in a controlled process: starts, stops, vhosts, ports, clock and faults."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import aio_pika
import pika
import pytest

from amqpd.testing import (
    BrokerFailed,
    BrokerFixture,
    BrokerProcess,
    BrokerThread,
    NotRunning,
    NotSupported,
    Recorder,
    Vhost,
    thread,
)
from amqpd.testing.broker_fixture import environment, options_of
from amqpd.testing.control import ThreadControl

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(channel, queue: str, body: bytes) -> None:
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", queue, body, PERSISTENT)


class TestThread:
    @pytest.mark.parametrize("memory", [False, True])
    def test_messages_survive_a_restart(self, open_channel: Callable, memory: bool, tmp_path: Path) -> None:
        with BrokerThread(tmp_path, memory=memory) as broker:
            url, vhost = broker.url, broker.add_vhost()
            channel = open_channel(vhost.url)
            publish(channel, "orders", b"safe")
            channel.connection.close()
            broker.restart()
            assert broker.url == url
            assert open_channel(vhost.url).basic_get("orders", auto_ack=True)[2] == b"safe"
            assert memory is not (tmp_path / "vhosts").exists()

    def test_data_in_memory_leaves_no_file(self, open_channel: Callable) -> None:
        broker = BrokerThread(memory=True)
        with broker:
            publish(open_channel(broker.url), "orders", bytes(100_000))
            assert sum(path.stat().st_size for path in broker.data_dir.rglob("*") if path.is_file()) < 1000
        assert not broker.data_dir.exists()
        assert not broker.running

    def test_closed_broker_starts_empty(self, tmp_path: Path) -> None:
        broker = BrokerThread(tmp_path, memory=True)
        with broker:
            broker.add_vhost("kept")
        with broker:
            assert [each["name"] for each in broker.api("GET", "/api/vhosts")] == ["/"]  # type: ignore[attr-defined]

    def test_cannot_be_killed_nor_started_twice(self, thread_broker: BrokerThread) -> None:
        with pytest.raises(NotSupported, match="use a BrokerProcess"):
            thread_broker.kill()
        with pytest.raises(RuntimeError, match="already running"):
            thread_broker.start()

    def test_failed_start_has_the_reason(self, tmp_path: Path) -> None:
        broker = BrokerThread(tmp_path, memory=True, settings={"amqp.prot": 1})
        with pytest.raises(BrokerFailed, match="did not start: unknown setting --amqp.prot; did you mean"):
            broker.start()
        assert not broker.running
        with pytest.raises(RuntimeError, match="not running"):
            broker.record()
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = BrokerThread(tmp_path, memory=True, settings={"amqp.port": other.getsockname()[1]})
            with pytest.raises(BrokerFailed, match="in use"):
                taken.start()
        with BrokerThread(tmp_path), pytest.raises(BrokerFailed, match=f"data directory {tmp_path} is in use by"):
            BrokerThread(tmp_path).start()

    @pytest.mark.parametrize("kind", [BrokerThread, BrokerProcess])
    def test_failed_start_leaves_no_temporary_directory(self, kind: type[BrokerThread | BrokerProcess]) -> None:
        broker = kind(memory=True, settings={"amqp.prot": 1})
        with pytest.raises(BrokerFailed), broker:
            pass
        assert not broker.data_dir.exists()

    def test_user_of_the_settings(self, open_channel: Callable) -> None:
        first = {"default.user": "ann@shop", "default.password": "p/w", "default.vhost": "shop"}
        with BrokerThread(memory=True, settings=first) as broker, broker.vhost() as vhost:
            assert broker.url == f"amqp://ann%40shop:p%2Fw@127.0.0.1:{broker.amqp_port}/shop"
            for url in (broker.url, vhost.url):
                publish(open_channel(url), "orders", b"4711")
            assert broker.api("GET", "/api/whoami")["name"] == "ann@shop"

    def test_relative_directory_stays_after_chdir(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with BrokerThread("data") as broker:
            monkeypatch.chdir("/")
            vhost = broker.add_vhost("kept").name
            assert vhost in broker.ctl("-q", "list_vhosts").stdout
            broker.restart()
            assert vhost in broker.server.broker.vhosts

    @pytest.mark.parametrize("kind", ["BrokerThread", "BrokerProcess"])
    def test_end_of_the_test_run_leaves_no_temporary_directory(self, kind: str) -> None:
        """Also without `close`. A fork of the test process leaves the directory alone."""
        program = (
            "import atexit, os\n"
            f"from amqpd.testing import {kind}\n"
            f"broker = {kind}(memory=True)\n"
            "print(broker.data_dir)\n"
            "if not os.fork():\n"
            "    atexit._run_exitfuncs()\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "assert broker.data_dir.exists()\n"
        )
        run = subprocess.run(
            [sys.executable, "-P", "-c", program], env=environment({}), capture_output=True, text=True, check=True
        )
        assert not Path(run.stdout.splitlines()[0]).exists()

    def test_unknown_port_has_the_reason(self, thread_broker: BrokerThread, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"no listener for kafka: see the setting kafka\.port"):
            _ = thread_broker.kafka_port
        with pytest.raises(RuntimeError, match="the broker was not started"):
            _ = BrokerProcess(tmp_path).url

    def test_start_that_takes_too_long_leaves_no_broker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make, held = thread._server, threading.Event()
        monkeypatch.setattr(thread, "_server", lambda *given: held.wait(60) and make(*given))
        before = set(threading.enumerate())
        broker = BrokerThread(tmp_path, memory=True, start_timeout_s=0.0)
        with pytest.raises(BrokerFailed, match="was not ready within 0 s"):
            broker.start()
        (started,) = [each for each in set(threading.enumerate()) - before if each.name == "amqpd-broker"]
        held.set()
        started.join(60)
        assert not started.is_alive()

    def test_broker_that_takes_no_command_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> None:
            raise BrokerFailed("drop_connections: no answer")

        broker = BrokerThread(memory=True).start()
        monkeypatch.setattr(broker.faults, "drop_connections", fail)
        broker.close()
        assert not broker.running
        assert not broker.data_dir.exists()

    def test_command_that_is_not_answered_has_the_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def command(name: str, arguments: dict[str, object]) -> None:
            raise TimeoutError

        monkeypatch.setattr("amqpd.testing.control.COMMAND_TIMEOUT_S", 0.01)
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            control = ThreadControl(loop, command)
            with pytest.raises(BrokerFailed, match="record: the broker did not answer within 0.01 s"):
                control.call("record")  # the loop does not run
        with pytest.raises(BrokerFailed, match="record: the broker has ended"):
            control.call("record")

    def test_server_can_be_inspected(self, thread_broker: BrokerThread) -> None:
        async def names() -> list[str]:
            return list(thread_broker.server.broker.vhosts)

        assert "/" in asyncio.run_coroutine_threadsafe(names(), thread_broker.loop).result(60)

    def test_kafka_listens_beside_amqp(self, thread_broker: BrokerThread, tmp_path: Path) -> None:
        pytest.importorskip("kafka")
        with BrokerThread(tmp_path, memory=True, settings={"kafka.port": 0}) as broker:
            port = broker.kafka_port
            assert broker.kafka_bootstrap == f"127.0.0.1:{port}"
            broker.restart()
            assert broker.kafka_port == port
            socket.create_connection(("127.0.0.1", port), 60).close()

    async def test_asyncio(self, tmp_path: Path) -> None:
        async with BrokerThread(tmp_path, memory=True) as broker:
            recorder = broker.record()
            async with await aio_pika.connect(broker.url) as connection:
                channel = await connection.channel()
                queue = await channel.declare_queue("orders")
                await channel.default_exchange.publish(aio_pika.Message(b"4711"), "orders")
                assert (await queue.get(no_ack=True)).body == b"4711"
            recorder.assert_delivered(1, body=b"4711")
        assert not broker.running

    def test_restart_ends_faults_and_keeps_the_clock(self, open_channel: Callable, tmp_path: Path) -> None:
        with BrokerThread(tmp_path, memory=True) as broker:
            broker.clock.advance(3600)
            with broker.faults.full_disk():
                broker.stop()
            broker.start()
            assert alarms(broker) == []
            publish(open_channel(broker.url), "orders", b"1")
            broker.clock.advance(1)
            assert broker.clock.offset_s == 3601


@pytest.mark.parametrize("kind", [BrokerThread, pytest.param(BrokerProcess, marks=pytest.mark.slow)])
def test_file_of_another_broker_is_not_read(
    kind: type[BrokerThread | BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("amqpd.toml").write_text(f'[metadata]\nurl = "sqlite:///{tmp_path}/other.db"\n', "utf-8")
    with kind(tmp_path / "data"):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["amqpd.toml", "data"]


def test_lists_of_settings_are_options() -> None:
    options = options_of({"auth.mechanisms": ["PLAIN", "EXTERNAL"], "amqp.tls.verify_peer": True}, {})
    assert options[-2:] == ["--auth.mechanisms=PLAIN,EXTERNAL", "--amqp.tls.verify-peer=true"]


def test_import_is_cheap() -> None:
    """pytest imports the package in every environment with amqpd."""
    text = "import sys, amqpd.testing; print({'asyncio', 'http.client', 'amqpd.server', 'pytest'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-P", "-c", text], env=environment({}), text=True) == "set()\n"


class TestVhosts:
    def test_vhost_ends_with_its_block(self, thread_broker: BrokerThread, open_channel: Callable) -> None:
        with thread_broker.vhost() as vhost:
            channel = open_channel(vhost.url)
            channel.queue_declare("orders")
        with pytest.raises(pika.exceptions.AMQPError):
            open_channel(vhost.url)
        with pytest.raises(BrokerFailed, match="delete_vhost: there is no vhost"):
            thread_broker.delete_vhost(vhost.name)

    def test_amqpctl(self, thread_broker: BrokerThread, vhost: Vhost) -> None:
        listed = thread_broker.ctl("-q", "list_vhosts", "--no-table-headers")
        assert (listed.returncode, vhost.name in listed.stdout.split()) == (0, True), listed.stderr


class TestClock:
    def test_time_to_live(self, thread_broker: BrokerThread, channel, recorder: Recorder) -> None:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 3_600_000}
        channel.queue_declare("dead")
        for durable in (True, False):
            name = f"orders-{durable}"
            channel.queue_declare(name, durable=durable, arguments=dead)
            channel.basic_publish("", name, b"1", PERSISTENT if durable else None)
        thread_broker.clock.advance(timedelta(minutes=59))
        recorder.assert_dead_lettered(0)
        thread_broker.clock.advance(61)
        recorder.assert_dead_lettered(2, reason="expired", timeout_s=60)

    def test_queue_expires(self, thread_broker: BrokerThread, channel) -> None:
        channel.queue_declare("short", arguments={"x-expires": 600_000})
        thread_broker.clock.advance(601)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("short", passive=True)

    def test_delayed_message(self, thread_broker: BrokerThread, channel, recorder: Recorder) -> None:
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "later")
        channel.basic_consume("orders", lambda *_: None, auto_ack=True)
        delayed = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 86_400_000})
        channel.basic_publish("later", "", b"1", delayed)
        (message,) = recorder.assert_published(1)
        assert message.is_routed and message.describe().endswith("to no queue yet")
        recorder.assert_unroutable(0)
        thread_broker.clock.advance(timedelta(hours=23))
        recorder.assert_delivered(0)
        thread_broker.clock.advance(timedelta(hours=1))
        recorder.assert_delivered(1, queue="orders", timeout_s=60)

    def test_consumer_timeout_and_no_heartbeat(self, thread_broker: BrokerThread, channel, recorder: Recorder) -> None:
        channel.queue_declare("orders", durable=True, arguments={"x-consumer-timeout": 60_000})
        channel.basic_publish("", "orders", b"1")
        channel.basic_consume("orders", lambda *_: None)
        recorder.assert_delivered(1, timeout_s=60)
        thread_broker.clock.advance(59)
        assert channel.basic_get("orders") == (None, None, None)
        thread_broker.clock.advance(17)  # the broker looks at an eighth of the timeout
        method, _, _ = channel.basic_get("orders")
        assert method.redelivered
        assert channel.connection.is_open, "a heartbeat follows the machine's clock"

    def test_clock_does_not_go_back(self, thread_broker: BrokerThread) -> None:
        before = thread_broker.clock.offset_s
        with pytest.raises(ValueError, match="cannot go back"):
            thread_broker.clock.advance(-1)
        assert thread_broker.clock.offset_s == before


class TestFaults:
    def test_dropped_connections(self, thread_broker: BrokerThread, vhost: Vhost, open_channel: Callable) -> None:
        here, elsewhere = open_channel(vhost.url), open_channel(thread_broker.url)
        assert thread_broker.faults.drop_connections(vhost.name) == 1
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            here.queue_declare("orders")
        elsewhere.queue_declare("orders")
        assert open_channel(vhost.url).is_open

    def test_dropped_kafka_clients(self, tmp_path: Path) -> None:
        kafka = pytest.importorskip("kafka")
        with BrokerThread(tmp_path, memory=True, settings={"kafka.port": 0}) as broker:
            clients = [kafka.KafkaAdminClient(bootstrap_servers=broker.kafka_bootstrap) for _ in range(3)]
            for client in clients:
                client.list_topics()
            assert broker.faults.drop_connections("/") >= len(clients)
            for client in clients:
                client.close()

    def test_slow_disk_delays_confirms(self, thread_broker: BrokerThread, channel) -> None:
        channel.queue_declare("orders", durable=True)
        with thread_broker.faults.slow_disk(0.4):
            began = time.monotonic()
            channel.basic_publish("", "orders", b"1", PERSISTENT)
            assert time.monotonic() - began >= 0.4

    def test_full_disk_raises_the_alarm_and_ends(self, thread_broker: BrokerThread, channel) -> None:
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"1", PERSISTENT)
        with thread_broker.faults.full_disk():
            assert alarms(thread_broker) == ["low on disk"]
        assert alarms(thread_broker) == []
        channel.basic_publish("", "orders", b"2", PERSISTENT)

    def test_write_on_full_disk_is_nacked(self, thread_broker: BrokerThread, channel) -> None:
        channel.queue_declare("orders", durable=True)
        disk = thread_broker.server.storage.filesystem
        disk.is_full = True  # type: ignore[attr-defined]  # without the alarm, which would block the publisher first
        try:
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "orders", b"1", PERSISTENT)
        finally:
            disk.is_full = False  # type: ignore[attr-defined]

    def test_alarm_blocks_until_its_block_ends(self, thread_broker: BrokerThread) -> None:
        with thread_broker.faults.alarm("memory"):
            assert alarms(thread_broker) == ["low on memory"]
        assert alarms(thread_broker) == []


def alarms(broker: BrokerFixture) -> list[str]:
    status = broker.api("GET", "/api/amqpd/status")
    return list(status["alarms"])  # type: ignore[index]


class TestProcess:
    def test_broker_without_control_names_the_remedy(self, tmp_path: Path) -> None:
        broker = BrokerProcess(tmp_path)
        for call in (broker.record, broker.faults.drop_connections, lambda: broker.clock.advance(1)):
            with pytest.raises(NotSupported, match=r"use BrokerProcess\(control=True\), or a BrokerThread"):
                call()
        with pytest.raises(RuntimeError, match="not running"):
            BrokerProcess(tmp_path, control=True).record()
        with pytest.raises(ValueError, match="do not go with command"):
            BrokerProcess(tmp_path, command=["amqpd"], memory=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("memory", [False, True])
    def test_commands_over_the_socket(self, open_channel: Callable, memory: bool, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, control=True, memory=memory) as broker:
            vhost = broker.add_vhost()
            recorder = broker.record(vhost)
            channel = open_channel(vhost.url)
            channel.queue_declare("dead")
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 60_000}
            channel.queue_declare("orders", durable=True, arguments=dead)
            channel.basic_publish("", "orders", b"\x00\xff", pika.BasicProperties(headers={"a": 1}))
            (message,) = recorder.assert_published(1, headers={"a": 1}, timeout_s=60)
            assert (message.body, message.queues) == (b"\x00\xff", ("orders",))
            broker.clock.advance(61)
            recorder.assert_dead_lettered(1, timeout_s=60)
            with pytest.raises(BrokerFailed, match="record: ValueError: there is no vhost 'nosuch'"):
                broker.record("nosuch")
            assert broker.faults.drop_connections() == 1
            with broker.vhost(), broker.faults.slow_disk(0.01):
                broker.kill()
                with pytest.raises(NotRunning):
                    recorder.published()
                broker.start()
            broker.clock.advance(0)
            assert broker.clock.offset_s == 61
            if memory:
                assert [each["name"] for each in broker.api("GET", "/api/vhosts")] == ["/"]  # type: ignore[attr-defined]
            else:
                with pytest.raises(BrokerFailed, match="started again, call record again"):
                    recorder.published()
                assert open_channel(vhost.url).queue_declare("orders", passive=True)

    @pytest.mark.slow
    def test_broker_ends_with_the_test_process(self, tmp_path: Path) -> None:
        broker = BrokerProcess(tmp_path, control=True).start()
        process = broker._process
        assert process is not None
        broker._control().close()  # as the system does when this process is killed
        assert process.wait(60) == 0
        broker.close()


@pytest.fixture(scope="session")
def plugin_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs pytest with the plugin in a process of its own, on a file with this text."""

    def run(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("project")
        (folder / "test_project.py").write_text(text, "utf-8")
        # As an installed plugin has it, whose package pytest marks.
        (folder / "conftest.py").write_text("import pytest\n\npytest.register_assert_rewrite('amqpd')\n", "utf-8")
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "amqpd.testing", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, *options, str(folder)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.mark.slow
class TestPlugin:
    TEXT = """
import pika

def test_recorder(amqpd_broker, amqpd_vhost, amqpd_recorder):
    print("broker", type(amqpd_broker).__name__)
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "nowhere", b"1")
    connection.close()
    amqpd_recorder.assert_unroutable(1, routing_key="nowhere")
"""

    @pytest.mark.parametrize(("mode", "kind"), [("thread-memory", "BrokerThread"), ("process-memory", "BrokerProcess")])
    def test_mode(self, plugin_run: Callable, mode: str, kind: str) -> None:
        ran = plugin_run(self.TEXT, "-s", f"--amqpd-mode={mode}")
        assert (ran.returncode, f"broker {kind}" in ran.stdout) == (0, True), ran.stdout + ran.stderr

    @pytest.mark.parametrize("mode", ["thread-memory", "process-memory"])
    def test_stopped_broker_does_not_fail_the_next_test(self, plugin_run: Callable, mode: str) -> None:
        outage = "def test_outage(amqpd_broker, amqpd_vhost):\n    amqpd_broker.stop()\n    assert False\n"
        ran = plugin_run(f"{outage}{self.TEXT}", f"--amqpd-mode={mode}")
        assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr

    def test_mode_of_the_ini_file_and_workers(self, plugin_run: Callable) -> None:
        ran = plugin_run(self.TEXT, "-o", "amqpd_mode=thread-memory", "-n", "2")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        ran = plugin_run(self.TEXT, "-o", "amqpd_mode=thread-disk")
        assert ran.returncode != 0
        assert "amqpd_mode must be one of process, process-memory, thread, thread-memory, not 'thread-d" in ran.stdout

    def test_modules_of_the_server_are_imported_as_they_are(self, plugin_run: Callable) -> None:
        """To rewrite the assertions of all of them takes 0.7 s, and again in each run that keeps no bytecode."""
        ran = plugin_run(
            "import amqpd.config.loader\n\n"
            "def test_loader():\n"
            "    assert type(amqpd.config.loader.__loader__).__name__ == 'SourceFileLoader'\n"
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
