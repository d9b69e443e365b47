"""What a start does, counted: twice the queues, vhosts, exchanges are twice the work, not four times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from amqpd.broker.vhost.exchange import Exchange
from amqpd.config import Settings, load
from amqpd.server import Server
from amqpd.storage.metadata.store import ExchangeRow, MetadataState, QueueRow, SqlMetadataStore, VhostRow
from amqpd.storage.storage import Storage


class Name(str):
    """A name that counts how often it is held against others."""

    compared: ClassVar[int] = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def settings(path: Path) -> Settings:
    return load([f"--data-dir={path}", "--amqp.port=0", "--http.port=0"], {}).settings


def started(path: Path, vhosts: int, queues: int, exchanges: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many names a start has compared. Every queue has a directory; an exchange has another as its alternate."""
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
    assert len(list(path.glob("vhosts/*/queues/*"))) == queues, "a directory was set aside"
    return compared


def state(vhosts: int, queues: int, exchanges: int) -> MetadataState:
    empty: list[Any] = []
    rows = [VhostRow(Name(f"vhost {number}"), Name(f"v{number}")) for number in range(vhosts)]
    queue_rows = [
        QueueRow(Name(f"vhost {number % vhosts}"), Name(f"queue {number}"), Name(f"q{number}"))
        for number in range(queues)
    ]
    exchange_rows = [ExchangeRow(Name("vhost 0"), Name(f"exchange {number}"), "fanout") for number in range(exchanges)]
    nothing = MetadataState("0" * 32, False, *[empty] * (len(MetadataState._fields) - 2))
    return nothing._replace(vhosts=rows, exchanges=exchange_rows, queues=queue_rows)


def test_names_are_looked_up_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = started(tmp_path, 20, 400, 100, monkeypatch)
    assert compared < 10 * (20 + 400 + 100)


def test_a_power_cut_is_noted_by_a_count(tmp_path: Path) -> None:
    """Whether all logs have taken note of it was looked up over all of them as each was opened."""
    Storage(tmp_path, post=_now, boot_id="1" * 32, inline=True).close(clean=False)
    storage = Storage(tmp_path, post=_now, boot_id="2" * 32, inline=True)
    assert storage.power_cut
    looks = 0

    class Counting(dict[Any, None]):
        def __iter__(self) -> Any:
            nonlocal looks
            for each in dict.__iter__(self):
                looks += 1
                yield each

    storage._stores = Counting(storage._stores)
    stores = [storage.open_queue("v", f"{number:032x}") for number in range(200)]
    for store in stores[:-1]:
        store.recover()
    assert (tmp_path / "boot-id").read_text().strip() == "1" * 32, "one has not taken note yet"
    stores[-1].recover()
    assert (tmp_path / "boot-id").read_text().strip() == "2" * 32
    assert looks <= 2 * len(stores)
    storage.close(clean=False)


def _now(call: Callable[..., object], *arguments: object) -> None:
    call(*arguments)


def test_exchanges_find_who_names_them_as_alternate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exchange that came looked at all others of its vhost."""
    looks = 0

    def alternate(exchange: Exchange) -> str:
        nonlocal looks
        looks += 1
        return exchange.__dict__.get("alternate", "")

    def set_alternate(exchange: Exchange, name: str) -> None:
        exchange.__dict__["alternate"] = name

    monkeypatch.setattr(Exchange, "alternate", property(alternate, set_alternate), raising=False)
    started(tmp_path, 1, 1, 300, monkeypatch)
    assert looks < 10 * 300
