"""The audit log without a broker: content of records, throttling of repeated events, behaviour on write failures."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker import audit as audits
from amqpd.broker.audit import (
    DIRECT_MAX,
    LOST,
    RULES,
    SOURCES_MAX,
    SWEEP_MAX,
    USERS_MAX,
    WAITING_MAX,
    Audit,
    AuditedRequest,
    AuditRecord,
    EventSource,
    EventThrottle,
    fields_of,
    message_of,
)
from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.events import ACTOR, CLI, INTERNAL, ORIGIN, Events
from amqpd.errors import ResourceError
from amqpd.protocol.properties import decode_properties

NOW_MS = 1_700_000_000_123


class Stream:
    """A stream that keeps the records it got.

    failing: it refuses records. closed: its log is not open yet. unusable: its log cannot be opened.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.failing = False
        self.closed = False
        self.unusable = False
        self.opening = None
        self.store: Log | None = None
        self.when_opened: list[Callable[[], object]] = []

    def prepare(self) -> None:
        if self.unusable:
            raise ResourceError("it cannot be read")
        if self.closed:
            raise LogNotOpen([self])  # type: ignore[list-item]

    def when_open(self, done: Callable[[], object]) -> None:
        self.when_opened.append(done)

    def enqueue(self, message: Any) -> bool:
        if not self.failing:
            self.records.append(json.loads(message.body()))
        return not self.failing


class Log:
    """The log of the stream. Records are safe after `commit`."""

    def __init__(self, stream: Stream) -> None:
        self.failed = False
        self._stream = stream
        self._safe_count = 0
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []

    @property
    def next_offset(self) -> int:
        return len(self._stream.records)

    def when_safe(self, offset: int, done: Callable[[bool], None]) -> None:
        self._waiting.append((offset, done))
        self._call_safe()

    def _call_safe(self) -> None:
        for offset, done in list(self._waiting):
            if offset < self._safe_count or self.failed:
                self._waiting.remove((offset, done))
                done(offset < self._safe_count)

    def commit(self) -> None:
        self._safe_count = self.next_offset
        self._call_safe()

    def fail(self) -> None:
        self.failed = True
        self._call_safe()


class Loop:
    """A loop: number of the turn, scheduled callbacks, timers."""

    def __init__(self) -> None:
        self.number = 0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []

    def schedule(self) -> None:
        """Do nothing: the fake log needs no write at the end of the turn."""

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s > 0
        self.timers.append(call)

    def turns(self) -> int:
        """Run turns until the loop is idle. Return their number."""
        count = 0
        while self.soon:
            self.number += 1
            count += 1
            calls, self.soon = self.soon, []
            for call in calls:
                call()
        return count


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def audit(loop: Loop, stream: Stream) -> Audit:
    return Audit(stream, loop, loop.call_soon, loop.later)  # type: ignore[arg-type]


def deleted(name: str = "q") -> dict[str, object]:
    return {"vhost": "/", "name": name}


class TestRecord:
    def test_record_has_user_source_event_and_time(self) -> None:
        source = EventSource("amqp", "10.0.0.1:5000", "10.0.0.1:5000 -> 10.0.0.2:5672")
        attributes = {
            "vhost": "/",
            "name": "q",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-length": 3},
        }
        message = message_of(AuditRecord("queue.created", NOW_MS, "alice", source, attributes))
        assert json.loads(message.body()) == {
            "event": "queue.created",
            "time": "2023-11-14T22:13:20.123Z",
            "user": "alice",
            "front_end": "amqp",
            "peer": "10.0.0.1:5000",
            "connection": "10.0.0.1:5000 -> 10.0.0.2:5672",
            "vhost": "/",
            "name": "q",
            "result": "ok",
            "details": {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 3}},
        }
        properties = decode_properties(message.properties())
        assert properties.type == message.envelope.routing_key == "queue.created"
        assert properties.headers is not None
        assert (properties.headers["user"], properties.headers["name"]) == ("alice", "q")
        assert "details" not in properties.headers
        assert message.persistent

    def test_details_have_only_fields_of_rule(self) -> None:
        attributes = {"vhost": "/", "name": "up", "component": "shovel", "value": {"src-uri": "amqp://u:secret@host"}}
        text = json.dumps(fields_of(AuditRecord("parameter.set", NOW_MS, "alice", EventSource(), attributes)))
        assert "shovel" in text
        assert "secret" not in text

    @pytest.mark.parametrize("event", RULES)
    def test_rule_names_no_secret_field(self, event: str) -> None:
        secrets = {"password", "password_hash", "hash", "value", "client_properties", "body"}
        assert not secrets & set(RULES[event].details)

    def test_large_record_is_truncated(self) -> None:
        attributes = {"vhost": "/", "name": "n" * 100_000, "arguments": {"x": "y" * 60_000}}
        message = message_of(AuditRecord("queue.created", NOW_MS, "u" * 100_000, EventSource(), attributes))
        assert message.body_size < 2000
        assert json.loads(message.body())["details"]["omitted_bytes"] > 60_000

    def test_undecodable_names_and_arguments_are_encoded(self) -> None:
        attributes = {"vhost": "/", "name": "\udc80\0", "arguments": {"a": b"\xff", "b": object(), "c": float("nan")}}
        message = message_of(AuditRecord("queue.created", NOW_MS, "\udcff", EventSource(), attributes))
        assert json.loads(message.body())["name"] == "?\0"


