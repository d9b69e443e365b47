"""Fixtures: nodes that proxy connections to each other, without Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests share modules in this folder

from relay_rig import Rig

LONG = ("test_owner_loss.py", "test_backpressure.py")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name in LONG:
        item.add_marker(pytest.mark.ci_long)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Nodes a and b; b owns vhost `v`."""
    with Rig(tmp_path_factory.mktemp("relay")) as nodes:
        nodes.own("v", "b")
        yield nodes
