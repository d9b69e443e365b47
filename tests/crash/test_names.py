"""Metadata over kill -9: declared objects are there, deleted ones are not, a new queue has no message of an old one.

Declarations, deletions and publishes run in random order, from a seed, until the kill. After each start a model says
which objects must exist (declaration answered), must not (deletion answered) or may (the kill took the answer).
`TEST_CRASH_SEED` sets another seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Final

import pytest
from quickclient import Gone, Link, connect

from amqpd.testing import BrokerProcess

NAMES: Final = 6
DURABLE: Final = b"\x10\x00\x02"  # delivery mode 2
UNKNOWN: Final = "unknown"
COMMANDS_MIN: Final = 8  # answered before each kill


class Model:
    """The expected state.

    queues: name -> incarnation; None if absent; UNKNOWN if the kill took the answer. Exchanges and bindings in the same
    way.
    """

    def __init__(self) -> None:
        self.queues: dict[str, int | str | None] = {f"queue{n}": None for n in range(NAMES)}
        self.exchanges: dict[str, bool | str] = {f"exchange{n}": False for n in range(NAMES)}
        self.bindings: dict[tuple[str, str], bool | str] = {}
        self.confirmed: dict[str, list[bytes]] = {queue: [] for queue in self.queues}
        self.sent: dict[str, list[bytes]] = {queue: [] for queue in self.queues}
        self.incarnations = 0

    def reset_queue(self, queue: str, state: str | None) -> None:
        self.queues[queue] = state
        for binding in self.bindings:
            if binding[0] == queue:
                self.bindings[binding] = False if state is None else UNKNOWN
        if state is None:
            self.confirmed[queue].clear()
            self.sent[queue].clear()

    def reset_exchange(self, exchange: str, state: bool | str) -> None:
        self.exchanges[exchange] = state
        for binding in self.bindings:
            if binding[1] == exchange:
                self.bindings[binding] = state if state is False else UNKNOWN


class Client:
    """A client that runs random commands and updates the model."""

    def __init__(self, broker: BrokerProcess, model: Model, rng: random.Random) -> None:
        self.broker, self.model, self.rng = broker, model, rng
        self.done = 0
        self.link: Link | None = None
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._published = 0

    async def connect(self) -> Link:
        self.link = link = await connect(self.broker.amqp_port)
        await link.confirm_select()
        link.on_confirm = self._confirm
        return link

    def _confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        for waiting in [t for t in self._waiting if t == tag or (multiple and t < tag)]:
            future = self._waiting.pop(waiting)
            if not future.done():
                future.set_result(acked)

    async def run(self) -> None:
        """Run random commands until the broker is killed."""
        link = await self.connect()
        steps = [self._declare, self._declare, self._publish, self._publish, self._publish, self._bind, self._exchange]
        steps += [self._delete, self._delete_exchange]
        try:
            while True:
                await self.rng.choice(steps)(link)
                self.done += 1
        except (Gone, OSError):
            return

    async def _declare(self, link: Link) -> None:
        queue = self.rng.choice(list(self.model.queues))
        if self.model.queues[queue] is not None:
            return
        self.model.reset_queue(queue, UNKNOWN)
        _, messages, _ = await link.declare_queue(queue)
        assert messages == 0, f"{queue} is new and has {messages} messages"
        self.model.incarnations += 1
        self.model.queues[queue] = self.model.incarnations
        for binding in self.model.bindings:
            if binding[0] == queue:
                self.model.bindings[binding] = False

    async def _delete(self, link: Link) -> None:
        queue = self.rng.choice(list(self.model.queues))
        if not isinstance(self.model.queues[queue], int):
            return
        self.model.reset_queue(queue, UNKNOWN)
        await link.delete_queue(queue)
        self.model.reset_queue(queue, None)

    async def _publish(self, link: Link) -> None:
        present = [queue for queue, state in self.model.queues.items() if isinstance(state, int)]
        if not present:
            return
        queue = self.rng.choice(present)
        for _ in range(self.rng.randrange(1, 20)):
            self._published += 1
            body = b"%s %d %s" % (queue.encode(), self.model.queues[queue], os.urandom(8).hex().encode())
            self.model.sent[queue].append(body)
            future = self._waiting[self._published] = link.loop.create_future()
            link.publish("", queue, DURABLE, body)
        gone = asyncio.create_task(link.gone.wait())
        await asyncio.wait((future, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not future.done():
            raise Gone(link.why)
        assert future.result()
        self.model.confirmed[queue] = list(self.model.sent[queue])

    async def _exchange(self, link: Link) -> None:
        exchange = self.rng.choice(list(self.model.exchanges))
        if self.model.exchanges[exchange] is not False:
            return
        self.model.exchanges[exchange] = UNKNOWN
        await link.declare_exchange(exchange)
        self.model.reset_exchange(exchange, False)
        self.model.exchanges[exchange] = True

    async def _delete_exchange(self, link: Link) -> None:
        exchange = self.rng.choice(list(self.model.exchanges))
        if self.model.exchanges[exchange] is not True:
            return
        self.model.reset_exchange(exchange, UNKNOWN)
        await link.delete_exchange(exchange)
        self.model.reset_exchange(exchange, False)

    async def _bind(self, link: Link) -> None:
        queues = [queue for queue, state in self.model.queues.items() if isinstance(state, int)]
        exchanges = [exchange for exchange, state in self.model.exchanges.items() if state is True]
        if not queues or not exchanges:
            return
        binding = (self.rng.choice(queues), self.rng.choice(exchanges))
        if self.model.bindings.get(binding) is True:
            return
        self.model.bindings[binding] = UNKNOWN
        await link.bind(*binding, key=binding[0])
        self.model.bindings[binding] = True


async def exists(broker: BrokerProcess, kind: str, name: str) -> bool:
    link = await connect(broker.amqp_port)
    try:
        if kind == "queue":
            await link.declare_queue(name, passive=True)
        else:
            await link.declare_exchange(name, passive=True)
    except Gone:
        assert link.close_code == 404, link.why
        await link.gone.wait()
        return False
    link.close()
    await link.gone.wait()
    return True


async def check(broker: BrokerProcess, model: Model) -> None:
    """Compare the broker with the model, and resolve what the model does not know."""
    for queue, state in model.queues.items():
        found = await exists(broker, "queue", queue)
        if state is None:
            assert not found, f"{queue} was deleted and is there again"
        elif state != UNKNOWN:
            assert found, f"{queue} was declared and is missing"
    for exchange, known in model.exchanges.items():
        found = await exists(broker, "exchange", exchange)
        assert known == UNKNOWN or found == known, f"{exchange}: {found}, not {known}"
        if known == UNKNOWN:
            model.reset_exchange(exchange, found)
    link = await connect(broker.amqp_port)
    await link.confirm_select()
    for queue, state in list(model.queues.items()):
        if state is None:
            continue
        if state == UNKNOWN:  # a declaration or deletion without an answer: start again
            if await exists(broker, "queue", queue):
                await link.delete_queue(queue)
            model.reset_queue(queue, None)
            continue
        bodies = []
        while (message := await link.get(queue, no_ack=True)) is not None:
            bodies.append(message.body)
        sent, confirmed = model.sent[queue], model.confirmed[queue]
        foreign = [body for body in bodies if body not in sent]
        assert not foreign, f"{queue}, incarnation {state}, shows {foreign[:3]}"
        missing = [body for body in confirmed if body not in bodies]
        assert not missing, f"{queue}: {len(missing)} of {len(confirmed)} confirmed are lost"
        assert bodies == [body for body in sent if body in bodies], f"{queue}: another order"
        model.sent[queue], model.confirmed[queue] = [], []
    # A binding is checked by publishing through it.
    for (queue, exchange), bound in list(model.bindings.items()):
        if model.exchanges[exchange] is not True or model.queues[queue] is None:
            model.bindings[queue, exchange] = False
            continue
        before = (await link.declare_queue(queue, passive=True))[1]
        link.publish(exchange, queue, b"\x00\x00", b"is it bound?")
        after = (await link.declare_queue(queue, passive=True))[1]
        assert bound == UNKNOWN or (after > before) == bound, f"{exchange} -> {queue}: {after > before}, not {bound}"
        model.bindings[queue, exchange] = after > before
        while await link.get(queue, no_ack=True) is not None:
            pass
    link.close()
    await link.gone.wait()


def queue_directories(data_dir: Path) -> int:
    """Count the queue directories that are not marked as deleted.

    Directories of deleted queues must be empty; they are removed when the database file itself holds the deletion.
    """
    found = [path for path in data_dir.glob("vhosts/*/queues/*") if path.is_dir()]
    deleted = [path for path in found if path.name.endswith(".deleted")]
    assert not [path for path in deleted if any(path.iterdir())]
    return len(found) - len(deleted)


async def cycles(data_dir: Path, count: int, seed: int) -> int:
    rng = random.Random(seed)
    model = Model()
    broker = BrokerProcess(data_dir, settings={"log.level": "warning"})
    done = 0
    try:
        for _ in range(count):
            await asyncio.to_thread(broker.start)
            await check(broker, model)
            client = Client(broker, model, rng)
            client_task = asyncio.create_task(client.run())
            commands_wanted = rng.randint(COMMANDS_MIN, 60)
            deadline = time.monotonic() + 100
            while client.done < commands_wanted and not client_task.done():
                assert time.monotonic() < deadline, f"{client.done} commands answered"
                await asyncio.sleep(0.002)
            await asyncio.sleep(rng.uniform(0.0, 0.02))
            await asyncio.to_thread(broker.kill)
            await client_task
            done += client.done
            assert "Traceback" not in broker.stderr, broker.stderr
        await asyncio.to_thread(broker.start)
        await check(broker, model)
        # A directory without a queue would be a leak.
        directories = queue_directories(data_dir)
        present = sum(1 for state in model.queues.values() if state is not None)
        assert directories <= present, f"{directories} directories for {present} queues"
        assert "Traceback" not in broker.stderr, broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
    print(f"\n{count} kills, {done} commands, {model.incarnations} queues declared")
    return done


@pytest.mark.slow
async def test_declared_and_deleted_names_over_four_kills(tmp_path: Path) -> None:
    assert await cycles(tmp_path / "data", 4, seed=2) >= 4 * COMMANDS_MIN, "too few commands between the kills"


@pytest.mark.on_demand
async def test_declared_and_deleted_names_over_thirty_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("TEST_CRASH_SEED", "30"))
    assert await cycles(tmp_path / "data", 30, seed) >= 30 * COMMANDS_MIN


@pytest.mark.slow
async def test_created_and_deleted_users_survive_kills(tmp_path: Path) -> None:
    """A created user can log in and declare after the kill; a deleted user cannot log in."""
    broker = BrokerProcess(tmp_path / "data")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    try:
        for number in range(3):
            await asyncio.to_thread(broker.start)
            if number:
                link = await connect(broker.amqp_port, user=f"user{number - 1}", password="secret")
                await link.declare_queue("theirs")
                link.close()
                await link.gone.wait()
                await asyncio.to_thread(broker.api, "DELETE", f"/api/users/user{number - 1}")
            if number > 1:
                with pytest.raises(Gone):  # per specification a refused login closes the socket
                    await connect(broker.amqp_port, user=f"user{number - 2}", password="secret")
            user = {"password": "secret", "tags": ""}
            await asyncio.to_thread(broker.api, "PUT", f"/api/users/user{number}", user)
            await asyncio.to_thread(broker.api, "PUT", f"/api/permissions/%2F/user{number}", everything)
            await asyncio.to_thread(broker.kill)
    finally:
        await asyncio.to_thread(broker.kill)
