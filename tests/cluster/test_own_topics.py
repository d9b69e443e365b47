"""What a node asks Kafka of topics that queues may have for themselves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.cluster import placement
from amqpd.cluster.placement import NodeTopicPolicy
from amqpd.kafka.producer import KafkaRefused


async def said(topics: Any, topic: str) -> NodeTopicPolicy:
    found = NodeTopicPolicy(SimpleNamespace(describe=topics), ".*", {})  # type: ignore[arg-type]
    done = asyncio.Event()
    found.ask(topic, done.set)
    await done.wait()
    return found


async def none(_: object) -> dict[str, object]:
    return {}


async def test_what_nobody_asks_for_any_more_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that has declared the queue is gone when Kafka answers."""
    monkeypatch.setattr(placement, "ANSWER_KEPT_S", 0.02)
    found = await said(none, "orders")
    assert found._answers == {"orders": ""}
    await asyncio.sleep(0.1)
    assert found._answers == {}
    assert found.objection("orders") is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaRefused("no"), "cannot be checked: no"),
        (KeyError("a bug"), "cannot be checked: see the broker's log"),
    ],
)
async def test_what_goes_wrong_is_an_answer(error: Exception, text: str) -> None:
    """Whoever waits for it waits in vain otherwise."""

    async def failing(_: object) -> dict[str, object]:
        raise error

    assert (await said(failing, "orders")).objection("orders") == text
