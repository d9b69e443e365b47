"""Requests about groups while the committed offsets are being read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka_socket import KafkaSocket

from amqpd.kafka_server import errors
from amqpd.kafka_server.committed_offsets import CommittedOffsets
from amqpd.kafka_server.messages import api_types
from amqpd.testing import embedded

SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}


def test_heartbeat_has_no_error_while_offsets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kafka: aiokafka's consumer ends at any other answer. The members learn later that the group is new."""
    monkeypatch.setattr(CommittedOffsets, "load", lambda offsets: False)

    def ask(port: int) -> tuple[int, int]:
        with KafkaSocket(f"127.0.0.1:{port}") as client:
            heartbeat = api_types("Heartbeat")[0](group_id="g", generation_id=3, member_id="m", group_instance_id=None)
            leave = api_types("LeaveGroup")[0](group_id="g", member_id="m")
            return client.ask(heartbeat, 3).error_code, client.ask(leave, 1).error_code

    async def run() -> None:
        async with embedded(tmp_path, settings=SETTINGS) as server:
            (port,) = [each.port for each in server.listeners if each.protocol == "kafka"]
            assert await asyncio.to_thread(ask, port) == (errors.NONE, errors.COORDINATOR_LOAD_IN_PROGRESS)

    asyncio.run(run())
