"""Cluster settings: refused values, their error texts, and the options of a node."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from amqpd.config import SettingsError, load, loader
from amqpd.config.help import settings_text
from amqpd.config.schema import ClusterSettings
from amqpd.kafka.admin import cluster_options

SECRET = "an old pond, a frog"


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def toml(tmp_path: Path, text: str, tls: str = "", sasl: str = "") -> list[str]:
    """Return arguments that name a file with these sections. text: lines of `[cluster]` that add to or replace the
    required ones.
    """
    given_names = {line.partition("=")[0].strip() for line in text.splitlines()}
    needed = {"kafka": '["kafka-1:9092", "[::1]:9093"]', "name": '"shop"', "secret": f'"{SECRET}"'}
    lines = [f"{name} = {value}" for name, value in needed.items() if name not in given_names]
    file = tmp_path / "cluster.toml"
    file.write_text("\n".join(["[cluster]", *lines, text, "[cluster.tls]", tls, "[cluster.sasl]", sasl]))
    return ["--config", str(file)]


def cluster_of(tmp_path: Path, text: str = "", tls: str = "", sasl: str = "") -> ClusterSettings:
    return load(toml(tmp_path, text, tls, sasl), {}).settings.cluster


def test_default_is_one_node_without_kafka() -> None:
    assert load([], {}).settings.cluster == ClusterSettings()
    assert ClusterSettings().kafka == ()


def test_options_of_a_node(tmp_path: Path) -> None:
    options = cluster_options(cluster_of(tmp_path))
    hostname = os.uname().nodename
    assert (options.cluster, options.node, options.secret) == ("shop", f"amqpd@{hostname}", SECRET.encode())
    assert (options.listen, options.address) == (("", 25672), (hostname, 0))
    assert options.access.addresses == [("kafka-1", 9092), ("::1", 9093)]
    assert not options.access.tls
    assert not options.access.sasl_mechanism
    assert (options.slots, options.replication_factor, options.required_insync) == (64, 3, 2)
    assert (options.max_message_bytes, options.session_timeout_s, options.heartbeat_s) == (8 << 20, 6.0, 0.5)
    assert (options.meta_topic, options.settled_topic) == ("amqpd.shop.meta", "amqpd.shop.settled")
    assert (options.queues_topic("ab12"), options.transactional_id(7)) == ("amqpd.shop.ab12", "amqpd.shop.slot7")
    assert SECRET not in repr(options)


def test_listen_and_advertised_addresses(tmp_path: Path) -> None:
    text = 'listen = "[::]:7000"\naddress = "node-1.example:7001"\nnode = "one"'
    options = cluster_options(cluster_of(tmp_path, text))
    assert (options.listen, options.address, options.node) == (("::", 7000), ("node-1.example", 7001), "one")
    given = load([*toml(tmp_path, ""), "--cluster.kafka", "a:1, b:2"], {}).settings.cluster
    assert given.kafka == ("a:1", "b:2")


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "password").write_text("hunter2\r\n")
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    cluster = cluster_of(
        tmp_path,
        f'secret = ""\nsecret_file = "{tmp_path / "secret"}"',
        f'enabled = true\nca = "{ca}"',
        f'mechanism = "scram-sha-512"\nuser = "amqpd"\npassword_file = "{tmp_path / "password"}"',
    )
    options = cluster_options(cluster)
    access = options.access
    assert options.secret == SECRET.encode()
    assert (access.tls, access.ca_file) == (True, str(ca))
    assert (access.sasl_mechanism, access.sasl_username, access.sasl_password) == ("SCRAM-SHA-512", "amqpd", "hunter2")


def test_secrets_are_hidden_in_listings(tmp_path: Path) -> None:
    arguments = toml(tmp_path, "", "", 'mechanism = "PLAIN"\nuser = "amqpd"\npassword = "hunter2"')
    loaded = load([*arguments, "--print-settings"], {})
    for formatter in ("table", "json", "toml"):
        text = settings_text(loaded._replace(formatter=formatter))  # type: ignore[arg-type]
        assert SECRET not in text
        assert "hunter2" not in text
    assert "hunter2" not in repr(loaded.settings)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name = ""', "cluster.kafka needs cluster.name"),
        ('name = "a b"', "cluster.name must be at most 100 of the characters a-z A-Z 0-9 . _ -, as Kafka's topics"),
        ('name = ".."', "cluster.name must be at most 100 of"),
        ('secret = ""', "cluster.kafka needs cluster.secret or cluster.secret_file"),
        ('secret = "short"', "cluster.secret: 16 characters or more"),
        ('secret_file = "x"', "cluster.secret and cluster.secret_file are the same setting"),
        ('secret = ""\nsecret_file = "gone"', "cluster.secret_file: gone: No such file"),
        ("kafka = []", "cluster.name is given, but not cluster.kafka"),
        ('kafka = ["a"]', "cluster.kafka must be host:port"),
        ('kafka = ["a:0"]', "cluster.kafka must be host:port, both of them named"),
        ('kafka = ["::1:9092"]', "cluster.kafka must be host:port, an IPv6 address in brackets"),
        ('listen = "host"', "cluster.listen must be host:port"),
        ('address = ":1"', "cluster.address must be host:port, both of them named"),
        ("replication_factor = 1", "cluster.required_insync (2) must not be more than cluster.replication_factor (1)"),
        ("heartbeat_s = 3", "cluster.heartbeat_s (3) must be at most a third of cluster.session_timeout_s (6)"),
        ('max_message_bytes = "65 MiB"', "cluster.max_message_bytes must be from"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError) as error:
        cluster_of(tmp_path, text)
    assert any(each.startswith(why) for each in error.value.problems), error.value.problems


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (("--kafka.port", "9092"), "kafka.port must not be set with cluster.kafka"),
        (("--metadata.url", "sqlite:///x"), "metadata.url must not be set with cluster.kafka"),
        (("--load-definitions", "."), "load_definitions must not be set with cluster.kafka"),
    ],
)
def test_settings_of_a_single_node_are_refused(tmp_path: Path, setting: tuple[str, str], why: str) -> None:
    with pytest.raises(SettingsError) as error:
        load([*toml(tmp_path, ""), *setting], {})
    assert any(each.startswith(why) for each in error.value.problems), error.value.problems


@pytest.mark.parametrize(
    ("tls", "sasl", "why"),
    [
        ('ca = "x"', "", "cluster.tls.ca needs cluster.tls.enabled"),
        ('enabled = true\nca = "gone.pem"', "", "cluster.tls.ca: there is no file gone.pem"),
        ('enabled = true\nkey = "gone.pem"', "", "cluster.tls.key needs cluster.tls.certificate"),
        ("", 'mechanism = "GSSAPI"', "cluster.sasl.mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("", 'mechanism = "PLAIN"\npassword = "x"', "cluster.sasl.mechanism needs cluster.sasl.user"),
        ("", 'mechanism = "PLAIN"\nuser = "x"', "cluster.sasl.password is missing"),
        ("", 'user = "x"', "cluster.sasl.user needs cluster.sasl.mechanism"),
    ],
)
def test_inconsistent_tls_and_sasl_are_refused(tmp_path: Path, tls: str, sasl: str, why: str) -> None:
    with pytest.raises(SettingsError) as error:
        cluster_of(tmp_path, "", tls, sasl)
    assert any(each.startswith(why) for each in error.value.problems), error.value.problems


def test_missing_aiokafka_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "find_spec", lambda name: None)
    with pytest.raises(SettingsError) as error:
        cluster_of(tmp_path)
    expected = "cluster.kafka is given, but the package aiokafka is missing: pip install 'amqpd[cluster]'"
    assert error.value.problems == [expected]


def test_every_setting_is_passed_to_the_node(tmp_path: Path) -> None:
    """A setting that is not passed to the node would have no effect."""
    options = cluster_options(cluster_of(tmp_path))
    option_names = {each.name for each in dataclasses.fields(options)}
    option_names |= {"kafka", "tls", "sasl", "name", "secret_file"}
    assert {each.name for each in dataclasses.fields(ClusterSettings)} <= option_names
