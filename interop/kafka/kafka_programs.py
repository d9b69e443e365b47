"""Paths of the installed Kafka clients, and the broker that their programs use."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest

from amqpd.testing import BrokerProcess
from interop.clients.programs import Missing, kafka_java

HERE: Final = Path(__file__).parent


def java(version: str, program: str) -> list[str]:
    """Return the command that runs a class or a source file with these jars: `39`, `43`, `43-streams`, `43-connect`.

    Skips the test if they are not installed, or fails it where TEST_REQUIRE_KAFKA_CLIENTS is set.
    """
    try:
        return kafka_java(version, program)
    except Missing as missing:
        if os.environ.get("TEST_REQUIRE_KAFKA_CLIENTS"):
            pytest.fail(f"missing: {missing}")
        pytest.skip(f"missing: {missing}")


def address_of(broker: BrokerProcess, listener: str = "kafka") -> str:
    """Return `localhost:PORT` of a listener: `kafka`, or `kafkas` with TLS."""
    assert broker.ready is not None
    return f"localhost:{broker.ready.listeners[listener][1]}"


def documented_settings(title: str, address: str) -> str:
    """Return the settings below a heading of docs/kafka.md, with this address of the broker."""
    text = (HERE.parents[1] / "docs" / "kafka.md").read_text("utf-8").partition(f"\n## {title}\n")[2]
    block = re.search(r"^```ini\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert "127.0.0.1:9092" in block[1]
    return block[1].replace("127.0.0.1:9092", address)
