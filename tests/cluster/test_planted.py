"""Planted faults have the signatures of the functions that they replace. Otherwise a test would fail for the wrong
reason.
"""

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
LIBRARY_CLASSES: tuple[Any, ...] = (AIOKafkaConnection,)
OWNERS = MODULES + CLASSES + LIBRARY_CLASSES


@pytest.fixture
def originals() -> Iterator[dict[Any, dict[str, Any]]]:
    saved = {owner: dict(vars(owner)) for owner in OWNERS}
    yield saved
    for owner, names in saved.items():
        for name, value in names.items():
            if vars(owner)[name] is not value:
                setattr(owner, name, value)


def required_parameters(function: Any) -> list[Any]:
    return [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]


def return_type(function: Any) -> str:
    """Return the return type without its parameters: `list` for `list[int]`."""
    return str(inspect.signature(function).return_annotation).partition("[")[0]


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_planted_fault_has_the_signature_of_the_original(
    fault: str, originals: dict[Any, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["planted.py", fault, f"--data-dir={tmp_path / 'data'}"])
    FAULTS[fault]()
    changed = [
        (names[name], value)
        for owner, names in originals.items()
        for name, value in vars(owner).items()
        if name in names and names[name] is not value
    ]
    assert changed, "nothing is planted"
    for original, planted in changed:
        if callable(original) and not isinstance(original, type):
            assert len(required_parameters(planted)) == len(required_parameters(original)), (
                f"{original} has other parameters"
            )
            assert return_type(planted) in (return_type(original), "Any"), f"{original} has another return type"
