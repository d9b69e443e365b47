"""Vhosts that are created while their slot is served. No Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from amqpd.cluster.ownership import OwnedSlot, SlotOwnership
from amqpd.storage.metadata.rows import VhostRow

ROW = VhostRow("new", "1" * 32)


async def test_vhost_that_cannot_be_loaded_is_not_retried_at_once(caplog) -> None:
    tried: list[object] = []

    async def load_vhosts(state: object) -> list[Any]:
        tried.append(state)
        raise OSError("no descriptor left")

    takeovers = SlotOwnership.__new__(SlotOwnership)
    takeovers.broker = cast("Any", SimpleNamespace(load_vhosts=load_vhosts))
    takeovers.state = cast("Any", SimpleNamespace(slot_of=lambda _: 1, vhost=lambda _: ROW))
    takeovers._metadata = cast("Any", SimpleNamespace(node="a"))
    takeovers._tasks = set()
    rows = SimpleNamespace(table=SimpleNamespace(state=lambda vhosts, _: vhosts))
    owned = cast("OwnedSlot", SimpleNamespace(rows=rows, vhosts={}, end_reason="", changing_vhosts=set()))
    takeovers.owned = {1: owned}
    takeovers.vhost_changed("new")
    for _ in range(100):
        await asyncio.sleep(0)
    takeovers.vhost_changed("new")
    assert tried == [[ROW]]
    assert "vhost 'new' cannot be served" in caplog.text
    await takeovers.close()
    assert not owned.changing_vhosts
