"""Surgery in programs: messages browsed, moved, copied, deleted, sent back to where they died, and had once more.

A job into a queue that has no room would wait; a program passes it over. Which messages, where they go and what is
written into them is what docs/dead-letters.md says.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from program_judge import Judge
from program_parts import Anyhow, Different, Letter, TwinQueue, Way
from program_routing import SELECTORS
from program_twin import NUMBERS

from amqpd.broker.flow.timers import TICK_MS
from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobRequest, browse
from amqpd.routing.selector import parse_selector

SOURCE = ("x-source-queue", "x-source-offset", "x-source-redelivered")


class Surgeon(Judge):
    """A mixin of the player."""

    # -- which messages

    def wanted(self, letters: list[Letter], where: str, limit: int = 0) -> list[Letter]:
        """Of these, in the order of their offsets."""
        found = sorted(letters, key=lambda letter: letter.offset)
        if where:
            found = [each for each in found if SELECTORS[where](each.key, each.headers)]
        return found[:limit] if limit else found

    @staticmethod
    def there(queue: TwinQueue) -> list[Letter]:
        """What is to be seen in a queue: not what of a transient one is with consumers."""
        letters = list(queue.ready)
        letters += [each.letter for each in queue.waiting]
        if queue.durable:
            letters += [letter for letter, _ in queue.unacked]
        return letters

    def browse(self, name: str, begin: int, where: str) -> None:
        queue = self.twin.queues.get(name)
        if queue is None or queue.unsure:
            return
        real = self.house.vhost.queues[name]
        page = asyncio.run(browse(real, parse_selector(where) if where else None, 1000, begin))
        got = [(entry.offset, entry.message and entry.message.body(), state) for entry, state in page.messages]
        letters = [each for each in self.wanted(self.there(queue), where) if each.offset >= begin]
        due = [(each.offset, each.body, "ready" if each in queue.ready else "unacked") for each in letters]
        self.same(f"browsed in {name}", got, due)

    # -- what becomes of them

    def job(self, verb: str, name: str, target: str, where: str, limit: int, dry_run: bool) -> None:
        source = self.twin.queues.get(name)
        if source is None or source.unsure or (source.kind == "stream" and verb != "copy"):
            return
        to_queue = target in self.twin.queues
        if verb in ("move", "copy") and (target == name or not (to_queue or target in self.twin.exchanges)):
            return
        letters = self.wanted(self.there(source) if verb == "copy" else source.ready, where)
        self.nobody_is_over(source, letters)
        targets = [target] if to_queue and verb in ("move", "copy") else []
        if verb != "delete" and not dry_run and not self.has_room(letters, targets, name):
            return
        by_chance = any(each.kind in ("x-random", "x-local-random") for each in self.twin.exchanges.values())
        if by_chance and (verb == "redrive" or not to_queue):
            return  # it is asked twice where a message goes
        request = {"selector": parse_selector(where) if where else None, "limit": limit, "dry_run": dry_run}
        if verb in ("move", "copy"):
            request["to_queue" if to_queue else "to_exchange"] = target
        job = self.begin(verb, name, **request)
        count = 0
        for letter in letters:
            changed, way = self.address(verb, source, letter, target, to_queue)
            if way is None or count == (limit or 1000):
                continue
            count += 1
            if dry_run:
                continue
            if verb != "copy":
                source.ready = [each for each in source.ready if each is not letter]
                source.handled(letter)
            if changed is not None:
                self.twin.offer_all(way, changed)
        if not dry_run:
            self.twin.tidy(source)
        self.done(job, count)

    def begin(self, verb: str, name: str, **request: Any) -> QueueJob:
        vhost = self.house.vhost
        job = self.house.broker.jobs.begin(JobRequest(verb, vhost, vhost.queues[name], **request))
        self.listen()
        for _ in range(50):
            if job.ended_ms or job.state == "waiting":
                break
            self.time_passes(TICK_MS)  # for an index that is being made
        return job

    def done(self, job: QueueJob, count: int, state: str = "done") -> None:
        if job.ended_ms == 0:
            raise Different(f"{job.kind} of {job.source.name} has not ended: {job.state}, {job.reason}")
        self.same(f"{job.kind} of {job.source.name}", (job.state, job.done_count), (state, count))

    def nobody_is_over(self, queue: TwinQueue, letters: list[Letter]) -> None:
        """Behind the head of a queue is what is over and has not ended yet. Raises: Anyhow."""
        for letter in letters:
            if self.twin.is_over(queue, letter):
                raise Anyhow("what is over is moved, or ends")

    def address(
        self, verb: str, source: TwinQueue, letter: Letter, target: str, to_queue: bool
    ) -> tuple[Letter | None, Way | None]:
        """How it comes there, and the way; None: it stays."""
        if verb == "delete":
            return None, Way()
        changed = self.marked(source, letter)
        if verb == "redrive":
            return self.driven_back(source, changed)
        if to_queue:
            return changed, Way([target])
        changed.exchange = target
        return changed, self.way_from(source, changed)

    def way_from(self, source: TwinQueue, letter: Letter) -> Way | None:
        """By its exchange; None: to nobody, or back."""
        way = self.twin.route(letter.exchange, letter.key, letter.headers)
        return None if way.leads_nowhere or source.name in way.queues else way

    @staticmethod
    def marked(source: TwinQueue, letter: Letter) -> Letter:
        headers = {name: value for name, value in letter.headers.items() if name not in (*NUMBERS, *SOURCE)}
        headers |= {"x-source-queue": source.name, "x-source-offset": letter.offset}
        maybe = letter.maybe
        if letter.redelivered is None:
            maybe = (*maybe, "x-source-redelivered")
        elif letter.redelivered:
            headers["x-source-redelivered"] = True
        fresh = replace(letter, headers=headers, maybe=maybe, born_ms=[], deliveries=0, redelivered=False)
        return fresh

    def driven_back(self, source: TwinQueue, letter: Letter) -> tuple[Letter | None, Way | None]:
        if letter.first is None or not letter.deaths:
            return None, None
        queue, reason, _ = letter.first
        first = letter.deaths[-1]
        for death in letter.deaths:
            if (death.queue, death.reason) == (queue, reason):
                first = death
        letter.headers["x-redrive-count"] = letter.headers.get("x-redrive-count", 0) + 1
        letter.deaths, letter.first = (), None
        letter.exchange, letter.key = first.exchange, first.keys[0]
        if first.queue in self.twin.queues:
            return letter, None if first.queue == source.name else Way([first.queue])
        return letter, self.way_from(source, letter) if letter.exchange in self.twin.exchanges else None

    def has_room(self, letters: list[Letter], targets: list[str], source: str) -> bool:
        """Nobody to whom they may come becomes full by it, nor is. targets: empty: any queue."""
        for name in targets or self.twin.queues:
            queue = self.twin.queues[name]
            there = queue.ready + [each.letter for each in queue.waiting]
            length, size = self.twin.rule(queue, "max-length"), self.twin.rule(queue, "max-length-bytes")
            together = sum(len(letter.body) for letter in there + letters)
            if name == source:
                continue
            if length is not None and len(there) + max(1, len(letters)) > length:
                return False
            if size is not None and max(together, sum(len(letter.body) for letter in there) + 1) > size:
                return False
        return True

    # -- once more

    def rewind(
        self,
        name: str,
        target: str | None,
        begin: int,
        until: int,
        by_time: bool,
        where: str,
        limit: int,
        dry_run: bool,
    ) -> None:
        queue = self.twin.queues.get(name)
        if queue is None or queue.unsure or not queue.retains or (target is None and queue.group_by):
            return
        if target is not None and (target == name or target not in self.twin.queues):
            return
        until_ms = -1
        letters = [each for each in queue.settled if each.offset >= begin]
        if by_time:
            until_ms, until = self.house.clock.now_ms - 150, -1
            letters = [each for each in letters if each.logged_ms < self.twin.now_ms - 150]
        elif until >= 0:
            letters = [each for each in letters if each.offset < until]
        letters = self.wanted(letters, where)
        if self.wanted(queue.lost, where):
            raise Anyhow("what was transient is there once more, or not")
        in_place = target is None and not dry_run
        for letter in letters:
            letter.born_ms = [letter.logged_ms]
        if in_place:
            letters = [each for each in letters if not self.twin.is_over(queue, each)]
        letters = letters[:limit] if limit else letters
        ways = [(each, self.marked(queue, replace(each, redelivered=True)), Way([target or ""])) for each in letters]
        if target is not None and not dry_run and not self.has_room(letters, [target], name):
            return
        selector = parse_selector(where) if where else None
        where_from = {"begin": begin, "until": until, "until_ms": until_ms}
        job = self.begin("rewind", name, to_queue=target, selector=selector, limit=limit, dry_run=dry_run, **where_from)
        if in_place:
            before = queue.ready
            queue.ready = before + letters
            if letters and self.twin.over(queue):
                queue.ready = before
                self.done(job, 0, "failed")
                return
            queue.settled = [each for each in queue.settled if not any(each is other for other in letters)]
            queue.cold = True
            for letter in before:
                letter.vague = queue.durable
            for letter in letters:
                letter.redelivered = True
                letter.deliveries = 0  # it begins anew
                letter.vague = False
        self.done(job, len(letters))
        if target is not None and not dry_run:
            for _, changed, way in ways:
                self.twin.offer_all(way, changed)

    def listen(self) -> None:
        raise NotImplementedError
