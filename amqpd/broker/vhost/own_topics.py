"""What a node of a cluster knows of topics that queues may have for themselves; kafka_topic.py asks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class OwnTopics(Protocol):
    """Of the operator's Kafka."""

    def allows(self, topic: str) -> bool:
        """Whether the operator lets queues have it."""

    def objection(self, topic: str) -> str | None:
        """Why it cannot be had, "" where it can; None: nobody has asked Kafka just now. What it said is told once."""

    def ask(self, topic: str, done: Callable[[], None]) -> None:
        """Asks Kafka; `objection` knows when `done` is called."""
