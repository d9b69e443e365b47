"""A durable exchange of a guest type whose package is gone: kept, shown, closed to publishers, back with it."""

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

KEPT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A folder with an installed package that brings the type x-guest."""
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


def does(process: BrokerProcess, step: Callable[[BlockingChannel], Any]) -> Any:
    with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        return step(channel)


def refused(process: BrokerProcess, step: Callable[[BlockingChannel], Any]) -> str:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        does(process, step)
    assert closed.value.reply_code == 406
    return str(closed.value.reply_text)


def listed(process: BrokerProcess) -> dict[str, str]:
    command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(process.data_dir), "--formatter", "json"]
    found = subprocess.run([*command, "list_exchanges", "name", "state"], check=True, capture_output=True, text=True)
    return {item["name"]: item["state"] for item in json.loads(found.stdout)}


@pytest.mark.slow
def test_it_is_kept_without_its_package_and_comes_back_with_it(tmp_path: Path, guest: Path) -> None:
    def set_up(channel: BlockingChannel) -> None:
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("x", "x-guest", durable=True)
        channel.exchange_declare("doomed", "x-guest", durable=True)
        channel.exchange_declare("front", "direct", durable=True)
        channel.queue_bind("q", "x", "k")
        channel.exchange_bind("x", "front", "k")

    with broker(tmp_path, guest) as process:
        does(process, set_up)
    with broker(tmp_path) as process:
        assert process.says("exchange 'x' in vhost '/' is unavailable"), process.stderr
        assert listed(process).items() >= {"x": "unavailable", "front": "running"}.items()
        for publish in (
            lambda channel: channel.basic_publish("x", "k", b"lost?", KEPT),
            lambda channel: channel.basic_publish("front", "k", b"lost?", KEPT),
            lambda channel: channel.basic_publish(
                "front", "other", b"lost?", pika.BasicProperties(delivery_mode=2, headers={"CC": ["k"]})
            ),
        ):
            assert "type 'x-guest' is not installed" in refused(process, publish)
        assert "is not installed" in refused(process, lambda channel: channel.queue_bind("q", "x", "new"))
        does(process, lambda channel: channel.basic_publish("front", "elsewhere", b"nowhere"))
        does(process, lambda channel: channel.exchange_declare("x", "x-guest", durable=True))
        does(process, lambda channel: channel.exchange_delete("doomed"))
        assert "doomed" not in listed(process)
    with broker(tmp_path, guest) as process:
        assert listed(process)["x"] == "running"
        assert "doomed" not in listed(process)
        does(process, lambda channel: channel.basic_publish("x", "k", b"one", KEPT, mandatory=True))
        does(process, lambda channel: channel.basic_publish("front", "k", b"two", KEPT, mandatory=True))
        assert [does(process, lambda channel: channel.basic_get("q", True))[2] for _ in range(2)] == [b"one", b"two"]
