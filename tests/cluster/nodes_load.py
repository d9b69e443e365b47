"""Clients of several nodes: publishers with confirms and consumers with acks. They reconnect to another node when their
node fails, and record everything in an `Account`. They use heartbeats, as stock clients do: a suspended node keeps its
sockets, and a client without heartbeats would wait for it.

    load = Load(account, addresses)
    load.publish("v", "q", rate=200); load.consume("v", "q")
    ...                                     # kill nodes
    await load.drain()                      # stop publishing; everything is delivered and acked
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from account import Account, Name, Session
from quickclient import HEARS_CANCEL, Gone, Link, Message, connect

Address = tuple[str, int]
OPEN_TIMEOUT_S: Final = 60.0
"""A connection to a moving vhost waits for half a minute and is then closed; the client tries another node."""
GREETING_S: Final = 10.0
HEARTBEAT_S: Final = 4
UNANSWERED_MAX: Final = 500
_PAUSE_S: Final = 0.1


class ConsumerConnection(NamedTuple):
    """A consumer's connection: when it was opened, and when its first delivery arrived (0.0: none yet)."""

    opened_at: float
    first_at: float


@dataclass
class Load:
    """All clients of one test. addresses: the nodes; each client starts at another one and tries the next. heartbeat_s:
    0 for clients that wait for a silent node. patience_s: the timeout of each answer.
    """

    account: Account
    addresses: Sequence[Address]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    links: set[Link] = field(default_factory=set)
    publishing: bool = True
    heartbeat_s: int = HEARTBEAT_S
    patience_s: float = OPEN_TIMEOUT_S
    closes: list[tuple[float, int, str]] = field(default_factory=list)  # when, code, text
    served: dict[str, list[ConsumerConnection]] = field(default_factory=dict)
    silences_s: dict[str, float] = field(default_factory=dict)
    """For each client, the longest time without a delivery or confirm since `listen_anew`."""
    _heard_at: dict[str, float] = field(default_factory=dict)
    _begun: int = 0

    # -- who takes part

    def publish(self, vhost: str, queue: str, rate: float = 100.0, burst: int = 5) -> None:
        """Start a publisher of `rate` messages a second, `burst` at once."""
        self._run(self._publish(vhost, queue, rate, burst, self._client(vhost, queue)))

    def consume(self, vhost: str, queue: str, prefetch: int = 50) -> None:
        """Start a consumer that acks in groups."""
        self._run(self._consume(vhost, queue, prefetch, self._client(vhost, queue)))

    def _client(self, vhost: str, queue: str) -> str:
        """Return the client's name, used in `silences_s`."""
        client = f"{vhost} {queue} {len(self.tasks)}"
        self._heard_at[client] = time.monotonic()
        return client

    def _run(self, client: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(client))

    async def declare(self, vhost: str, *queues: str, table: bytes = b"\x00\x00\x00\x00") -> None:
        """Declare durable queues through the first node that answers."""
        async with asyncio.timeout(180):
            while True:
                try:
                    link = await self._connect(vhost)
                    for queue in queues:
                        await link.declare_queue(queue, table=table)
                    self._leave(link)
                    return
                except (Gone, OSError):
                    await asyncio.sleep(_PAUSE_S)

    async def _connect(self, vhost: str) -> Link:
        """Connect to the next node that accepts. Never raises, except when cancelled."""
        while True:
            self._begun += 1
            host, port = self.addresses[self._begun % len(self.addresses)]
            try:
                async with asyncio.timeout(self.patience_s):
                    link = await connect(
                        port,
                        vhost=vhost,
                        host=host,
                        heartbeat_s=self.heartbeat_s,
                        patience_s=self.patience_s,
                        properties=HEARS_CANCEL,
                        greeting_s=GREETING_S,
                    )
                if self.heartbeat_s:
                    link.beat(self.heartbeat_s)
                self.links.add(link)
                return link
            except (Gone, OSError, TimeoutError):
                await asyncio.sleep(_PAUSE_S)

    def _leave(self, link: Link) -> None:
        link.close()
        self.links.discard(link)

    def _lost(self, link: Link) -> None:
        self.closes.append((time.monotonic(), link.close_code, link.why))
        self._leave(link)

    def reset_silences(self) -> None:
        """Reset `silences_s`."""
        self.silences_s = dict.fromkeys(self._heard_at, 0.0)
        self._heard_at = dict.fromkeys(self._heard_at, time.monotonic())

    def silent_s(self, vhosts: Sequence[str]) -> float:
        """Return the longest silence of a client of these vhosts, including a current one."""
        now = time.monotonic()
        of = [client for client in self._heard_at if client.split()[0] in vhosts]
        return max(max(self.silences_s.get(each, 0.0), now - self._heard_at[each]) for each in of)

    def all_received_since(self, at: float, vhosts: Sequence[str]) -> bool:
        """Return True if each client of these vhosts has received a delivery or confirm since then."""
        return all(heard > at for client, heard in self._heard_at.items() if client.split()[0] in vhosts)

    def _note_activity(self, client: str) -> None:
        now = time.monotonic()
        self.silences_s[client] = max(self.silences_s.get(client, 0.0), now - self._heard_at[client])
        self._heard_at[client] = now

    def first_since(self, queue: str, since: float) -> float:
        """Return the time of the first delivery over a connection opened after `since`, or 0.0. A connection may see
        none: a cut-off node accepts clients until it knows that it lost the vhost.
        """
        later = (each.first_at for each in self.served.get(queue, ()) if each.opened_at > since)
        return next((at for at in later if at), 0.0)

    # -- publishers

    async def _publish(self, vhost: str, queue: str, rate: float, burst: int, client: str) -> None:
        while self.publishing:
            link = await self._connect(vhost)
            session = self.account.session(queue)
            link.on_confirm = self._confirms(session, client)
            with contextlib.suppress(Gone, TimeoutError, OSError):
                await link.confirm_select()
                await self._publish_over(link, session, queue, rate, burst)
            if self.publishing:
                self._lost(link)
                await asyncio.sleep(_PAUSE_S)

    def _confirms(self, session: Session, client: str) -> Callable[[int, bool, bool], None]:
        def confirmed(tag: int, multiple: bool, acked: bool) -> None:
            if acked:
                self._note_activity(client)
            self.account.record_confirm(session, tag, multiple, acked)

        return confirmed

    async def _publish_over(self, link: Link, session: Session, queue: str, rate: float, burst: int) -> None:
        while self.publishing:
            for _ in range(burst):
                link.publish("", queue, *self.account.publish(session))
            await link.writable()
            await asyncio.sleep(burst / rate)
            await self._answers(link, session, UNANSWERED_MAX)
        await self._answers(link, session, 0)

    async def _answers(self, link: Link, session: Session, count_max: int) -> None:
        """Wait until at most `count_max` messages are unanswered. Raises: Gone."""
        while self.account.unanswered(session) > count_max:
            await link.writable()
            await asyncio.sleep(0.01)

    # -- consumers

    async def _consume(self, vhost: str, queue: str, prefetch: int, client: str) -> None:
        while True:
            link = await self._connect(vhost)
            with contextlib.suppress(Gone, TimeoutError, OSError):
                await self._consume_over(link, queue, prefetch, client)
            self._lost(link)
            await asyncio.sleep(_PAUSE_S)

    async def _consume_over(self, link: Link, queue: str, prefetch: int, client: str) -> None:
        account = self.account
        waiting: list[tuple[int, Name]] = []
        served = self.served.setdefault(queue, [])
        served.append(ConsumerConnection(time.monotonic(), 0.0))
        cancelled = asyncio.Event()

        def delivered(message: Message) -> None:
            self._note_activity(client)
            if not served[-1].first_at:
                served[-1] = served[-1]._replace(first_at=time.monotonic())
            name = account.record_delivery(queue, message.properties, message.body, message.redelivered)
            waiting.append((message.tag, name))

        link.on_deliver = delivered
        link.on_cancel = cancelled.set
        await link.qos(prefetch)
        await link.consume(queue)
        while not link.gone.is_set() and not cancelled.is_set():
            if waiting:
                for _, name in waiting:
                    account.record_ack(queue, name)
                link.ack(waiting[-1][0], multiple=True)
                names = [name for _, name in waiting]
                waiting.clear()
                await link.qos(prefetch)  # answered after the ack
                account.record_ack_read(queue, names)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await link.gone.wait()

    # -- the end

    async def stop_publishing(self, timeout_s: float = 300.0) -> None:
        """Stop publishing. Each publisher waits for its last confirms or for the end of its connection."""
        self.publishing = False
        publishers = [task for task in self.tasks if "_publish" in repr(task.get_coro())]
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*publishers)

    async def drain(self, timeout_s: float = 300.0) -> None:
        """Wait until every confirmed message is delivered and nothing more arrives, then disconnect."""
        try:
            await self.stop_publishing(timeout_s)
            async with asyncio.timeout(timeout_s):
                quiet = 0
                while quiet < 10:
                    before = self.account.repeats(), sum(map(len, self.account.seen.values()))
                    await asyncio.sleep(0.2)
                    after = self.account.repeats(), sum(map(len, self.account.seen.values()))
                    quiet = quiet + 1 if before == after and not self.account.missing() else 0
        except TimeoutError:
            pass  # the account reports what is missing
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Disconnect all clients. Raises: the error that ended one of them."""
        for task in self.tasks:
            task.cancel()
        ends = await asyncio.gather(*self.tasks, return_exceptions=True)
        left = list(self.links)
        for link in left:
            self._leave(link)
        await asyncio.gather(*(link.gone.wait() for link in left))
        self.tasks.clear()
        for end in ends:
            if isinstance(end, Exception):
                raise end
