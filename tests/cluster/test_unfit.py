"""A broker that cannot be reached as it is configured, or named: told, and tried again after a pause."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaIncompatible, open_connection
from amqpd.kafka.producer import KafkaProducer

PLAIN = KafkaAccess(("127.0.0.1:1",))


async def test_certificates_that_are_gone(tmp_path: Path) -> None:
    with pytest.raises(KafkaIncompatible, match=r"gone\.pem"):
        await open_connection(replace(PLAIN, tls=True, ca_file=str(tmp_path / "gone.pem")), "127.0.0.1", 1)


async def test_a_name_that_is_none() -> None:
    with pytest.raises(KafkaIncompatible, match="is not a valid host name"):
        await open_connection(PLAIN, "kafka..example", 9092)


async def test_who_leads_is_asked_again(tmp_path: Path) -> None:
    """While files are being renewed they may be gone for a moment: a look-up does not end with that."""
    asked: list[int] = []
    thrice = asyncio.Event()

    class Access(KafkaAccess):
        def ssl_context(self) -> ssl.SSLContext | None:
            asked.append(1)
            if len(asked) == 3:
                thrice.set()
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
            await thrice.wait()
    finally:
        await producer.close()
