"""Jobs in programs: browse, move, copy, delete, redrive and rewind messages.

A job into a full queue would wait, so a program skips it. docs/dead-letters.md says which messages a job takes, where
they go and which headers they get.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from program_judge import PlayerChecks
from program_parts import RouteResult, TwinMessage, TwinMismatch, TwinQueue, Unspecified
from program_routing import SELECTORS
from program_twin import NUMBERS

from amqpd.broker.flow.timers import TICK_MS
from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobRequest, browse
from amqpd.routing.selector import parse_selector

SOURCE = ("x-source-queue", "x-source-offset", "x-source-redelivered")


class JobPlayer(PlayerChecks):
    """The player's operations that run jobs."""

    # -- selection

    def select(self, messages: list[TwinMessage], where: str, limit: int = 0) -> list[TwinMessage]:
        """Return the messages that match the selector `where`, in the order of their offsets."""
        found = sorted(messages, key=lambda message: message.offset)
        if where:
            found = [each for each in found if SELECTORS[where](each.key, each.headers)]
        return found[:limit] if limit else found

    @staticmethod
    def visible(queue: TwinQueue) -> list[TwinMessage]:
        """Return the messages that a browse shows; it omits unacked messages of a transient queue."""
        messages = list(queue.ready)
        messages += [each.message for each in queue.waiting]
        if queue.durable:
            messages += [message for message, _ in queue.unacked]
        return messages

    def browse(self, name: str, begin: int, where: str) -> None:
        queue = self.twin.queues.get(name)
        if queue is None or queue.offsets_uncertain:
            return
        real = self.server.vhost.queues[name]
        page = asyncio.run(browse(real, parse_selector(where) if where else None, 1000, begin))
        got = [(entry.offset, entry.message and entry.message.body(), state) for entry, state in page.messages]
        messages = [each for each in self.select(self.visible(queue), where) if each.offset >= begin]
        due = [(each.offset, each.body, "ready" if each in queue.ready else "unacked") for each in messages]
        self.assert_same(f"browsed in {name}", got, due)

    # -- jobs

    def job(self, verb: str, name: str, target: str, where: str, limit: int, dry_run: bool) -> None:
        source = self.twin.queues.get(name)
        if source is None or source.offsets_uncertain or (source.kind == "stream" and verb != "copy"):
            return
        to_queue = target in self.twin.queues
        if verb in ("move", "copy") and (target == name or not (to_queue or target in self.twin.exchanges)):
            return
        messages = self.select(self.visible(source) if verb == "copy" else source.ready, where)
        self.assert_none_expired(source, messages)
        targets = [target] if to_queue and verb in ("move", "copy") else []
        if verb != "delete" and not dry_run and not self.has_room(messages, targets, name):
            return
        by_chance = any(each.kind in ("x-random", "x-local-random") for each in self.twin.exchanges.values())
        if by_chance and (verb == "redrive" or not to_queue):
            return  # the job routes twice, so a random exchange may choose differently
        request = {"selector": parse_selector(where) if where else None, "limit": limit, "dry_run": dry_run}
        if verb in ("move", "copy"):
            request["to_queue" if to_queue else "to_exchange"] = target
        job = self.start_job(verb, name, **request)
        count = 0
        for message in messages:
            changed, result = self.address(verb, source, message, target, to_queue)
            if result is None or count == (limit or 1000):
                continue
            count += 1
            if dry_run:
                continue
            if verb != "copy":
                source.ready = [each for each in source.ready if each is not message]
                source.note_settled(message)
            if changed is not None:
                self.twin.offer_all(result, changed)
        if not dry_run:
            self.twin.enforce_limits(source)
        self.check_job(job, count)

    def start_job(self, verb: str, name: str, **request: Any) -> QueueJob:
        vhost = self.server.vhost
        job = self.server.broker.jobs.begin(JobRequest(verb, vhost, vhost.queues[name], **request))
        self.listen()
        for _ in range(50):
            if job.ended_ms or job.state == "waiting":
                break
            self.time_passes(TICK_MS)  # an index may have to be built first
        return job

    def check_job(self, job: QueueJob, count: int, state: str = "done") -> None:
        if job.ended_ms == 0:
            raise TwinMismatch(f"{job.kind} of {job.source.name} did not end: {job.state}, {job.reason}")
        self.assert_same(f"{job.kind} of {job.source.name}", (job.state, job.done_count), (state, count))

    def assert_none_expired(self, queue: TwinQueue, messages: list[TwinMessage]) -> None:
        """Raise Unspecified if an expired message is selected: behind the head it may not have been removed yet."""
        for message in messages:
            if self.twin.is_expired(queue, message):
                raise Unspecified("an expired message is moved or expires")

    def address(
        self, verb: str, source: TwinQueue, message: TwinMessage, target: str, to_queue: bool
    ) -> tuple[TwinMessage | None, RouteResult | None]:
        """Return the message as the target gets it, and its route; a route of None: the message stays."""
        if verb == "delete":
            return None, RouteResult()
        changed = self.with_source_headers(source, message)
        if verb == "redrive":
            return self.redriven(source, changed)
        if to_queue:
            return changed, RouteResult([target])
        changed.exchange = target
        return changed, self.route_from(source, changed)

    def route_from(self, source: TwinQueue, message: TwinMessage) -> RouteResult | None:
        """Return the route through the message's exchange; None if it leads nowhere or back."""
        result = self.twin.route(message.exchange, message.key, message.headers)
        return None if result.leads_nowhere or source.name in result.queues else result

    @staticmethod
    def with_source_headers(source: TwinQueue, message: TwinMessage) -> TwinMessage:
        headers = {name: value for name, value in message.headers.items() if name not in (*NUMBERS, *SOURCE)}
        headers |= {"x-source-queue": source.name, "x-source-offset": message.offset}
        optional_headers = tuple(each for each in message.optional_headers if each not in SOURCE)
        # Queues that do not deliver in the order of arrival mark an unacked message as if it were redelivered.
        marks_each = source.group_by or "x-max-priority" in source.arguments
        is_marked = marks_each and any(each is message for each, _ in source.unacked)
        if message.redelivered is None or (is_marked and not message.redelivered):
            optional_headers = (*optional_headers, "x-source-redelivered")
        elif message.redelivered:
            headers["x-source-redelivered"] = True
        fresh = replace(
            message,
            headers=headers,
            optional_headers=optional_headers,
            ttl_start_ms=[],
            deliveries=0,
            redelivered=False,
        )
        return fresh

    def redriven(self, source: TwinQueue, message: TwinMessage) -> tuple[TwinMessage | None, RouteResult | None]:
        if message.first is None or not message.deaths:
            return None, None
        queue, reason, _ = message.first
        first = message.deaths[-1]
        for death in message.deaths:
            if (death.queue, death.reason) == (queue, reason):
                first = death
        message.headers["x-redrive-count"] = message.headers.get("x-redrive-count", 0) + 1
        message.deaths, message.first = (), None
        message.exchange, message.key = first.exchange, first.keys[0]
        if first.queue in self.twin.queues:
            return message, None if first.queue == source.name else RouteResult([first.queue])
        return message, self.route_from(source, message) if message.exchange in self.twin.exchanges else None

    def has_room(self, messages: list[TwinMessage], targets: list[str], source: str) -> bool:
        """Return whether no target is full before or after the job. targets: empty for any queue."""
        for name in targets or self.twin.queues:
            queue = self.twin.queues[name]
            there = queue.ready + [each.message for each in queue.waiting]
            length, size = self.twin.rule(queue, "max-length"), self.twin.rule(queue, "max-length-bytes")
            together = sum(len(message.body) for message in there + messages)
            if name == source:
                continue
            if length is not None and len(there) + max(1, len(messages)) > length:
                return False
            if size is not None and max(together, sum(len(message.body) for message in there) + 1) > size:
                return False
        return True

    # -- rewind

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
        if queue is None or queue.offsets_uncertain or not queue.retains or (target is None and queue.group_by):
            return
        if target is not None and (target == name or target not in self.twin.queues):
            return
        until_ms = -1
        messages = [each for each in queue.settled if each.offset >= begin]
        if by_time:
            until_ms, until = self.server.clock.now_ms - 150, -1
            messages = [each for each in messages if each.logged_ms < self.twin.now_ms - 150]
        elif until >= 0:
            messages = [each for each in messages if each.offset < until]
        messages = self.select(messages, where)
        if self.select(queue.lost, where):
            raise Unspecified("a transient message may be rewound or not")
        in_place = target is None and not dry_run
        for message in messages:
            message.ttl_start_ms = [message.logged_ms]
        if in_place:
            messages = [each for each in messages if not self.twin.is_expired(queue, each)]
        messages = messages[:limit] if limit else messages
        ways = [
            (each, self.with_source_headers(queue, replace(each, redelivered=True)), RouteResult([target or ""]))
            for each in messages
        ]
        if target is not None and not dry_run and not self.has_room(messages, [target], name):
            return
        selector = parse_selector(where) if where else None
        where_from = {"begin": begin, "until": until, "until_ms": until_ms}
        job = self.start_job(
            "rewind", name, to_queue=target, selector=selector, limit=limit, dry_run=dry_run, **where_from
        )
        if in_place:
            before = queue.ready
            queue.ready = before + messages
            if messages and self.twin.is_over_limit(queue):
                queue.ready = before
                self.check_job(job, 0, "failed")
                return
            queue.settled = [each for each in queue.settled if not any(each is other for other in messages)]
            queue.reads_from_log = True
            for message in before:
                message.age_uncertain = queue.durable
            for message in messages:
                message.redelivered = True
                message.deliveries = 0  # counted from zero after a rewind
                message.age_uncertain = False
        self.check_job(job, len(messages))
        if target is not None and not dry_run:
            for _, changed, result in ways:
                self.twin.offer_all(result, changed)

    def listen(self) -> None:
        raise NotImplementedError