class TestUserAndSource:
    def test_user_and_front_end_of_session_request_and_broker(self, audit: Audit, stream: Stream) -> None:
        events = Events(lambda call: None)
        events.audit_hook = audit.record

        class Session:
            name, peer, front_end = "a -> b", ("10.0.0.1", 7), "amqp"

        for actor, origin in (("alice", Session()), (CLI, AuditedRequest("amqpctl", ("", 0))), (INTERNAL, Session())):
            tokens = ACTOR.set(actor), ORIGIN.set(origin)
            events.emit("queue.deleted", deleted())
            ACTOR.reset(tokens[0])
            ORIGIN.reset(tokens[1])
        sources = [
            (each["user"], each["front_end"], each.get("peer"), each.get("connection")) for each in stream.records
        ]
        assert sources == [
            ("alice", "amqp", "10.0.0.1:7", "a -> b"),
            ("rmq-cli", "amqpctl", None, None),
            ("rmq-internal", "broker", None, None),
        ]

    def test_events_without_rule_are_not_recorded(self, audit: Audit, stream: Stream) -> None:
        for key in ("channel.created", "consumer.created", "connection.created"):
            audit.record(key, {"name": "x"}, "alice")
        # Vhost limits have an event of their own.
        audit.record("parameter.set", {"name": "limits", "component": "vhost-limits"}, "alice")
        assert stream.records == []


class TestThrottle:
    def test_first_is_written_at_once_others_once_a_minute(self) -> None:
        written: list[AuditRecord] = []
        loop, now = Loop(), [0.0]
        throttle = EventThrottle(written.append, loop.later, 60.0, lambda: now[0])
        for number in range(100_000):
            throttle.add(
                "10.0.0.1",
                AuditRecord("user.authentication.failure", NOW_MS, f"u{number}", EventSource(), {"name": "x"}),
            )
        assert len(written) == len(throttle) == 1
        for minute in (1, 2):
            now[0] = 60.0 * minute
            throttle.add(
                "10.0.0.1", AuditRecord("user.authentication.failure", NOW_MS, "last", EventSource(), {"name": "x"})
            )
            loop.timers.pop()()
        assert [each.times for each in written] == [1, 100_000, 1]
        assert written[1].user == "last"
        assert written[1].about["users"] == [f"u{number}" for number in range(1, USERS_MAX + 1)]
        now[0] = 180.0
        loop.timers.pop()()
        assert len(throttle) == 0
        assert loop.timers == []

    def test_number_of_sources_is_limited(self) -> None:
        written: list[AuditRecord] = []
        loop, now = Loop(), [0.0]
        throttle = EventThrottle(written.append, loop.later, 60.0, lambda: now[0])
        for number in range(SOURCES_MAX + 5000):
            throttle.add(number, AuditRecord("access.refused", NOW_MS, "u", EventSource(), {}))
        assert len(throttle) == SOURCES_MAX + 1  # all further sources share one entry
        assert len(written) == SOURCES_MAX + 1
        now[0] = 61.0
        while loop.timers:
            before = len(throttle)
            loop.timers.pop()()
            assert before - len(throttle) <= SWEEP_MAX, "a sweep removes at most SWEEP_MAX sources"
            now[0] += 0.01
            if now[0] > 200:
                break
            if len(throttle) <= 1:
                now[0] += 60
        assert len(throttle) == 0
        assert written[-1].times == 4999

    def test_repeated_login_failures_of_one_address_are_one_record(
        self, audit: Audit, stream: Stream, loop: Loop
    ) -> None:
        for number in range(100_000):
            audit.login(f"user{number}", "10.0.0.1", "invalid credentials")
        audit.login("guest", "10.0.0.2", "invalid credentials")
        assert len(stream.records) == 2
        audit.stop()
        assert [each.get("count") for each in stream.records] == [None, None, 99_999]
        assert stream.records[-1]["result"] == "refused"

    def test_successful_logins_are_throttled_by_user(self, audit: Audit, stream: Stream) -> None:
        for _ in range(1000):
            audit.login("alice", "10.0.0.1")
            audit.login("bob", "10.0.0.1")
        assert [each["user"] for each in stream.records] == ["alice", "bob"]


