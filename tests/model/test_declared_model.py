"""Declarations, bindings, deletions, publishes of three clients, with commits that fail at any point, against a twin.

The twin knows what was answered. After every commit, and after every start:

- what is durable and in memory is in the database, and nothing else is, but for names that are held meanwhile;
- what was answered ok is there, with its kind; what was deleted with ok is not;
- a start shows what memory showed, and every confirmed message of a queue that nobody asked to delete.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pamqp.commands as spec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory_metadata import DeclaredHouse, FailingClient
from profiles import examples

QUEUES = ("q0", "q1")
EXCHANGES = ("x0", "x1")
LEAVING = ("delete_queue", "cancel")

queues = st.sampled_from(QUEUES)
exchanges = st.sampled_from(EXCHANGES)
clients = st.integers(0, 2)


class Shown(NamedTuple):
    """Queues with their ids, exchanges, bindings."""

    queues: dict[str, str]
    exchanges: set[str]
    bindings: set[tuple[str, str, str]]


class Said:
    """A command whose answer is to come, or a publish whose confirm is."""

    def __init__(self, what: str, *names: Any) -> None:
        self.what = what
        self.names = names


class DeclaredModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.house = DeclaredHouse()
        # By queue: what a restart has to show. What somebody has asked to delete is not among them.
        self.confirmed: dict[str, list[bytes]] = {}
        self.leaving: set[str] = set()
        self.number = 0
        self.clients: list[FailingClient] = []
        self.said: list[list[Said]] = []
        self.tags = [0, 0, 0]
        for index in range(3):
            self.clients.append(self.connected(f"c{index}"))
            self.said.append([])

    def connected(self, name: str) -> FailingClient:
        client = FailingClient(self.house, name)
        client.say(1, spec.Channel.Open(), spec.Confirm.Select())
        self.house.settle()
        client.heard()
        return client

    def replace(self, index: int) -> None:
        """A client whose connection has ended. What it had asked for may still come to pass."""
        for said in self.said[index]:
            if said.what in LEAVING:
                self.confirmed.pop(said.names[0], None)
        self.said[index], self.tags[index] = [], 0
        self.clients[index] = self.connected(f"c{index}")

    def say(self, index: int, said: Said, method: Any) -> None:
        self.said[index].append(said)
        self.clients[index].say(1, method)
        self.listen()

    # -- what clients do ---------------------------------------------------------------------------------------------

    @rule(index=clients, queue=queues, durable=st.sampled_from([True, True, False]), auto=st.booleans())
    def declare_queue(self, index: int, queue: str, durable: bool, auto: bool) -> None:
        method = spec.Queue.Declare(queue=queue, durable=durable, auto_delete=auto)
        self.say(index, Said("queue", queue, durable), method)

    @rule(index=clients, exchange=exchanges, durable=st.sampled_from([True, True, False]), auto=st.booleans())
    def declare_exchange(self, index: int, exchange: str, durable: bool, auto: bool) -> None:
        method = spec.Exchange.Declare(exchange=exchange, exchange_type="fanout", durable=durable, auto_delete=auto)
        self.say(index, Said("exchange", exchange, durable), method)

    @rule(index=clients, queue=queues, exchange=exchanges)
    def bind(self, index: int, queue: str, exchange: str) -> None:
        self.say(index, Said("bind"), spec.Queue.Bind(queue=queue, exchange=exchange, routing_key="k"))

    @rule(index=clients)
    def bind_exchanges(self, index: int) -> None:
        self.say(index, Said("bind"), spec.Exchange.Bind(destination="x1", source="x0", routing_key="k"))

    @rule(index=clients, queue=queues, exchange=exchanges)
    def unbind(self, index: int, queue: str, exchange: str) -> None:
        self.say(index, Said("unbind"), spec.Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))

    @rule(index=clients, queue=queues)
    def delete_queue(self, index: int, queue: str) -> None:
        self.say(index, Said("delete_queue", queue), spec.Queue.Delete(queue=queue))

    @rule(index=clients, exchange=exchanges)
    def delete_exchange(self, index: int, exchange: str) -> None:
        self.say(index, Said("delete_exchange", exchange), spec.Exchange.Delete(exchange=exchange))

    @rule(index=clients, queue=queues)
    def consume_and_cancel(self, index: int, queue: str) -> None:
        """An auto-delete queue goes by it."""
        self.say(index, Said("consume"), spec.Basic.Consume(queue=queue, consumer_tag="c"))
        self.say(index, Said("cancel", queue), spec.Basic.Cancel(consumer_tag="c"))

    @rule(index=clients, queue=queues)
    def publish(self, index: int, queue: str) -> None:
        """To the default exchange, persistent and mandatory: it comes back when no queue takes it."""
        self.number += 1
        body = b"%d" % self.number
        self.tags[index] += 1
        self.said[index].append(Said("publish", queue, body, self.tags[index]))
        self.clients[index].publish_mandatory(queue, body)
        self.listen()

    # -- what the database does --------------------------------------------------------------------------------------

    @precondition(lambda self: self.house.metadata.waiting)
    @rule(fails=st.booleans(), kept=st.booleans())
    def commit(self, fails: bool, kept: bool) -> None:
        """kept: it fails, and a start would find it all the same."""
        self.house.metadata.commit(fails=fails, kept=kept)
        self.listen()

    @rule()
    def commit_all(self) -> None:
        while self.house.metadata.waiting:
            self.commit(fails=False, kept=False)

    @precondition(lambda self: self.house.retry_loop.retries)
    @rule()
    def a_second_passes(self) -> None:
        retries, self.house.retry_loop.retries = self.house.retry_loop.retries, []
        for retry in retries:
            retry()
        self.listen()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """What was not answered may be there or not; what was is checked by the invariants."""
        before = self.shown()
        held = bool(self.house.metadata.waiting or self.house.retry_loop.retries)
        for client_said in self.said:
            for said in client_said:
                if said.what in LEAVING:
                    self.confirmed.pop(said.names[0], None)
        self.house.again(clean=clean)
        if not held:
            assert self.shown() == before
        for index in range(3):
            self.said[index] = []
            self.replace(index)
        for queue, bodies in self.confirmed.items():
            assert queue in self.house.vhost.queues, f"{queue} had {len(bodies)} confirmed messages"
            assert [body for body in self.drained(queue) if body in bodies] == bodies
        self.confirmed.clear()

    # -- what is judged ----------------------------------------------------------------------------------------------

    def shown(self) -> Shown:
        """What is durable and in memory."""
        vhost = self.house.vhost
        return Shown(
            {queue.name: queue.id for queue in vhost.queues.values() if queue.durable},
            {x.name for x in vhost.exchanges.values() if x.durable and x.name.startswith("x")},
            {
                (binding.source.name, binding.destination.name, binding.routing_key)
                for binding in vhost.all_bindings()
                if binding.durable
            },
        )

    def kept(self) -> Shown:
        """What a start would find."""
        state = self.house.rows.state()
        assert len({row.name for row in state.queues}) == len(state.queues), "two live queues of one name"
        return Shown(
            {row.name: row.id for row in state.queues},
            {row.name for row in state.exchanges},
            {(row.source, row.destination, row.routing_key) for row in state.bindings},
        )

    @invariant()
    def memory_is_what_a_start_would_find(self) -> None:
        shown, kept = self.shown(), self.kept()
        assert shown.queues.items() <= kept.queues.items()
        assert shown.exchanges <= kept.exchanges
        on_their_way = list(self.house.broker.catalogue.declared._held)
        held = {name.name for name in on_their_way}
        # One whose unbind has failed may be gone from the database until it is put back; see `declared`.
        bound = {tuple(name.name.split("\0")) for name in on_their_way if name.kind == "binding"}
        bound = {(source, end, key) for source, end, _, key, _ in bound}
        assert shown.bindings - bound <= kept.bindings
        assert kept.queues.keys() - shown.queues.keys() <= held
        assert kept.exchanges - shown.exchanges <= held
        assert all(held & {source, end} for source, end, _ in kept.bindings - shown.bindings - bound)
        for exchange in EXCHANGES:
            there = self.house.vhost.exchanges.get(exchange)
            if there is not None:
                assert there.matcher.match("k", None) == {binding.destination for binding in there.bindings.values()}
        if not self.house.metadata.waiting and not self.house.retry_loop.retries:
            assert not held
            assert not any(
                self.house.connections.by_name[c.connection.name].pending_commands.deferred for c in self.clients
            )

    def listen(self) -> None:
        """Answers in the order they come; a client that was closed is replaced."""
        asked = [one for said in self.said for one in said if one.what in (*LEAVING, "delete_exchange", "unbind")]
        # An auto-delete exchange goes with its last binding, and that with its queue.
        self.leaving = {name for one in asked for name in (*one.names, *EXCHANGES)}
        self.house.settle()
        for index, client in enumerate(self.clients):
            for event in client.heard():
                self.judge(index, event)
            if not client.open:
                assert client.failed == 506
                self.replace(index)
        self.house.settle()

    def judge(self, index: int, event: Any) -> None:
        method, said = event.method, self.said[index]
        if isinstance(method, spec.Basic.Ack):
            for one in list(said):
                if one.what == "publish" and one.names[2] <= method.delivery_tag:
                    said.remove(one)
                    self.confirm(*one.names[:2])
        elif isinstance(method, spec.Basic.Return):
            said.remove(next(one for one in said if one.what == "publish" and one.names[1] == event.body))
        elif isinstance(method, spec.Channel.Close):
            assert method.reply_code in (404, 406), method.reply_text
            self.clients[index].vanish()
            self.clients[index].failed = 506  # what was said behind it is not answered either
        elif not isinstance(method, spec.Basic.Deliver | spec.Basic.Cancel):
            first = next(one for one in said if one.what != "publish")
            said.remove(first)
            self.answered(first)

    def answered(self, said: Said) -> None:
        """It is so now, unless another client's deletion was answered in the same breath."""
        if said.what in LEAVING:
            self.confirmed.pop(said.names[0], None)
        shown, kept = self.shown(), self.kept()
        if said.what == "delete_queue":
            assert said.names[0] not in kept.queues.keys() - shown.queues.keys()
        elif said.what == "delete_exchange":
            assert said.names[0] not in kept.exchanges - shown.exchanges
        elif said.what == "queue":
            assert said.names[0] in shown.queues or not said.names[1] or said.names[0] in self.leaving
        elif said.what == "exchange":
            assert said.names[0] in shown.exchanges or not said.names[1] or said.names[0] in self.leaving

    def confirm(self, queue: str, body: bytes) -> None:
        there = self.house.vhost.queues.get(queue)
        leaves = any(one.what in LEAVING and one.names[0] == queue for said in self.said for one in said)
        if there is not None and there.durable and not leaves:
            self.confirmed.setdefault(queue, []).append(body)

    def drained(self, queue: str) -> list[bytes]:
        client = self.connected("drain")
        bodies = []
        while True:
            client.say(1, spec.Basic.Get(queue=queue, no_ack=True))
            self.house.settle()
            (event,) = client.heard()
            if event.body is None:
                break
            bodies.append(event.body)
        client.vanish()
        return bodies

    def teardown(self) -> None:
        self.house.end()


TestDeclaredModel = DeclaredModel.TestCase
TestDeclaredModel.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
