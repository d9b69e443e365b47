"""Policy previews, compared with the effect of the policies."""

from __future__ import annotations

from typing import Any


def preview(api: Any, v: str, body: dict[str, Any], kind: str = "policies") -> Any:
    answer = api("POST", f"/api/amqpd/{kind}/{v}/preview", body)
    assert answer.status == 200, answer
    return answer.json


def test_preview_reports_matched_applied_outranked_and_unsupported(api, v, channel) -> None:
    for name in ("logs.a", "logs.b", "other"):
        channel.queue_declare(name)
    channel.queue_declare("logs.stream", durable=True, arguments={"x-queue-type": "stream"})
    channel.exchange_declare("logs.x", "topic")
    api.send_ok(
        "PUT", f"/api/policies/{v}/high", {"pattern": "b$", "definition": {"expires": 9_000_000}, "priority": 9}
    )
    found = preview(api, v, {"name": "p", "pattern": "^logs", "definition": {"message-ttl": 60_000}})
    assert found["matched"] == {"queues": 3, "exchanges": 1}
    assert (found["applied"], found["outranked"], found["unsupported"], found["released"]) == (2, 1, 1, 0)
    assert found["changed"] == {"queues": 1, "exchanges": 1}
    items = {item["name"]: item for item in found["items"]}
    assert items["logs.a"]["why"] == "applied"
    assert (items["logs.a"]["before"], items["logs.a"]["after"]) == ({}, {"message-ttl": 60_000})
    assert (items["logs.b"]["why"], items["logs.b"]["holds"]) == ("outranked", "high")
    assert items["logs.stream"]["why"] == "unsupported"
    assert api("GET", f"/api/policies/{v}/p").status == 404  # nothing was set
    api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "^logs", "definition": {"message-ttl": 60_000}})
    policies = {each["name"]: each["policy"] for each in api.get(f"/api/queues/{v}")}
    assert policies == {"logs.a": "p", "logs.b": "high", "logs.stream": None, "other": None}


def test_preview_counts_messages_that_the_policy_drops(api, v, channel) -> None:
    channel.confirm_delivery()
    for name in ("a", "b"):
        channel.queue_declare(name)
        for _ in range(7):
            channel.basic_publish("", name, b"0123456789")
    channel.queue_declare("keeps", arguments={"x-overflow": "reject-publish"})
    channel.basic_publish("", "keeps", b"x")
    body = {"pattern": ".", "definition": {"max-length": 5, "message-ttl": 3_600_000, "expires": 3_600_000}}
    found = preview(api, v, {"name": "p", **body})
    assert found["messages_over_length"] == 4
    assert found["messages_with_shorter_ttl"] == 15
    assert found["unused_queues_that_expire"] == 3
    assert (
        preview(api, v, {"name": "p", "pattern": ".", "definition": {"max-length-bytes": 35}})["messages_over_length"]
        == 2 * 4
    )
    api.send_ok("PUT", f"/api/policies/{v}/p", body)
    assert {each["name"]: each["messages"] for each in api.get(f"/api/queues/{v}")} == {"a": 5, "b": 5, "keeps": 1}


def test_preview_of_changed_or_cleared_policy_reports_released_queues(api, v, channel) -> None:
    channel.queue_declare("old")
    channel.queue_declare("new")
    api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "old", "definition": {"max-length": 5}})
    found = preview(api, v, {"name": "p", "pattern": "new", "definition": {"max-length": 5}})
    assert {item["name"]: (item["why"], item["after"]) for item in found["items"]} == {
        "old": ("released", {}),
        "new": ("applied", {"max-length": 5}),
    }
    assert found["matched"] == {"queues": 1, "exchanges": 0}
    found = preview(api, v, {"name": "p", "clear": True})
    assert [(item["name"], item["why"], item["after"]) for item in found["items"]] == [("old", "released", {})]
    assert api("POST", f"/api/amqpd/policies/{v}/preview", {"name": "none", "clear": True}).status == 404


def test_preview_of_operator_policy_merges_with_policy(api, v, channel) -> None:
    channel.queue_declare("q")
    api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "q", "definition": {"max-length": 5}})
    body = {"name": "o", "pattern": "q", "definition": {"max-length": 3}, "apply-to": "queues"}
    found = preview(api, v, body, "operator-policies")
    assert [(item["holds"], item["before"], item["after"]) for item in found["items"]] == [
        ("o", {"max-length": 5}, {"max-length": 3})
    ]


def test_preview_shows_at_most_count_items(api, v, channel) -> None:
    for number in range(12):
        channel.queue_declare(f"q{number}")
    body = {"name": "p", "pattern": "^q", "definition": {"max-length": 5}, "count": 5}
    found = preview(api, v, body)
    assert (len(found["items"]), found["items_left_out"], found["applied"]) == (5, 7, 12)


def test_preview_of_bad_policy_has_the_error_of_the_put(api, v) -> None:
    for body in ({"pattern": "(", "definition": {"max-length": 5}}, {"pattern": "q", "definition": {"no-such": 5}}):
        previewed = api("POST", f"/api/amqpd/policies/{v}/preview", {"name": "p", **body})
        refused = api("PUT", f"/api/policies/{v}/p", body)
        assert previewed.status == refused.status == 400
        assert previewed.json["reason"] == refused.json["reason"]
    assert api("POST", f"/api/amqpd/policies/{v}/preview", {"pattern": "q"}).status == 400
    assert api("POST", "/api/amqpd/policies/none/preview", {"name": "p"}).status == 404


def test_preview_needs_the_tag_and_vhost_access_of_the_put(user, v) -> None:
    body = {"name": "p", "pattern": "q", "definition": {"max-length": 5}}
    policymaker = user("policymaker", read=".*")
    assert policymaker("POST", f"/api/amqpd/policies/{v}/preview", body).status == 200
    assert policymaker("POST", f"/api/amqpd/operator-policies/{v}/preview", body).status == 401
    assert user("management", read=".*")("POST", f"/api/amqpd/policies/{v}/preview", body).status == 401
    assert user("policymaker")("POST", f"/api/amqpd/policies/{v}/preview", body).status == 401
