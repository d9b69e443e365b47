"""NodeTopicPolicy: the node's questions to Kafka about topics of single queues."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.cluster import placement
from amqpd.cluster.placement import NodeTopicPolicy
from amqpd.kafka.producer import KafkaRefused


async def ask_policy(topics: Any, topic: str) -> NodeTopicPolicy:
    policy = NodeTopicPolicy(SimpleNamespace(describe=topics), ".*", {})  # type: ignore[arg-type]
    done = asyncio.Event()
    policy.ask(topic, done.set)
    await done.wait()
    return policy


async def no_topics(_: object) -> dict[str, object]:
    return {}


async def test_unused_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that declared the queue has gone before Kafka answers."""
    monkeypatch.setattr(placement, "ANSWER_KEPT_S", 0.02)
    policy = await ask_policy(no_topics, "orders")
    assert policy._answers == {"orders": ""}
    await asyncio.sleep(0.1)
    assert policy._answers == {}
    assert policy.objection("orders") is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaRefused("no"), "cannot be checked: no"),
        (KeyError("a bug"), "cannot be checked: see the broker's log"),
    ],
)
async def test_error_is_an_answer(error: Exception, text: str) -> None:
    """Otherwise the declaring client would wait for ever."""

    async def failing(_: object) -> dict[str, object]:
        raise error

    assert (await ask_policy(failing, "orders")).objection("orders") == text
