"""The topics of a subscription by a pattern."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.auth.internal_backend import User
from amqpd.kafka_server import group_topics
from amqpd.kafka_server.group_topics import GroupTopics


def test_pattern_is_matched_against_readable_topics_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern may take 10 ms for a name, and a user that reads few topics must not hold up a vhost with thousands."""
    matched: list[str] = []

    def matches(name: str) -> bool:
        matched.append(name)
        return True

    def names_of_topics(_vhost: Any) -> Any:
        yield
        return ["own.a", "other", "renamed"]

    monkeypatch.setattr(group_topics, "names_of_topics", names_of_topics)
    monkeypatch.setattr(group_topics, "topic_pattern", lambda _: SimpleNamespace(matches=matches))
    vhost = SimpleNamespace(name="/", kafka_topics={"renamed": SimpleNamespace(name="own.b")})
    auth = SimpleNamespace(is_allowed=lambda _user, _vhost, kind, name: kind == "read" and name.startswith("own."))
    found = GroupTopics(vhost, auth)._matching(".*", User("u"))  # type: ignore[arg-type]
    assert found == matched == ["own.a", "renamed"]
