"""Transactions in programs: publishes to several queues and settlements, which count together or not at all."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
from program_judge import Judge
from program_parts import Letter, TwinQueue, Way

CHANNEL = 4


class Transactor(Judge):
    """A mixin of the player."""

    def transaction(self, messages: tuple[Any, ...], gets: tuple[tuple[str, str], ...], commits: bool) -> None:
        """On a channel of its own, which closes behind it: what is unacked then comes back."""
        self.client.say(CHANNEL, spec.Channel.Open(), spec.Tx.Select())
        self.heard()
        got = [(*taken, how) for name, how in gets if (taken := self.taken(name)) is not None]
        sent: list[tuple[Letter, Way]] = []
        returned = 0
        for exchange, key, *about, mandatory, headers in messages:
            if exchange and exchange not in self.twin.exchanges:
                continue
            letter = self.letter(exchange, key, *about, headers)
            self.send(CHANNEL, letter, mandatory)
            self.listen()
            way = self.twin.route(exchange, key, letter.headers)
            self.twin.reserve(way)
            returned += mandatory and way.leads_nowhere
            sent.append((letter, way))
        for tag, (_, _, how) in enumerate(got, 1):
            ack = spec.Basic.Ack(delivery_tag=tag)
            self.client.say(CHANNEL, ack if how == "ack" else spec.Basic.Nack(tag, requeue=how == "requeue"))
        self.client.say(CHANNEL, spec.Tx.Commit() if commits else spec.Tx.Rollback())
        names = [event.method.name for event in self.heard()]
        self.twin.reserved.clear()
        done = commits and self.twin.commit(sent)
        answer = "Tx.CommitOk" if done else "Channel.Close" if commits else "Tx.RollbackOk"
        self.same("transaction", names, ["Basic.Return"] * (returned if commits else 0) + [answer])
        if commits:
            self.twin.committed()
            for queue, letter, how in got if done else ():
                self.settled(queue, letter, how)
            for name, queue in self.twin.queues.items():
                # The end of a transaction may have an offset of its own.
                log = self.house.vhost.queues[name].log()
                queue.offsets = max(queue.offsets, 0 if log is None else log.next_offset)
                queue.unsure |= bool(self.twin.dead) and log is not None
        if done or not commits:
            self.client.say(CHANNEL, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            self.same("closed", [event.method.name for event in self.heard()], ["Channel.CloseOk"])
        else:
            self.client.say(CHANNEL, spec.Channel.CloseOk())
        if not done:
            for queue, letter, _ in got:
                self.twin.comes_back(queue, letter, True)

    def taken(self, name: str) -> tuple[TwinQueue, Letter] | None:
        """By basic.get."""
        queue = self.twin.queues.get(name)
        if queue is None or queue.kind == "stream":
            return None
        self.client.say(CHANNEL, spec.Basic.Get(queue=name))
        (event,) = self.heard()
        head = self.twin.next_free(queue)
        if head is None or event.body is None:
            self.same(f"get of {name}", event.body, head and head.body)
            return None
        queue.ready.remove(head)
        self.twin.tidy(queue)
        self.same_letter(queue, event, head)
        queue.delivered = True
        queue.unacked.append((head, None))
        return queue, head

    def letter(self, *about: Any) -> Letter:
        raise NotImplementedError

    def send(self, channel: int, letter: Letter, mandatory: bool = False) -> None:
        raise NotImplementedError

    def settled(self, queue: TwinQueue, letter: Letter, how: str) -> None:
        raise NotImplementedError

    def listen(self) -> None:
        raise NotImplementedError
