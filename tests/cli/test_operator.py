"""Operator tasks on a real broker: listeners, logins, log, definitions, super streams, and reset."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from fake_broker import Ctl, Result

from amqpd.cli.main import run
from amqpd.testing import BrokerProcess


@pytest.fixture
def real(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", settings={"log.file": tmp_path / "log"})
    with broker:
        eventually((broker.data_dir / "amqpctl.sock").exists)
        yield broker
        assert "Traceback" not in broker.stderr + (tmp_path / "log").read_text("utf-8")
    broker.close()


@pytest.fixture
def ctl(real: BrokerProcess) -> Ctl:
    def call(*arguments: str, stdin: str = "", uri: str = "") -> Result:
        out, err = io.StringIO(), io.StringIO()
        variables = {"AMQPCTL_URI": uri} if uri else {"AMQPD_DATA_DIR": str(real.data_dir)}
        code = run(arguments, out, err, io.StringIO(stdin), variables)
        return Result(code, out.getvalue(), err.getvalue())

    return call


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def connect(broker: BrokerProcess, user: str = "guest", password: str = "guest") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=credentials))


@pytest.mark.slow
def test_suspended_listeners_refuse_connections_until_resumed(real: BrokerProcess, ctl: Ctl) -> None:
    """Open connections stay, and the app counts as running."""
    existing = connect(real)
    for _ in range(2):
        assert ctl("suspend_listeners").code == 0
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(real)
    assert ctl("check_running").code == 0
    result = ctl("check_port_connectivity")
    assert (result.code, f"port: {real.amqp_port}, protocol: amqp" in result.err) == (69, True)
    existing.channel().queue_declare("q", durable=True)
    for _ in range(2):
        assert ctl("resume_listeners").code == 0
    connect(real).close()
    assert ctl("check_port_connectivity").code == 0
    assert ctl("suspend_listeners").code == 0
    assert ctl("stop_app").code == ctl("start_app").code == 0
    connect(real).close()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        existing.process_data_events(10)


def test_close_all_user_connections_keeps_other_users_connected(real: BrokerProcess, ctl: Ctl) -> None:
    for line in (["add_user", "anna", "pw"], ["set_permissions", "anna", ".*", ".*", ".*"]):
        assert ctl(*line).code == 0
    of_anna, other = connect(real, "anna", "pw"), connect(real)
    assert ctl("close_all_user_connections", "anna", "enough").code == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        of_anna.process_data_events(10)
    other.process_data_events(0)
    assert other.is_open
    other.close()


def test_login_attempts_are_counted_by_protocol_and_source(real: BrokerProcess, ctl: Ctl) -> None:
    def counts(*options: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(
            ctl("list_node_auth_attempt_stats", *options, "--formatter", "json").out
        )["attempts"]
        return found

    assert counts() == []
    connect(real).close()
    assert ctl("enable_auth_attempt_source_tracking").code == 0
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(real, "guest", "wrong")
    expected = {"protocol": "amqp091", "auth_attempts": 2, "auth_attempts_succeeded": 1, "auth_attempts_failed": 1}
    assert counts() == [expected]
    (by_source,) = counts("--by-source")
    assert (by_source["remote_address"], by_source["username"]) == ("127.0.0.1", "guest")
    assert (by_source["auth_attempts"], by_source["auth_attempts_failed"]) == (1, 1)
    assert "amqp091\t2\t1\t1" in ctl("list_node_auth_attempt_stats").out
    assert ctl("reset_node_auth_attempt_metrics").code == 0
    assert counts() == counts("--by-source") == []
    assert ctl("ping", uri=f"http://guest:guest@127.0.0.1:{real.http_port}").code == 0
    assert [each["protocol"] for each in counts()] == ["http"]


def test_log_level_rotation_and_tail(real: BrokerProcess, ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert ctl("-q", "log_location").out == f"{path}\n"
    assert ctl("set_log_level", "error").code == 0
    before = path.stat().st_size
    connect(real).close()
    assert path.stat().st_size == before
    assert "Log level: error" in ctl("status").out
    assert ctl("set_log_level", "info").code == 0
    assert path.read_text("utf-8")[before:].splitlines()[0].endswith("the log level is now info")
    path.rename(tmp_path / "log.1")
    assert ctl("rotate_logs").code == 0
    for _ in range(3):
        assert ctl("set_log_level", "info").code == 0
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) >= 3
    assert ctl("-q", "log_tail", "-N", "2").out.splitlines() == lines[-2:]
    assert ctl("-q", "log_tail", "-N", "0").out == ""
    assert ctl("log_tail_stream", "--duration", "0").code == 0


def test_environment_memory_ciphers_status_and_report(real: BrokerProcess, ctl: Ctl) -> None:
    found = json.loads(ctl("environment", "--formatter", "json").out)["amqpd"]
    assert (found["data_dir"], found["amqp.host"], found["default.password"]) == (
        str(real.data_dir), "127.0.0.1", "********",
    )  # fmt: skip
    assert "\n--data-dir\n" in ctl("command_line_arguments").out
    assert "127.0.0.1" in ctl("-q", "resolve_hostname", "localhost").out
    assert ctl("resolve_hostname", "nosuch.invalid").code == 65
    total = json.loads(ctl("memory_breakdown", "--formatter", "json").out)
    assert sum(each["percentage"] for each in total.values()) == pytest.approx(100, abs=0.1)
    assert "Interface lo" in ctl("list_network_interfaces").out
    assert ctl("-q", "tls_versions").out.splitlines() == ["tlsv1.3", "tlsv1.2"]
    assert "ECDHE-RSA-AES256-GCM-SHA384" in ctl("-q", "cipher_suites").out.splitlines()
    assert ",{ecdhe_rsa,aes_256_gcm,aead,sha384}" in ctl("cipher_suites", "--format", "erlang").out.splitlines()
    default_suites, all_suites = (
        ctl("cipher_suites", "--format", "map", *more).out.splitlines() for more in ((), ("--all",))
    )
    assert ",#{cipher => aes_256_gcm,key_exchange => ecdhe_rsa,mac => aead,prf => sha384}" in default_suites
    assert ",#{cipher => aes_256_cbc,key_exchange => ecdhe_ecdsa,mac => sha384,prf => sha384}" in default_suites
    assert len(all_suites) > len(default_suites) and set(default_suites) <= set(all_suites)
    suites = json.loads(ctl("cipher_suites", "--formatter", "json", "--openssl-format").out)
    assert suites[0].startswith("TLS_")
    assert ctl("cipher_suites", "--format", "iana").code == 65
    assert ctl("certificates", "--formatter", "json").out == "[]\n"
    status = json.loads(ctl("status", "--formatter", "json").out)
    for key in ("rabbitmq_version", "disk_free", "disk_free_limit", "vm_memory_high_watermark_limit", "uptime"):
        assert key in status
    assert status["totals"]["queue_count"] == status["totals"]["queues"]
    report = ctl("report")
    assert report.code == 0
    for part in ("Cluster status of node", "Application environment", "Listing queues for vhost /"):
        assert part in report.out


def test_super_stream_is_added_and_deleted(real: BrokerProcess, ctl: Ctl) -> None:
    assert ctl("add_super_stream", "inv", "--routing-keys", "eu,us", "--max-age", "P1D").code == 0
    queues = json.loads(ctl("list_queues", "name", "type", "arguments", "--formatter", "json").out)
    assert sorted((each["name"], each["type"], each["arguments"]["x-max-age"]) for each in queues) == [
        ("inv-eu", "stream", "86400s"),
        ("inv-us", "stream", "86400s"),
    ]
    with connect(real) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("inv", "eu", b"x", mandatory=True)
        channel.queue_declare("two-1", durable=True)
    assert ctl("-q", "stream_status", "inv-eu").out.splitlines()[1].split("\t")[2] == "1"
    assert ctl("add_super_stream", "inv").code == 70
    assert ctl("add_super_stream", "two", "--partitions", "3").code == 70
    assert "two" not in {each["name"] for each in json.loads(ctl("list_exchanges", "--formatter", "json").out)}
    assert ctl("add_super_stream", "keyed", "--exchange-type", "topic").code == 64
    assert ctl("add_super_stream", "keyed", "--exchange-type", "x-murmur2-hash", "--partitions", "2").code == 0
    kinds = {each["name"]: each["type"] for each in json.loads(ctl("list_exchanges", "--formatter", "json").out)}
    assert kinds["keyed"] == "x-murmur2-hash"
    assert ctl("delete_super_stream", "keyed").code == 0
    assert ctl("delete_super_stream", "inv").code == 0
    assert ctl("delete_super_stream", "inv").code == ctl("delete_super_stream", "amq.topic").code == 70
    left = json.loads(ctl("list_queues", "name", "--formatter", "json").out)
    assert [each["name"] for each in left] == ["two-1"]


@pytest.mark.slow
def test_exported_definitions_are_imported_unless_unchanged(real: BrokerProcess, ctl: Ctl, tmp_path: Path) -> None:
    for line in (["add_vhost", "shop"], ["set_policy", "-p", "shop", "p", "^q", '{"max-length":5}']):
        assert ctl(*line).code == 0
    path = str(tmp_path / "definitions.json")
    assert ctl("export_definitions", path).code == 0
    assert ctl("import_definitions", "--skip-if-unchanged", path).out.endswith("nothing was imported\n")
    assert ctl("delete_vhost", "shop").code == 0
    assert ctl("import_definitions", "--skip-if-unchanged", path).out.endswith("were imported\n")
    assert "shop\tp\t^q" in ctl("list_policies", "-p", "shop").out


@pytest.mark.slow
def test_reset_restores_the_state_of_the_first_start(real: BrokerProcess, ctl: Ctl) -> None:
    """The state survives the next start. Reset also deletes objects with deletion protection."""
    with connect(real) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    for line in (
        ["add_vhost", "shop"],
        ["enable_vhost_deletion_protection", "shop"],
        ["add_user", "anna", "pw"],
        ["set_user_limits", "guest", '{"max-connections":5}'],
        ["set_topic_permissions", "guest", "amq.topic", "a", "b"],
        ["set_global_parameter", "g", "1"],
        ["set_cluster_name", "it"],
        ["change_password", "guest", "other"],
    ):
        assert ctl(*line).code == 0, line
    assert ctl("reset").code == 64
    assert ctl("stop_app").code == ctl("reset").code == ctl("start_app").code == 0

    def check_initial_state() -> None:
        connect(real).close()
        assert ctl("-q", "list_users").out == "user\ttags\nguest\t[administrator]\n"
        assert ctl("-s", "list_vhosts").out == "/\n"
        assert ctl("-s", "list_queues").out == ""
        assert ctl("-s", "list_permissions").out == "guest\t.*\t.*\t.*\n"
        assert ctl("-s", "list_topic_permissions").out == ""
        assert ctl("-s", "list_global_parameters").out.partition("\t")[0] == "internal_cluster_id"
        assert "it" not in json.loads(ctl("cluster_status", "--formatter", "json").out)["cluster_name"].split("@")
        assert ctl("list_user_limits").out.splitlines()[-1] == "{}"

    check_initial_state()
    real.stop()
    real.start()
    eventually((real.data_dir / "amqpctl.sock").exists)
    check_initial_state()
    assert not (list((real.data_dir / "vhosts").glob("*/queues/*")))
