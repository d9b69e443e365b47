"""The work of a start grows linearly with queues, vhosts and exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from amqpd.broker.vhost.exchange import Exchange
from amqpd.config import Settings, load
from amqpd.server import Server
from amqpd.storage.metadata.rows import ExchangeRow, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataState, SqlMetadataStore
from amqpd.storage.storage import Storage


class Name(str):
    """A name that counts comparisons."""

    compared: ClassVar[int] = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def settings(path: Path) -> Settings:
    return load([f"--data-dir={path}", "--amqp.port=0", "--http.port=0"], {}).settings


def start_and_count(path: Path, vhosts: int, queues: int, exchanges: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of name comparisons of a start. Every queue has a directory; each exchange is the alternate
    of another.
    """
    monkeypatch.setattr(SqlMetadataStore, "open", lambda metadata, seed: state(vhosts, queues, exchanges))
    monkeypatch.setattr(SqlMetadataStore, "submit", lambda metadata, changes, done: done(None))
    for number in range(queues):
        (path / f"vhosts/v{number % vhosts}/queues/q{number}").mkdir(parents=True)
    loop = asyncio.new_event_loop()
    try:
        server = Server(settings(path), loop)
        Name.compared = 0
        server.load()
        compared = Name.compared
        assert sum(len(vhost.queues) for vhost in server.broker.vhosts.values()) == queues
        server.storage.close(clean=False)
    finally:
        loop.close()
    assert len(list(path.glob("vhosts/*/queues/*"))) == queues, "a directory is missing"
    return compared


def state(vhosts: int, queues: int, exchanges: int) -> MetadataState:
    empty: list[Any] = []
    rows = [VhostRow(Name(f"vhost {number}"), Name(f"v{number}")) for number in range(vhosts)]
    queue_rows = [
        QueueRow(Name(f"vhost {number % vhosts}"), Name(f"queue {number}"), Name(f"q{number}"))
        for number in range(queues)
    ]
    exchange_rows = [ExchangeRow(Name("vhost 0"), Name(f"exchange {number}"), "fanout") for number in range(exchanges)]
    empty_state = MetadataState("0" * 32, *[empty] * (len(MetadataState._fields) - 1))
    return empty_state._replace(vhosts=rows, exchanges=exchange_rows, queues=queue_rows)


def test_start_looks_names_up_without_searching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = start_and_count(tmp_path, 20, 400, 100, monkeypatch)
    assert compared < 10 * (20 + 400 + 100)


def test_power_cut_is_tracked_by_a_count(tmp_path: Path) -> None:
    """Once, each opening of a log checked over all logs whether they had noted the power cut."""
    Storage(tmp_path, post=call_now, boot_id="1" * 32, inline=True).close(clean=False)
    storage = Storage(tmp_path, post=call_now, boot_id="2" * 32, inline=True)
    assert storage.power_cut
    iterations = 0

    class CountingDict(dict[Any, None]):
        def __iter__(self) -> Any:
            nonlocal iterations
            for key in dict.__iter__(self):
                iterations += 1
                yield key

    storage._stores = CountingDict(storage._stores)
    stores = [storage.open_queue("v", f"{number:032x}") for number in range(200)]
    for store in stores[:-1]:
        store.recover()
    assert (tmp_path / "boot-id").read_text().strip() == "1" * 32, "one log has not recovered yet"
    stores[-1].recover()
    assert (tmp_path / "boot-id").read_text().strip() == "2" * 32
    assert iterations <= 2 * len(stores)
    storage.close(clean=False)


def call_now(call: Callable[..., object], *arguments: object) -> None:
    call(*arguments)


def test_alternate_exchanges_are_found_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, each new exchange was compared with all others of its vhost."""
    reads = 0

    def alternate(exchange: Exchange) -> str:
        nonlocal reads
        reads += 1
        return exchange.__dict__.get("alternate", "")

    def set_alternate(exchange: Exchange, name: str) -> None:
        exchange.__dict__["alternate"] = name

    monkeypatch.setattr(Exchange, "alternate", property(alternate, set_alternate), raising=False)
    start_and_count(tmp_path, 1, 1, 300, monkeypatch)
    assert reads < 10 * 300
