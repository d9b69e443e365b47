"""Kafka's Java client as member of share groups."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pika
import pytest

from amqpd.testing import BrokerProcess

from .kafka_programs import address_of, java

PROGRAM = Path(__file__).with_name("java") / "ShareGroupProgram.java"
pytestmark = [pytest.mark.slow, pytest.mark.external]


@pytest.mark.parametrize(("kind", "state"), [("quorum", "GroupIdNotFoundException"), ("stream", "Empty")])
def test_the_java_client_gets_each_record_once_and_a_released_one_again(tmp_path: Path, kind: str, state: str) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.share_auto_offset_reset": "earliest"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        name = f"java-{uuid.uuid4()}"
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        command = [*java("43", str(PROGRAM)), address_of(broker), name, "500"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.splitlines()[-1:] == [f"seen 500 again 1 group {state}"], done.stderr[-3000:]
        assert "Traceback" not in broker.stderr
