"""A broker that cannot be reached because of its configuration or its name: the error is reported, and the producer
retries.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from amqpd.kafka import producer as producers
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaConnection, KafkaIncompatible, open_connection
from amqpd.kafka.producer import KafkaProducer, first_answer

PLAIN = KafkaAccess(("127.0.0.1:1",))


async def test_missing_ca_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KafkaIncompatible, match=r"gone\.pem"):
        await open_connection(replace(PLAIN, tls=True, ca_file=str(tmp_path / "gone.pem")), "127.0.0.1", 1)


async def test_invalid_host_name_is_reported() -> None:
    with pytest.raises(KafkaIncompatible, match="is not a valid host name"):
        await open_connection(PLAIN, "kafka..example", 9092)


async def test_leader_look_up_is_retried(tmp_path: Path) -> None:
    """Certificate files may be missing for a moment while they are renewed."""
    attempts: list[int] = []
    three_attempts = asyncio.Event()

    class Access(KafkaAccess):
        def ssl_context(self) -> ssl.SSLContext | None:
            attempts.append(1)
            if len(attempts) == 3:
                three_attempts.set()
            return super().ssl_context()

    producer = KafkaProducer(
        Access(("127.0.0.1:1",), tls=True, ca_file=str(tmp_path / "gone.pem")),
        on_moved=lambda _: None,
        on_refused=lambda _: None,
        on_fenced=lambda _: None,
    )
    try:
        producer.open("topic", 0, 0)
        async with asyncio.timeout(60):
            await three_attempts.wait()
    finally:
        await producer.close()


async def test_errors_are_not_logged_when_another_broker_answers_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio logs a traceback for each task whose error is not read."""
    logged: list[object] = []
    together = asyncio.Event()

    class Connection:
        async def close(self) -> None:
            pass

    async def open_together(access: KafkaAccess, host: str, port: int) -> Connection:
        await together.wait()
        if port > 1:
            raise ConnectionRefusedError
        return Connection()

    async def ask(connection: KafkaConnection) -> str:
        return "answer"

    monkeypatch.setattr(producers, "NEXT_BROKER_S", 0.0)
    monkeypatch.setattr(producers, "open_connection", open_together)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    for _ in range(10):  # which task comes first is chance
        together.clear()
        loop.call_later(0.01, together.set)
        assert await first_answer(PLAIN, [("kafka", port) for port in range(1, 6)], ask) == "answer"
    gc.collect()
    assert not logged
