"""/api/queues/V/Q/messages and jobs: permissions, refusals, and replies."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest


@pytest.fixture
def filled(channel) -> str:
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.queue_declare("to", durable=True)
    for number in range(10):
        properties = pika.BasicProperties(headers={"n": number}, delivery_mode=2)
        channel.basic_publish("", "q", b"%d" % number, properties)
    return "q"


def queue_path(v: str, suffix: str, queue: str = "q") -> str:
    return f"/api/queues/{v}/{queue}/{suffix}"


class TestBrowse:
    def test_next_page_starts_at_next_offset(self, api, v, filled) -> None:
        page = api.get(queue_path(v, "messages?count=4"))
        assert [each["offset"] for each in page["messages"]] == [0, 1, 2, 3]
        assert (page["next_offset"], page["ended"]) == (4, False)
        page = api.get(queue_path(v, "messages?count=100&offset=4"))
        assert [each["payload"] for each in page["messages"]] == [str(number) for number in range(4, 10)]
        assert page["ended"] is True

    @pytest.mark.parametrize("kind", ["classic", "stream"])
    def test_end_parameter_starts_after_the_last_message(self, api, v, channel, kind) -> None:
        channel.confirm_delivery()
        channel.queue_declare("w", durable=True, arguments={"x-queue-type": kind})
        end = "messages?end=true"
        assert api.get(queue_path(v, end, "w")) == {"messages": [], "next_offset": 0, "ended": True, "hint": ""}
        channel.basic_publish("", "w", b"one")
        assert api.get(queue_path(v, end, "w"))["next_offset"] == 1
        assert api.get(queue_path(v, "messages?offset=1", "w"))["next_offset"] == 1
        channel.basic_publish("", "w", b"two")
        (found,) = api.get(queue_path(v, "messages?offset=1", "w"))["messages"]
        assert found["payload"] == "two"

    def test_fields_of_unacked_and_ready_messages(self, api, v, filled, channel) -> None:
        method, _, _ = channel.basic_get("q")
        (first, second) = api.get(queue_path(v, "messages?count=2&truncate=0"))["messages"]
        assert (first["state"], second["state"]) == ("unacked", "ready")
        arrival_ms = first.pop("time")
        assert abs(arrival_ms - time.time() * 1000) < 60_000
        assert first == {
            "offset": 0,
            "state": "unacked",
            "redelivered": first["redelivered"],
            "delivery_count": 0,
            "exchange": "",
            "routing_key": "q",
            "payload_bytes": 1,
            "properties": {"headers": {"n": 0}, "delivery_mode": 2},
            "payload": "",
            "payload_encoding": "string",
        }
        channel.basic_ack(method.delivery_tag)
        assert api.get(queue_path(v, "messages?count=1"))["messages"][0]["offset"] == 1, (
            "an acknowledged message is left out"
        )
        assert second["redelivered"] is False

    def test_hint_when_selector_finds_nothing_and_names_a_property(self, api, v, filled) -> None:
        hint = "p.message-id is the property, message_id a header"
        assert api.get(queue_path(v, "messages?where=message_id%20%3D%20'a'"))["hint"] == hint
        assert api.get(queue_path(v, "messages?where=p.message_id%20%3D%20'a'"))["hint"] == ""
        assert api.get(queue_path(v, "messages?where=message_id%20IS%20NULL"))["hint"] == ""  # it matches messages
        delete = {"action": "delete", "where": "message_id = 'a'", "wait_ms": 5000}
        assert api.send_ok("POST", queue_path(v, "jobs"), delete).json["hint"] == hint
        assert api.send_ok("POST", queue_path(v, "jobs"), {**delete, "where": "n = 1"}).json["hint"] == ""
        assert api.send_ok("POST", queue_path(v, "jobs"), {**delete, "where": "message_id IS NULL"}).json["hint"] == ""

    def test_browsing_changes_nothing(self, api, v, filled, channel) -> None:
        for _ in range(3):
            api.get(queue_path(v, "messages"))
        method, _, body = channel.basic_get("q", auto_ack=True)
        assert (method.redelivered, method.message_count, body) == (False, 9, b"0")

    def test_where_and_time_filter_messages(self, api, v, filled) -> None:
        found = api.get(queue_path(v, "messages?where=n%20%3E%207"))
        assert [each["payload"] for each in found["messages"]] == ["8", "9"]
        assert api.get(queue_path(v, "messages?time=2001-01-01"))["messages"]
        assert not api.get(queue_path(v, f"messages?time={int(time.time() * 1000) + 60_000}"))["messages"]

    def test_unacked_message_is_listed_only_by_queue_with_log(self, api, v, channel) -> None:
        channel.queue_declare("t", exclusive=False)
        channel.queue_declare("p", durable=True, arguments={"x-max-priority": 5})
        for name in ("t", "p"):
            for number in range(3):
                channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=number))
            channel.basic_get(name)
        assert [(each["payload"], each["state"]) for each in api.get(queue_path(v, "messages", "t"))["messages"]] == [
            ("1", "ready"),
            ("2", "ready"),
        ], "a transient queue does not list unacked messages"
        assert [(each["payload"], each["state"]) for each in api.get(queue_path(v, "messages", "p"))["messages"]] == [
            ("0", "ready"),
            ("1", "ready"),
            ("2", "unacked"),
        ]

    def test_time_needs_a_queue_with_log(self, api, v, channel) -> None:
        channel.queue_declare("t", exclusive=False)
        answer = api("GET", queue_path(v, "messages?time=2001-01-01", "t"))
        assert answer.status == 400
        assert answer.json["reason"].endswith("it does not know when its messages arrived")

    def test_stream_is_browsed_from_offset(self, api, v, channel) -> None:
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(3):
            channel.basic_publish("", "s", b"%d" % number)
        page = api.get(queue_path(v, "messages?offset=1", "s"))
        assert [(each["offset"], each["state"]) for each in page["messages"]] == [(1, "ready"), (2, "ready")]

    @pytest.mark.parametrize(
        "query",
        [
            "count=0",
            "count=1001",
            "count=x",
            "offset=-1",
            "offset=x",
            "time=yesterday",
            "time=-1",
            "where=n%20%3E",
            "encoding=hex",
            "truncate=-1",
        ],
    )
    def test_bad_query_is_refused(self, api, v, filled, query) -> None:
        assert api("GET", queue_path(v, f"messages?{query}")).status == 400

    def test_empty_selector_selects_all_messages(self, api, v, filled) -> None:
        assert len(api.get(queue_path(v, "messages?where="))["messages"]) == 10

    def test_missing_queue_is_not_found(self, api, v) -> None:
        assert api("GET", queue_path(v, "messages", "none")).status == 404


def run_job(api: Any, v: str, body: dict[str, Any], queue: str = "q") -> dict[str, Any]:
    answer = api("POST", queue_path(v, "jobs", queue), {"wait_ms": 10_000, **body})
    assert answer.status == 200, answer.body
    return answer.json


class TestJobs:
    def test_move_job_moves_matching_messages_up_to_limit(self, api, v, filled) -> None:
        job = run_job(api, v, {"action": "move", "to_queue": "to", "where": "n < 4", "limit": 3})
        assert (job["state"], job["done"], job["messages"]) == ("done", 3, 10)
        assert (job["to_queue"], job["where"], job["limit"], job["dry_run"]) == ("to", "n < 4", 3, False)
        assert [each["payload"] for each in api.get(queue_path(v, "messages", "to"))["messages"]] == ["0", "1", "2"]
        assert api.get(f"/api/amqpd/jobs/{job['id']}")["done"] == 3
        assert job["id"] in [each["id"] for each in api.get(queue_path(v, "jobs"))]
        assert job["id"] in [each["id"] for each in api.get("/api/amqpd/jobs")]
        assert api.get(queue_path(v, "jobs", "to")) == []
        assert api("DELETE", f"/api/amqpd/jobs/{job['id']}").json["state"] == "done"

    def test_copy_delete_and_dry_run_jobs(self, api, v, filled) -> None:
        copy = {"action": "copy", "to_exchange": "amq.default", "routing_key": "to", "offset": 8}
        assert run_job(api, v, copy)["done"] == 2
        assert run_job(api, v, {"action": "delete", "where": "n = 3", "dry_run": True})["done"] == 1
        assert run_job(api, v, {"action": "delete", "where": "n = 3"})["done"] == 1
        assert run_job(api, v, {"action": "delete", "where": "n = 3"})["done"] == 0
        assert len(api.get(queue_path(v, "messages"))["messages"]) == 9
        first = api.get(queue_path(v, "messages", "to"))["messages"][0]
        assert (first["routing_key"], first["properties"]["headers"]["x-source-offset"]) == ("to", 8)

    def test_redrive_returns_dead_letters_to_their_queue(self, api, v, filled, channel) -> None:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        channel.queue_declare("w", durable=True, arguments=arguments)
        channel.basic_publish("", "w", b"dead")
        method, _, _ = channel.basic_get("w")
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert run_job(api, v, {"action": "redrive"})["left"] == {"not dead-lettered": 10}
        assert api.get(queue_path(v, "messages", "w"))["messages"][0]["payload"] == "dead"

    def test_job_waits_for_full_target_and_can_be_stopped(self, api, v, filled, channel) -> None:
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 2})
        answer = api("POST", queue_path(v, "jobs"), {"action": "move", "to_queue": "full", "wait_ms": 300})
        assert answer.status == 202
        job = answer.json
        assert (job["state"], job["reason"], job["done"], job["ended"]) == ("waiting", "the target is full", 2, None)
        assert api("DELETE", f"/api/amqpd/jobs/{job['id']}").json["state"] == "stopped"
        assert len(api.get(queue_path(v, "messages"))["messages"]) == 8
        assert len(api.get(queue_path(v, "messages", "full"))["messages"]) == 2

    def test_job_fails_when_target_is_deleted(self, api, v, filled, channel) -> None:
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 2})
        job = api("POST", queue_path(v, "jobs"), {"action": "move", "to_queue": "full"}).json
        channel.queue_delete("full")
        job = api.get(f"/api/amqpd/jobs/{job['id']}?wait_ms=10000")
        assert (job["state"], job["reason"]) == ("failed", "queue 'full' was deleted")

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({}, 400),
            ({"action": "eat"}, 400),
            ({"action": "move"}, 400),
            ({"action": "move", "to_queue": "to", "to_exchange": "amq.direct"}, 400),
            ({"action": "move", "to_queue": "to", "routing_key": "x"}, 400),
            ({"action": "move", "to_queue": "to", "offset": 3}, 400),
            ({"action": "move", "to_queue": "to", "nonsense": 3}, 400),
            ({"action": "move", "to_queue": 1}, 400),
            ({"action": "move", "to_queue": "q"}, 400),
            ({"action": "move", "to_queue": "none"}, 404),
            ({"action": "copy", "to_exchange": "none"}, 404),
            ({"action": "copy", "to_exchange": "amq.direct", "routing_key": "ä" * 128}, 400),
            ({"action": "copy", "to_exchange": "amq.direct", "routing_key": "\ud800"}, 400),
            ({"action": "copy", "to_queue": "\ud800"}, 400),
            ({"action": "delete", "to_queue": "to"}, 400),
            ({"action": "delete", "where": "n >"}, 400),
            ({"action": "delete", "where": 1}, 400),
            ({"action": "delete", "limit": -1}, 400),
            ({"action": "delete", "dry_run": "x"}, 400),
            ({"action": "delete", "wait_ms": 30_001}, 400),
            ({"action": "copy", "to_queue": "to", "time": "x"}, 400),
        ],
    )
    def test_bad_job_is_refused_and_changes_nothing(self, api, v, filled, body, status) -> None:
        assert api("POST", queue_path(v, "jobs"), body).status == status
        assert len(api.get(queue_path(v, "messages"))["messages"]) == 10

    def test_delete_from_stream_is_refused(self, api, v, channel) -> None:
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        answer = api("POST", queue_path(v, "jobs", "s"), {"action": "delete"})
        assert answer.status == 400
        assert "is a stream" in answer.json["reason"]

    def test_job_on_missing_queue_is_not_found(self, api, v) -> None:
        assert api("POST", queue_path(v, "jobs", "none"), {"action": "delete"}).status == 404
        assert api("GET", "/api/amqpd/jobs/none").status == 404
        assert api("DELETE", "/api/amqpd/jobs/none").status == 404


class TestPermissions:
    def test_browse_needs_read(self, user, v, filled) -> None:
        assert user("management", read="^q$")("GET", queue_path(v, "messages")).status == 200
        assert user("management", write=".*", configure=".*")("GET", queue_path(v, "messages")).status == 401

    @pytest.mark.parametrize(
        ("rights", "status"),
        [
            ({"read": "^q$", "configure": "^q$", "write": "^to$"}, 200),
            ({"configure": "^q$", "write": "^to$"}, 401),
            ({"read": "^q$", "write": "^to$"}, 401),
            ({"read": "^q$", "configure": "^q$"}, 401),
        ],
    )
    def test_move_needs_read_configure_and_write(self, user, v, filled, rights, status) -> None:
        body = {"action": "move", "to_queue": "to", "wait_ms": 5000}
        assert user("management", **rights)("POST", queue_path(v, "jobs"), body).status == status

    def test_copy_needs_read_and_write(self, user, v, filled) -> None:
        body = {"action": "copy", "to_queue": "to", "wait_ms": 5000}
        assert user("management", read="^q$", write="^to$")("POST", queue_path(v, "jobs"), body).status == 200
        body = {"action": "copy", "to_exchange": "amq.fanout"}
        assert user("management", read="^q$", write="^to$")("POST", queue_path(v, "jobs"), body).status == 401

    def test_redrive_needs_write_on_each_target_queue(self, user, v, filled, channel) -> None:
        for name in ("w1", "w2"):
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.basic_publish("", name, b"dead")
            method, _, _ = channel.basic_get(name)
            channel.basic_reject(method.delivery_tag, requeue=False)
        caller = user("management", read="^q$", configure="^q$", write="^w1$")
        job = caller("POST", queue_path(v, "jobs"), {"action": "redrive", "where": "n IS NULL", "wait_ms": 5000}).json
        assert (job["done"], job["left"]) == (1, {"no permission": 1})

    @pytest.mark.parametrize("key", [None, "billing.all"])
    def test_topic_permission_limits_the_routing_keys_of_a_job(self, api, user, v, filled, channel, key) -> None:
        channel.queue_bind("to", "amq.topic", "#")
        caller = user("management", read="^q$", write="^amq.topic$")
        topic = {"exchange": "amq.topic", "write": "^q$", "read": ""}
        api.send_ok("PUT", f"/api/topic-permissions/{v}/{caller.user}", topic)
        body = {"action": "copy", "to_exchange": "amq.topic", "limit": 3, "wait_ms": 5000}
        job = caller("POST", queue_path(v, "jobs"), body if key is None else {**body, "routing_key": key}).json
        expected = (3, {}) if key is None else (0, {"no permission": 10})
        assert (job["done"], job["left"]) == expected

    def test_redrive_needs_the_topic_permission_for_each_key(self, api, user, v, filled, channel) -> None:
        channel.queue_bind("to", "amq.topic", "#")
        death = {"queue": "gone", "reason": "rejected", "exchange": "amq.topic", "routing-keys": ["q", "billing.all"]}
        channel.basic_publish("", "q", b"dead", pika.BasicProperties(headers={"x-death": [death]}, delivery_mode=2))
        caller = user("management", read="^q$", configure="^q$", write="^amq.topic$")
        topic = {"exchange": "amq.topic", "write": "^q$", "read": ""}
        api.send_ok("PUT", f"/api/topic-permissions/{v}/{caller.user}", topic)
        job = caller("POST", queue_path(v, "jobs"), {"action": "redrive", "where": "n IS NULL", "wait_ms": 5000}).json
        assert (job["done"], job["left"]) == (0, {"no permission": 1})

    def test_job_cannot_publish_to_an_internal_exchange(self, user, v, filled, channel) -> None:
        channel.exchange_declare("inner", "fanout", internal=True)
        body = {"action": "copy", "to_exchange": "inner", "wait_ms": 5000}
        answer = user("management", read="^q$", write=".*")("POST", queue_path(v, "jobs"), body)
        assert answer.status == 401
        assert "internal" in answer.json["reason"]

    def test_job_of_another_user_is_hidden_or_read_only(self, api, user, v, filled) -> None:
        job = api("POST", queue_path(v, "jobs"), {"action": "delete", "where": "n = 1", "wait_ms": 5000}).json
        stranger = user("management")
        assert stranger("GET", f"/api/amqpd/jobs/{job['id']}").status == 404
        assert job["id"] not in [each["id"] for each in stranger.get("/api/amqpd/jobs")]
        reader = user("management", read=".*")
        assert reader("GET", f"/api/amqpd/jobs/{job['id']}").status == 200
        assert reader("DELETE", f"/api/amqpd/jobs/{job['id']}").status == 401
