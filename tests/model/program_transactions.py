"""Transactions in programs: publishes to several queues and settlements, committed together or not at all."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
from program_judge import PlayerChecks
from program_parts import RouteResult, TwinMessage, TwinQueue

CHANNEL = 4


class TransactionPlayer(PlayerChecks):
    """The player's operations that run transactions."""

    def transaction(self, messages: tuple[Any, ...], gets: tuple[tuple[str, str], ...], commits: bool) -> None:
        """Run a transaction on a channel of its own, which is closed afterwards; its unacked messages return."""
        self.client.say(CHANNEL, spec.Channel.Open(), spec.Tx.Select())
        self.heard()
        got = [(*taken, how) for name, how in gets if (taken := self.taken(name)) is not None]
        self.twin.route_dead_letters()  # a new head may have expired
        sent: list[tuple[TwinMessage, RouteResult]] = []
        returned = 0
        for exchange, key, *about, mandatory, headers in messages:
            if exchange and exchange not in self.twin.exchanges:
                continue
            message = self.new_message(exchange, key, *about, headers)
            self.send(CHANNEL, message, mandatory)
            self.listen()
            result = self.twin.route(exchange, key, message.headers)
            self.twin.reserve(result)
            returned += mandatory and result.leads_nowhere
            sent.append((message, result))
        for tag, (_, _, how) in enumerate(got, 1):
            ack = spec.Basic.Ack(delivery_tag=tag)
            self.client.say(CHANNEL, ack if how == "ack" else spec.Basic.Nack(tag, requeue=how == "requeue"))
        self.client.say(CHANNEL, spec.Tx.Commit() if commits else spec.Tx.Rollback())
        names = [event.method.name for event in self.heard()]
        self.twin.reserved.clear()
        done = commits and self.twin.commit(sent)
        answer = "Tx.CommitOk" if done else "Channel.Close" if commits else "Tx.RollbackOk"
        self.assert_same("transaction", names, ["Basic.Return"] * (returned if commits else 0) + [answer])
        if commits:
            self.twin.committed()
            for queue, message, how in got if done else ():
                self.settled(queue, message, how)
            for name, queue in self.twin.queues.items():
                # The end marker of a transaction may use an offset.
                log = self.server.vhost.queues[name].log()
                queue.offsets = max(queue.offsets, 0 if log is None else log.next_offset)
                queue.offsets_uncertain |= bool(self.twin.dead) and log is not None
        if done or not commits:
            self.client.say(CHANNEL, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            self.assert_same("closed", [event.method.name for event in self.heard()], ["Channel.CloseOk"])
        else:
            self.client.say(CHANNEL, spec.Channel.CloseOk())
        if not done:
            for queue, message, _ in got:
                self.twin.return_message(queue, message, True)

    def taken(self, name: str) -> tuple[TwinQueue, TwinMessage] | None:
        """Get a message with basic.get."""
        queue = self.twin.queues.get(name)
        if queue is None or queue.kind == "stream":
            return None
        self.client.say(CHANNEL, spec.Basic.Get(queue=name))
        (event,) = self.heard()
        head = self.twin.next_free(queue)
        if head is None or event.body is None:
            self.assert_same(f"get of {name}", event.body, head and head.body)
            return None
        queue.ready.remove(head)
        self.twin.enforce_limits(queue)
        self.assert_same_message(queue, event, head)
        queue.delivered = True
        queue.unacked.append((head, None))
        return queue, head

    def new_message(self, *about: Any) -> TwinMessage:
        raise NotImplementedError

    def send(self, channel: int, message: TwinMessage, mandatory: bool = False) -> None:
        raise NotImplementedError

    def settled(self, queue: TwinQueue, message: TwinMessage, how: str) -> None:
        raise NotImplementedError

    def listen(self) -> None:
        raise NotImplementedError
