"""What is planted fits where it is put: a fault that is called wrongly goes red for another reason than its own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from planted import FAULTS

from amqpd.cluster import node, ownership, placement
from amqpd.cluster.ownership import SlotOwnership
from amqpd.cluster.proxy import ConnectionProxy
from amqpd.cluster.slot_logs import SlotLogs
from amqpd.kafka import group
from amqpd.kafka.admin import TopicAdmin
from amqpd.kafka.connection import KafkaConnection
from amqpd.kafka.group import GroupMembership
from amqpd.kafka.producer import KafkaProducer

MODULES: tuple[Any, ...] = (group, node, placement, ownership)
CLASSES: tuple[Any, ...] = (
    KafkaConnection,
    KafkaProducer,
    GroupMembership,
    ConnectionProxy,
    SlotLogs,
    SlotOwnership,
    TopicAdmin,
)
THEIRS: tuple[Any, ...] = (AIOKafkaConnection,)
PLACES = MODULES + CLASSES + THEIRS


@pytest.fixture
def before() -> Iterator[dict[Any, dict[str, Any]]]:
    kept = {place: dict(vars(place)) for place in PLACES}
    yield kept
    for place, names in kept.items():
        for name, value in names.items():
            if vars(place)[name] is not value:
                setattr(place, name, value)


def positional(function: Any) -> list[Any]:
    return [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]


def returned(function: Any) -> str:
    """What kind of thing: of `list[int]` the list."""
    return str(inspect.signature(function).return_annotation).partition("[")[0]


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_it_is_called_as_what_it_stands_for(
    fault: str, before: dict[Any, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["planted.py", fault, f"--data-dir={tmp_path / 'data'}"])
    FAULTS[fault]()
    changed = [
        (names[name], value)
        for place, names in before.items()
        for name, value in vars(place).items()
        if name in names and names[name] is not value
    ]
    assert changed, "nothing is planted"
    for original, planted in changed:
        if callable(original) and not isinstance(original, type):
            assert len(positional(planted)) == len(positional(original)), f"{original} is called otherwise"
            assert returned(planted) in (returned(original), "Any"), f"{original} answers otherwise"
