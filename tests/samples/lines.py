"""A sample front end for a protocol of its own: lines of text over TCP, with confirms and credit.

    LOGIN user password vhost      OK
    PUB exchange key body          CONFIRM once it is safe; REFUSE if a queue rejects it or a log fails
    SUB queue credit               OK, then MSG tag queue body, at most `credit` of them unacked
    ACK tag                        acks the message

`-` is the default exchange; special characters are percent-encoded. An error is sent (ERR 404 ...) and closes the
client; its unacked messages are requeued. Run it with `amqpd.__main__.main(guests=[Lines])`.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote, unquote, unquote_to_bytes

from amqpd.auth.internal_backend import AuthChange, AuthenticationRefused
from amqpd.broker import consume
from amqpd.broker.broker import Broker
from amqpd.broker.consumer import NO_ARGUMENTS, Consumer, LogNotOpen, QueueBase, QueueEntry, within
from amqpd.broker.listeners import BrokerListener
from amqpd.broker.message import Message
from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.publish.publisher import Publisher
from amqpd.broker.queue.log_opener import opening_over
from amqpd.broker.queue.queue import Queue
from amqpd.broker.session import Session
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.errors import AmqpError, FrameError, NotAllowed, PreconditionFailed, ResourceError
from amqpd.listeners import Listener, bound_sockets
from amqpd.protocol_server import FrontEnd

LINE_BYTES_MAX, CREDIT_MAX = 1 << 20, 1000
PERSISTENT = b"\x10\x00\x02"


class LineConsumer(Consumer):
    """The consumer of a SUB. The credit bounds deliveries to a client that does not read: it cannot ack unread
    messages.
    """

    def __init__(self, client: Client, queue: Queue, credit: int) -> None:
        super().__init__(queue, f"lines-{client.session.serial}-{queue.name}", False, False, NO_ARGUMENTS)
        self.client, self.source, self.credit = client, queue, credit

    def can_take(self) -> bool:
        return self.in_flight < self.credit

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        assert entry is not None  # each message must be acked
        self.in_flight += 1
        entry.consumer = self
        self.client.tag += 1
        self.client.unacked[self.client.tag] = entry
        self.client.send(f"MSG {self.client.tag} {quote(self.queue.name)} {quote(message.body())}")
        if entry.queue.logged:
            entry.message = None  # its log has the message

    def cancel(self) -> None:
        self.client.consumers.discard(self)
        self.client.close(f"ERR 404 queue '{self.queue.name}' is gone")


class Client:
    """One client socket. Output is collected in `out` and written at the end of the turn, after the logs."""

    session: Session

    def __init__(self, broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broker, self.reader, self.writer = broker, reader, writer
        self.out, self.tag, self.unacked = bytearray(), 0, dict[int, QueueEntry]()
        self.consumers = set[LineConsumer]()

    async def login(self) -> None:
        word, user, password, vhost = (await self.reader.readline()).decode().split()
        if word != "LOGIN":
            raise FrameError("LOGIN user password vhost")
        host, port = self.writer.get_extra_info("peername")[:2]
        account = await self.broker.auth.authenticate(user, unquote_to_bytes(password), host == "127.0.0.1", host)
        found_vhost = self.broker.vhosts.get(unquote(vhost))
        if found_vhost is None or not self.broker.auth.may_access_vhost(account, found_vhost.name):
            raise NotAllowed(f"no vhost '{vhost}' for '{user}'")
        self.session = Session(self.broker, found_vhost, account, f"lines {host}:{port}", (host, port))
        self.publisher = Publisher(self.session)

    async def run(self) -> None:
        while words := (await self.reader.readline()).decode().split():
            while True:
                try:
                    await self.execute(words)
                    break
                except LogNotOpen as not_open:  # the line is executed again when the logs of its queues are open
                    await opening_over(not_open.destinations)
                except DeclarationPending as pending:
                    await pending.wait_in_task()
            self.broker.turn.schedule()
            await asyncio.sleep(0)  # other tasks run

    async def execute(self, words: list[str]) -> None:
        match words:
            case ["PUB", exchange, key, *body]:
                await self.publish("" if exchange == "-" else unquote(exchange), unquote(key), " ".join(body))
            case ["SUB", queue, credit]:
                self.subscribe(unquote(queue), int(credit))
            case ["ACK", tag]:
                self.ack(int(tag))
            case _:
                raise FrameError(f"no such line: {words[0]}")

    async def publish(self, exchange: str, key: str, body: str) -> None:
        if self.broker.alarm_reason:
            raise ResourceError("publishers are held back")
        message = self.publisher.compose(exchange, key, PERSISTENT, unquote_to_bytes(body))
        route = self.publisher.route
        accepted = self.publisher.offer(route, message)
        safe: asyncio.Future[bool] = self.broker.loop.create_future()
        when_safe(self.broker.turn, route.logs(message), safe.set_result)
        self.send("CONFIRM" if await asyncio.shield(safe) and accepted else "REFUSE")

    def subscribe(self, name: str, credit: int) -> None:
        queue = consume.readable_queue(self.session, name)
        consume.check_exclusive(queue, exclusive=False)
        self.consumers.add(consumer := LineConsumer(self, queue, min(credit, CREDIT_MAX)))
        self.send("OK")
        consume.start_consumer(queue, consumer)

    def ack(self, tag: int) -> None:
        if (entry := self.unacked.pop(tag, None)) is None:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        entry.queue.ack(entry)
        if (consumer := entry.consumer) is not None:
            consumer.in_flight -= 1
            entry.queue.activate(consumer)

    def send(self, line: str) -> None:
        self.out += line.encode() + b"\n"
        self.broker.turn.flush_later(self)

    def flush(self) -> None:
        if self.out and not self.writer.is_closing():
            self.writer.write(bytes(self.out))
        self.out.clear()

    def close(self, reason: str) -> None:
        self.send(reason)
        self.flush()
        self.writer.close()

    def release(self) -> None:
        for consumer in self.consumers:
            consume.stop_consumer(self.session, consumer.source, consumer)
        for entry in self.unacked.values():
            entry.consumer = None
            entry.queue.requeue(entry, True)
            entry.queue.schedule_dispatch()
        self.writer.close()


class Lines(FrontEnd, BrokerListener):
    """Listens on a free port of the loopback interface. A publish to very many queues is not spread over several
    turns.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker, self.port, self.clients = broker, 0, set[Client]()
        self.servers: list[asyncio.Server] = []
        broker.clients.append(self)

    async def start(self) -> None:
        for sock in bound_sockets("127.0.0.1", self.port):
            self.port = sock.getsockname()[1]
            self.listeners.append(Listener("lines", "127.0.0.1", self.port))
            self.servers.append(await asyncio.start_server(self.serve, sock=sock, limit=LINE_BYTES_MAX))

    async def suspend(self) -> None:
        while self.servers:
            self.servers.pop().close()

    async def resume(self) -> None:
        if self.listeners and not self.servers:
            self.listeners.clear()
            await self.start()

    async def stop(self) -> None:
        self.listeners.clear()
        await self.suspend()
        for client in list(self.clients):
            client.close("ERR 320 the broker stops")
        for _ in range(300):  # 3 s at most: unacked messages are requeued before the logs are closed
            if self.clients:
                await asyncio.sleep(0.01)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(self.broker, reader, writer)
        try:
            async with asyncio.timeout(10):
                await client.login()
            if not self.listeners:  # stopped meanwhile
                raise NotAllowed("the broker stops")
            self.clients.add(client)
            client.send("OK")
            await client.run()
        except AmqpError as error:
            client.close(f"ERR {error.code} {error.text}")
        except (ValueError, AuthenticationRefused, TimeoutError, ConnectionError):
            client.close("ERR 501 not this line, or not now")
        finally:
            self.clients.discard(client)
            client.release()

    def on_user_changed(self, change: AuthChange) -> None:
        for client in list(self.clients):
            client.publisher.forget_routes()
            if reason := client.session.revocation_reason(change):
                client.close(f"ERR 320 {reason}")

    def vhost_deleted(self, name: str) -> None:
        for client in list(self.clients):
            if client.session.vhost.name == name:
                client.close(f"ERR 320 vhost '{name}' is down")

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        for client in self.clients:
            for entry in client.unacked.values():
                if entry.queue is queue and within(entry.offset, ranges):
                    entry.offset = -1