class TestWriting:
    def test_first_records_are_written_at_once_others_in_slices(
        self, audit: Audit, stream: Stream, loop: Loop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The audit log reads the clock after each record. A record takes 0.6 of a slice here, so a slice has two."""
        clock_reads = itertools.count()
        clock = SimpleNamespace(perf_counter=lambda: next(clock_reads) * 0.6 * audits.SLICE_S, time_ns=time.time_ns)
        monkeypatch.setattr(audits, "time", clock)
        audit.record("queue.deleted", deleted(), "alice")
        assert len(stream.records) == 1  # written at once, before the reply to the client
        count = 5000
        for number in range(count):
            audit.record("queue.deleted", deleted(f"q{number}"), "alice")
        assert len(stream.records) == DIRECT_MAX
        while loop.soon:
            before = len(stream.records)
            calls, loop.soon = loop.soon, []
            loop.number += 1
            for call in calls:
                call()
            assert len(stream.records) - before <= 2
        assert [each["name"] for each in stream.records[1:]] == [f"q{number}" for number in range(count)]

    def test_records_wait_until_stream_is_open(self, audit: Audit, stream: Stream, loop: Loop) -> None:
        stream.closed = True
        for number in range(1000):
            audit.record("queue.deleted", deleted(f"q{number}"), "alice")
        assert stream.records == []
        assert len(stream.when_opened) == 1
        stream.closed = False
        stream.when_opened[0]()
        loop.turns()
        assert [each["name"] for each in stream.records] == [f"q{number}" for number in range(1000)]

    def test_number_of_waiting_records_is_limited(self, audit: Audit, stream: Stream, loop: Loop) -> None:
        stream.closed = True
        for _ in range(WAITING_MAX + 10):
            audit.record("queue.deleted", deleted(), "alice")
        assert audit.lost_count == 10

    def test_when_safe_waits_for_sync_of_all_records(self, audit: Audit, stream: Stream, loop: Loop) -> None:
        stream.store = log = Log(stream)
        results: list[bool] = []
        audit.when_safe(results.append)
        assert results == [True]  # no record yet
        for number in range(DIRECT_MAX + 10):
            audit.record("queue.deleted", deleted(f"q{number}"), "alice")
        audit.when_safe(results.append)
        log.commit()
        assert results == [True]  # ten records wait for their slice
        loop.turns()
        assert len(stream.records) == DIRECT_MAX + 10
        assert results == [True]
        log.commit()
        assert results == [True, True]

    def test_when_safe_is_called_if_stream_or_log_fails(self, audit: Audit, stream: Stream) -> None:
        stream.store = log = Log(stream)
        results: list[bool] = []
        stream.closed = True
        audit.record("queue.deleted", deleted(), "alice")
        audit.when_safe(results.append)
        assert results == []  # the stream is being opened
        stream.unusable = True
        stream.when_opened[0]()
        assert results == [True]  # the record is lost: there is nothing to wait for
        assert audit.lost_count == 1
        stream.closed = stream.unusable = False
        audit.record("queue.deleted", deleted(), "alice")
        audit.when_safe(results.append)
        log.fail()
        assert results == [True, False]
        audit.record("queue.deleted", deleted(), "alice")
        audit.when_safe(results.append)
        assert results == [True, False, False]

    def test_lost_records_are_reported_and_logged_after_recovery(
        self, audit: Audit, stream: Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream.failing = True
        for _ in range(3):
            audit.record("queue.deleted", deleted(), "alice")
        assert audit.health_problem() == "3 records of the audit log are lost"
        assert sum("accepts no records" in each.message for each in caplog.records) == 1
        stream.failing = False
        audit.record("queue.deleted", deleted("after"), "alice")
        assert audit.health_problem() == ""
        assert [(each["event"], each.get("name")) for each in stream.records] == [
            (LOST, "3"), ("queue.deleted", "after")
        ]  # fmt: skip
