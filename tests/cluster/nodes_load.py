"""Clients of several nodes: publishers with confirms and consumers with acks, that connect to another node when theirs
is gone, and are never lenient: what they see goes into an `Account`. They have heartbeats, as stock clients do: a node
that stands still keeps its sockets, and who waited for it would see nothing of those who serve his vhost meanwhile.

    load = Load(account, addresses)
    load.publish("v", "q", rate=200); load.consume("v", "q")
    ...                                     # kill what you like
    await load.drain()                      # nobody publishes; everything is delivered and acked
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
"""A vhost that is moving lets a connection wait for half a minute, then closes it; then another node is asked."""
GREETING_S: Final = 10.0
HEARTBEAT_S: Final = 4
UNANSWERED_MAX: Final = 500
_PAUSE_S: Final = 0.1


class Served(NamedTuple):
    """A consumer's connection: when it was opened, and when its first delivery came, 0.0 for not yet."""

    opened_at: float
    first_at: float


@dataclass
class Load:
    """All clients of one test. addresses: of the nodes; each client begins at another one, and takes the next.
    heartbeat_s: 0 for those who wait for their node, however long it is silent. patience_s: for any one answer.
    """

    account: Account
    addresses: Sequence[Address]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    links: set[Link] = field(default_factory=set)
    publishing: bool = True
    heartbeat_s: int = HEARTBEAT_S
    patience_s: float = OPEN_TIMEOUT_S
    closes: list[tuple[float, int, str]] = field(default_factory=list)  # when, code, text
    served: dict[str, list[Served]] = field(default_factory=dict)
    silences_s: dict[str, float] = field(default_factory=dict)
    """Of each client, the longest time in which it got no delivery, or no confirm; `listen_anew` begins it."""
    _heard_at: dict[str, float] = field(default_factory=dict)
    _begun: int = 0

    # -- who takes part

    def publish(self, vhost: str, queue: str, rate: float = 100.0, burst: int = 5) -> None:
        """A publisher: so many messages a second, some at once."""
        self._run(self._publish(vhost, queue, rate, burst, self._client(vhost, queue)))

    def consume(self, vhost: str, queue: str, prefetch: int = 50) -> None:
        """A consumer that acks what it is given, in groups."""
        self._run(self._consume(vhost, queue, prefetch, self._client(vhost, queue)))

    def _client(self, vhost: str, queue: str) -> str:
        """A name for one: of `silences_s`."""
        client = f"{vhost} {queue} {len(self.tasks)}"
        self._heard_at[client] = time.monotonic()
        return client

    def _run(self, client: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(client))

    async def declare(self, vhost: str, *queues: str, table: bytes = b"\x00\x00\x00\x00") -> None:
        """Durable queues, by whichever node answers."""
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
        """To the next of the nodes that lets us in. Raises: nothing but what cancels it."""
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

    def listen_anew(self) -> None:
        """What is in `silences_s` begins now."""
        self.silences_s = dict.fromkeys(self._heard_at, 0.0)
        self._heard_at = dict.fromkeys(self._heard_at, time.monotonic())

    def silent_s(self, vhosts: Sequence[str]) -> float:
        """The longest silence of a client of these vhosts, one that lasts among them."""
        now = time.monotonic()
        of = [client for client in self._heard_at if client.split()[0] in vhosts]
        return max(max(self.silences_s.get(each, 0.0), now - self._heard_at[each]) for each in of)

    def all_heard_since(self, at: float, vhosts: Sequence[str]) -> bool:
        """Whether each client of these vhosts has got a delivery, or a confirm, since then."""
        return all(heard > at for client, heard in self._heard_at.items() if client.split()[0] in vhosts)

    def _hears(self, client: str) -> None:
        now = time.monotonic()
        self.silences_s[client] = max(self.silences_s.get(client, 0.0), now - self._heard_at[client])
        self._heard_at[client] = now

    def first_since(self, queue: str, since: float) -> float:
        """When the first delivery came over a connection that was opened after `since`; 0.0: none yet. Some of them see
        none: a node that is cut off lets clients in until it knows that it has lost the vhost.
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
                self._hears(client)
            self.account.answered(session, tag, multiple, acked)

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
        """Until no more than so many are not answered. Raises: Gone."""
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
        served.append(Served(time.monotonic(), 0.0))
        cancelled = asyncio.Event()

        def delivered(message: Message) -> None:
            self._hears(client)
            if not served[-1].first_at:
                served[-1] = served[-1]._replace(first_at=time.monotonic())
            name = account.delivered(queue, message.properties, message.body, message.redelivered)
            waiting.append((message.tag, name))

        link.on_deliver = delivered
        link.on_cancel = cancelled.set
        await link.qos(prefetch)
        await link.consume(queue)
        while not link.gone.is_set() and not cancelled.is_set():
            if waiting:
                for _, name in waiting:
                    account.acked(queue, name)
                link.ack(waiting[-1][0], multiple=True)
                names = [name for _, name in waiting]
                waiting.clear()
                await link.qos(prefetch)  # answered behind the ack
                account.heard(queue, names)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await link.gone.wait()

    # -- the end

    async def stop_publishing(self, timeout_s: float = 300.0) -> None:
        """Each publisher hears the last of its answers, or is cut off."""
        self.publishing = False
        publishers = [task for task in self.tasks if "_publish" in repr(task.get_coro())]
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*publishers)

    async def drain(self, timeout_s: float = 300.0) -> None:
        """Until all that was confirmed has come, and nothing comes any more; then all leave."""
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
            pass  # the judge says what is missing
        finally:
            await self.leave()

    async def leave(self) -> None:
        """All clients go. Raises: what has ended one of them by itself."""
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
