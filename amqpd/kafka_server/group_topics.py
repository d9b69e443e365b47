"""The topics of a vhost as consumer groups see them: how many partitions they have, and which match a pattern.

`partition_counts` and `GroupTopics.version` are the places that know how streams become topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from amqpd.auth.permissions import compile_pattern
from amqpd.broker.queue.argument_checks import KAFKA_TOPIC

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import InternalBackend, User
    from amqpd.auth.permissions import PermissionPattern
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.assignors import Topics
    from amqpd.kafka_server.consumer_group import Subscription


def partition_counts(vhost: VHost, names: Iterable[str]) -> dict[str, tuple[bytes, int]]:
    """Return the topic id and the number of partitions of those topics that exist. Cost: 1 us each."""
    counts: dict[str, tuple[bytes, int]] = {}
    for name in names:
        queue = vhost.queues.get(name)
        if queue is not None and queue.kind == "stream" and not queue.deleted and KAFKA_TOPIC.fullmatch(name):
            counts[name] = (bytes.fromhex(queue.id), 1)
    return counts


def topic_names(vhost: VHost, ids: Iterable[bytes]) -> dict[bytes, str]:
    """Return the names of those topics that exist, by id."""
    queues = ((each, vhost.streams.get(each.hex())) for each in ids)
    return {topic_id: queue.name for topic_id, queue in queues if queue is not None and not queue.deleted}


def topic_pattern(text: str) -> PermissionPattern:
    """Return a pattern that must match the whole name of a topic. Raises: InvalidPattern."""
    compile_pattern(text)  # it must be an expression of its own, not only inside the other one
    return compile_pattern(f"^(?:{text})$")


class GroupTopics:
    """The topics of one vhost (consumer_group.TopicTable)."""

    def __init__(self, vhost: VHost, auth: InternalBackend) -> None:
        self._vhost = vhost
        self._auth = auth

    @property
    def version(self) -> int:
        return self._vhost.streams_version

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
        """Return the streams that match the pattern and that the user may read."""
        pattern = topic_pattern(text)  # the heartbeat was refused if it is none
        vhost, auth = self._vhost, self._auth
        names = [queue.name for queue in vhost.streams.values() if pattern.matches(queue.name)]
        return [name for name in names if auth.is_allowed(user, vhost.name, "read", name)]
