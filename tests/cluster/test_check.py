"""`amqpctl check_cluster`, and the log lines of a start while no broker answers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from kafka_rig import Kafka, Secure, free_ports, missing, need

from amqpd.cluster import check
from amqpd.cluster.check import wait_for_kafka
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected

SECRET = "the old pond, a frog jumps in"


async def test_waiting_for_kafka_logs_each_address_and_its_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert check.FIRST_LINE_S < 5
    assert check.LINE_S == 10
    for name, seconds in (("FIRST_LINE_S", 0.1), ("LINE_S", 0.1), ("PAUSE_S", 0.01)):
        monkeypatch.setattr(check, name, seconds)
    (port,) = free_ports(1)
    held: list[object] = []  # a connection closes with its last reference
    silent = await asyncio.start_server(lambda *streams: held.append(streams), "127.0.0.1", 0)
    other = silent.sockets[0].getsockname()[1]
    access = KafkaAccess((f"127.0.0.1:{port}", f"127.0.0.1:{other}"))
    with pytest.raises(KafkaDisconnected, match=rf"no broker answered within 1 s: 127\.0\.0\.1:{port}: .*Errno 111"):
        await wait_for_kafka(access, 1)
    silent.close()
    lines = [each.getMessage() for each in caplog.records if each.getMessage().startswith("waiting for a Kafka broker")]
    assert len(lines) >= 2
    assert f"127.0.0.1:{port}: " in lines[0]
    assert lines[0].endswith(f"; 127.0.0.1:{other}: no answer")


def run_check_cluster(directory: Path, **options: Any) -> tuple[int, list[str]]:
    """Return the exit code and the output lines of `amqpctl check_cluster FILE`."""
    settings = {"name": "shop", "secret": SECRET, "address": "127.0.0.1:25672", "slots": 4, **options}
    tables = {name: settings.pop(name) for name in ("tls", "sasl") if name in settings}
    lines = ["[cluster]", *(f"{name} = {_toml(value)}" for name, value in settings.items())]
    for table, values in tables.items():
        lines += [f"[cluster.{table}]", *(f"{name} = {_toml(value)}" for name, value in values.items())]
    file = directory / "amqpd.toml"
    file.write_text("\n".join(lines), "utf-8")
    command = [sys.executable, "-P", "-m", "amqpd.cli", "check_cluster", str(file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMQPD_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    print(ended.stdout, ended.stderr)
    return ended.returncode, ended.stdout.splitlines()


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_check_fails_when_no_broker_answers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    code, lines = run_check_cluster(tmp_path, kafka=[f"127.0.0.1:{port}"])
    assert code == 69
    assert lines[0].startswith(f"WRONG  127.0.0.1:{port} answers: ")
    assert lines[-1] == "failed checks: 1"


def test_check_refuses_a_short_secret(tmp_path: Path) -> None:
    code, _ = run_check_cluster(tmp_path, kafka=["127.0.0.1:1"], secret="short")
    assert code == 64


@pytest.mark.external
def test_check_passes_with_a_fit_kafka_and_leaves_no_topic(kafka: Kafka, tmp_path: Path, topic: str) -> None:
    single = {"kafka": [kafka.bootstrap], "name": topic, "replication_factor": 1, "required_insync": 1}
    code, lines = run_check_cluster(tmp_path, **single)
    assert (code, lines[-1]) == (0, "a node with these settings can start")
    assert {line[:5] for line in lines[:-1]} == {"ok   "}
    assert len(lines) >= 12
    assert not [each for each in kafka._described() if each["name"].startswith(f"amqpd.{topic}.")]
    code, lines = run_check_cluster(tmp_path, **{**single, "replication_factor": 3, "required_insync": 2})
    assert code == 69
    assert "WRONG  1 brokers; cluster.replication_factor needs 3" in lines


@pytest.mark.external
def test_check_names_the_rights_that_the_user_lacks(tmp_path: Path) -> None:
    need(missing())
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    store, signed_by = tmp_path / "store.pem", tmp_path / "ca.pem"
    store.write_bytes(key + b"".join(each.bytes() for each in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(str(signed_by))
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the brokers use this user among themselves
    }
    with Kafka(tmp_path / "kafka", settings=rules, secure=Secure(store, {"amqpd": "a password"})) as kafka:
        code, lines = run_check_cluster(
            tmp_path,
            kafka=[f"127.0.0.1:{kafka.brokers[1].secure_port}"],
            replication_factor=1,
            required_insync=1,
            tls={"enabled": True, "ca": str(signed_by)},
            sasl={"mechanism": "PLAIN", "user": "amqpd", "password": "a password"},
        )
    assert code == 69
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert any("topic amqpd.shop.check can be created" in line and "AUTHORIZATION_FAILED" in line for line in wrong)
    assert any("the group amqpd.shop can be joined" in line and "AUTHORIZATION_FAILED" in line for line in wrong)
