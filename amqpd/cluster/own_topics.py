"""Topics of Kafka that queues may have for themselves: what the operator allows, and whether Kafka has them already."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from amqpd.kafka.connection import KafkaLost, KafkaUnfit
from amqpd.kafka.producer import KafkaRefused
from amqpd.kafka.admin import TopicUnfit

if TYPE_CHECKING:
    from amqpd.cluster.storage import Placed
    from amqpd.kafka.admin import Topics

logger = logging.getLogger(__name__)

SAID_S: Final = 10.0
"""How long Kafka's answer is kept for who has asked, and may be gone."""


class NodeTopics:
    """Of one node; see broker/vhost/own_topics.py. pattern: `cluster.kafka_topics`. places: of this node's queues,
    by their ids.
    """

    def __init__(self, topics: Topics, pattern: str, places: Mapping[str, Placed]) -> None:
        self._topics = topics
        self._pattern = re.compile(pattern) if pattern else None
        self._places = places
        self._said: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def allows(self, topic: str) -> bool:
        """The pattern has to match the whole name."""
        return self._pattern is not None and self._pattern.fullmatch(topic) is not None

    def objection(self, topic: str) -> str | None:
        """As `OwnTopics`. Cost: a look at each place."""
        said = self._said.pop(topic, None)
        if any(placed.place.topic == topic for placed in self._places.values()):
            return "belongs to another queue"
        return said

    def ask(self, topic: str, done: Callable[[], None]) -> None:
        """As `OwnTopics`."""

        async def look() -> None:
            try:
                said = "exists already" if await self._topics.describe([topic]) else ""
            except (KafkaLost, KafkaRefused, KafkaUnfit, TopicUnfit, OSError) as error:
                said = f"cannot be asked for: {error}"
            except Exception:
                logger.exception("topic %s: a bug of the broker", topic)
                said = "cannot be asked for: the broker's log says why"
            self._said[topic] = said
            asyncio.get_running_loop().call_later(SAID_S, self._forget, topic, said)
            done()

        task = asyncio.get_running_loop().create_task(look())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, topic: str, said: str) -> None:
        if self._said.get(topic) is said:
            del self._said[topic]
