"""Connections, channels, queues and exchanges for tests of pika's BlockingConnection."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

Unique = Callable[[str], str]
sys.path.insert(0, str(Path(__file__).parent))  # conversation.py is there: pytest does not add this folder itself


@pytest.fixture
def connection(broker: Any) -> Iterator[pika.BlockingConnection]:
    with pika.BlockingConnection(broker.pika()) as connection:
        yield connection


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    """An exclusive queue with a server-generated name."""
    name: str = channel.queue_declare("", exclusive=True).method.queue
    return name


@pytest.fixture
def exchange(channel: BlockingChannel, unique: Unique) -> Iterator[Callable[..., str]]:
    """Declares exchanges that are deleted after the test."""
    names: list[str] = []

    def make(kind: str, **more: Any) -> str:
        name = unique(f"x{len(names)}-{kind}")
        channel.exchange_declare(name, kind, **more)
        names.append(name)
        return name

    yield make
    cleaner = channel.connection.channel()
    for name in names:
        cleaner.exchange_delete(name)
