"""The topics of a vhost as consumer groups see them: how many partitions they have, and which match a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

from amqpd.auth.patterns import compile_search
from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.kafka_server.pace import run_all
from amqpd.kafka_server.topics import names_of_topics, topic_of_id, topic_of_name

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import InternalBackend, User
    from amqpd.auth.patterns import NamePattern
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.assignors import Topics
    from amqpd.kafka_server.consumer_group import Subscription


def partition_counts(vhost: VHost, names: Iterable[str]) -> dict[str, tuple[bytes, int]]:
    """Return the topic id and the number of partitions of those topics that exist. Cost: 1 us each."""
    counts: dict[str, tuple[bytes, int]] = {}
    for name in names:
        topic = topic_of_name(vhost, name) if KAFKA_TOPIC.fullmatch(name) else None
        if topic is not None:
            counts[name] = (topic.id.bytes, len(topic.partitions))
    return counts


def topic_names(vhost: VHost, ids: Iterable[bytes]) -> dict[bytes, str]:
    """Return the names of those topics that exist, by id."""
    found = ((each, topic_of_id(vhost, UUID(bytes=each))) for each in ids)
    return {topic_id: topic.name for topic_id, topic in found if topic is not None}


@lru_cache(64)
def topic_pattern(text: str) -> NamePattern:
    """Return a pattern that must match the whole name of a topic. Raises: InvalidPattern."""
    compile_search(text)  # it must be an expression of its own, not only inside the other one
    return compile_search(f"^(?:{text})$")


class GroupTopics:
    """The topics of one vhost, for consumer groups."""

    def __init__(self, vhost: VHost, auth: InternalBackend) -> None:
        self._vhost = vhost
        self._auth = auth

    @property
    def version(self) -> int:
        return self._vhost.topics_version + self._vhost.super_streams.version

    @property
    def count(self) -> int:
        return len(self._vhost.streams)

    def resolve(self, subscription: Subscription) -> Topics:
        """Return the topics of a subscription. Cost: 1 us a name; with a pattern 2 us for each stream of the vhost."""
        found = partition_counts(self._vhost, subscription.names)
        if subscription.user is not None:
            found |= partition_counts(self._vhost, self._matching(subscription.pattern, subscription.user))
        return dict(found.values())

    def _matching(self, text: str, user: User) -> list[str]:
        """Return the topics that match the pattern and that the user may read."""
        pattern = topic_pattern(text)  # the heartbeat was refused if it is none
        vhost, auth = self._vhost, self._auth
        found: list[str] = []
        for name in run_all(names_of_topics(vhost)):
            queue = vhost.kafka_topics.get(name)
            # First the permission: a pattern can take 10 ms for a name.
            if auth.is_allowed(user, vhost.name, "read", name if queue is None else queue.name) and pattern.matches(
                name
            ):
                found.append(name)
        return found
