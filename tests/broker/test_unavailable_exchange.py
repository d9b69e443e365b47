"""A durable exchange whose plugin type is not installed: kept, listed, closed to publishers, usable after reinstall."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """An installed package in a folder. The package provides the exchange type x-guest."""
    folder = tmp_path / "site"
    info = folder / "guest_exchange-1.dist-info"
    info.mkdir(parents=True)
    (folder / "guest_exchange.py").write_text("from amqpd.routing.direct_fanout import Fanout as Guest\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest-exchange\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[amqpd.exchange_types]\nx-guest = guest_exchange:Guest\n")
    return folder


def broker(tmp_path: Path, *folders: Path) -> BrokerProcess:
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    return BrokerProcess(tmp_path / "data", env={"PYTHONPATH": path})


def on_channel(process: BrokerProcess, step: Callable[[BlockingChannel], Any]) -> Any:
    with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        return step(channel)


def refusal(process: BrokerProcess, step: Callable[[BlockingChannel], Any]) -> str:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        on_channel(process, step)
    assert closed.value.reply_code == 406
    return str(closed.value.reply_text)


def exchange_states(process: BrokerProcess) -> dict[str, str]:
    command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(process.data_dir), "--formatter", "json"]
    found = subprocess.run([*command, "list_exchanges", "name", "state"], check=True, capture_output=True, text=True)
    return {item["name"]: item["state"] for item in json.loads(found.stdout)}


@pytest.mark.slow
def test_exchange_without_its_package_is_unavailable_until_reinstall(tmp_path: Path, guest: Path) -> None:
    def set_up(channel: BlockingChannel) -> None:
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("x", "x-guest", durable=True)
        channel.exchange_declare("doomed", "x-guest", durable=True)
        channel.exchange_declare("front", "direct", durable=True)
        channel.queue_bind("q", "x", "k")
        channel.exchange_bind("x", "front", "k")

    with broker(tmp_path, guest) as process:
        on_channel(process, set_up)
    with broker(tmp_path) as process:
        assert process.says("exchange 'x' in vhost '/' is unavailable"), process.stderr
        assert exchange_states(process).items() >= {"x": "unavailable", "front": "running"}.items()
        for publish in (
            lambda channel: channel.basic_publish("x", "k", b"lost?", PERSISTENT),
            lambda channel: channel.basic_publish("front", "k", b"lost?", PERSISTENT),
            lambda channel: channel.basic_publish(
                "front", "other", b"lost?", pika.BasicProperties(delivery_mode=2, headers={"CC": ["k"]})
            ),
        ):
            assert "type 'x-guest' is not installed" in refusal(process, publish)
        assert "is not installed" in refusal(process, lambda channel: channel.queue_bind("q", "x", "new"))
        on_channel(process, lambda channel: channel.basic_publish("front", "elsewhere", b"nowhere"))
        on_channel(process, lambda channel: channel.exchange_declare("x", "x-guest", durable=True))
        on_channel(process, lambda channel: channel.exchange_delete("doomed"))
        assert "doomed" not in exchange_states(process)
    with broker(tmp_path, guest) as process:
        assert exchange_states(process)["x"] == "running"
        assert "doomed" not in exchange_states(process)
        on_channel(process, lambda channel: channel.basic_publish("x", "k", b"one", PERSISTENT, mandatory=True))
        on_channel(process, lambda channel: channel.basic_publish("front", "k", b"two", PERSISTENT, mandatory=True))
        assert [on_channel(process, lambda channel: channel.basic_get("q", True))[2] for _ in range(2)] == [
            b"one",
            b"two",
        ]
