"""The dry run of a definitions import, compared with the import itself."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote


def difference(api: Any, document: Any, query: str = "", v: str = "") -> Any:
    answer = api("POST", f"/api/amqpd/definitions/{v + '/' if v else ''}difference{query}", document)
    assert answer.status == 200, answer
    return answer.json


def changes(found: Any) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["name"]): each for each in found["changes"]}


def test_export_has_no_difference(api, v, channel, user) -> None:
    user("monitoring", read="^a")
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5, "x-queue-type": "quorum"})
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind("q", "x", "a.#", {"n": 1})
    channel.exchange_bind("x", "amq.topic", "k")
    api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "q", "definition": {"expires": 9_000_000}, "priority": 2})
    api.send_ok("PUT", f"/api/operator-policies/{v}/o", {"pattern": "q", "definition": {"max-length": 5}})
    api.send_ok("PUT", f"/api/vhost-limits/{v}/max-queues", {"value": 100})
    found = difference(api, api.get("/api/definitions"))
    assert found["changes"] == []
    assert found["possible"] is True
    assert {count for counts in found["counts"].values() for state, count in counts.items() if state != "same"} == {0}
    assert found["counts"]["bindings"]["same"] >= 2
    assert difference(api, api.get(f"/api/definitions/{v}"), v=v)["changes"] == []


def test_difference_lists_new_and_changed_objects(api, amqpd_vhost, v, channel) -> None:
    name = amqpd_vhost.name
    channel.queue_declare("there", durable=True)
    api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "a", "definition": {"max-length": 5}})
    document = {
        "queues": [
            {"vhost": name, "name": "there"},
            {"vhost": name, "name": "coming", "arguments": {"x-max-length": 1}},
        ],
        "bindings": [
            {
                "vhost": name,
                "source": "amq.topic",
                "destination": "coming",
                "destination_type": "queue",
                "routing_key": "k",
            }
        ],
        "policies": [{"vhost": name, "name": "p", "pattern": "b", "definition": {"max-length": 5}}],
    }
    found = difference(api, document)
    assert found["counts"]["queues"] == {"new": 1, "changed": 0, "same": 1, "kept": 0}
    changes_by_name = changes(found)
    assert set(changes_by_name) == {("queues", "coming"), ("bindings", "amq.topic to queue coming"), ("policies", "p")}
    assert changes_by_name["queues", "coming"]["before"] is None
    assert changes_by_name["queues", "coming"]["after"]["arguments"] == {"x-max-length": 1}
    assert changes_by_name["queues", "coming"]["path"] == "queues[1]"
    assert (changes_by_name["policies", "p"]["before"], changes_by_name["policies", "p"]["after"]) == (
        {"pattern": "a"},
        {"pattern": "b"},
    )
    assert api("GET", f"/api/queues/{v}/coming").status == 404  # nothing was made
    assert api.get(f"/api/policies/{v}/p")["pattern"] == "a"
    api.send_ok("POST", "/api/definitions", document)
    assert difference(api, document)["changes"] == []


def test_object_with_other_arguments_is_kept(api, amqpd_vhost, v, channel) -> None:
    name = amqpd_vhost.name
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    channel.exchange_declare("x", "topic", durable=True)
    document = {
        "vhosts": [{"name": name, "description": "another"}],
        "queues": [{"vhost": name, "name": "q", "type": "quorum", "arguments": {"x-max-length": 7}}],
        "exchanges": [{"vhost": name, "name": "x", "type": "fanout"}],
    }
    changes_by_name = changes(difference(api, document))
    assert {each["what"] for each in changes_by_name.values()} == {"kept"}
    assert changes_by_name["queues", "q"]["before"] == {"type": "classic", "arguments": {"x-max-length": 5}}
    assert changes_by_name["queues", "q"]["after"] == {"type": "quorum", "arguments": {"x-max-length": 7}}
    assert changes_by_name["exchanges", "x"]["after"] == {"type": "fanout"}
    assert changes_by_name["vhosts", name]["before"] == {"description": ""}
    api.send_ok("POST", "/api/definitions", document)
    assert api.get(f"/api/queues/{v}/q")["arguments"] == {"x-max-length": 5}
    assert changes(difference(api, document)) == changes_by_name
    document["vhosts"][0]["default_queue_type"] = "quorum"
    assert changes(difference(api, document))["vhosts", name]["what"] == "changed"


def test_new_vhost_and_its_objects_are_new(api, amqpd_vhost) -> None:
    name = f"new of {amqpd_vhost.name}"
    document = {
        "vhosts": [{"name": name, "description": "for a while"}],
        "exchanges": [{"vhost": name, "name": "x", "type": "direct"}],
        "permissions": [{"user": "guest", "vhost": name, "configure": "", "write": "", "read": ".*"}],
    }
    changes_by_name = changes(difference(api, document))
    assert changes_by_name["vhosts", name]["after"]["description"] == "for a while"
    assert changes_by_name["exchanges", "x"]["what"] == changes_by_name["permissions", "guest"]["what"] == "new"
    assert api("GET", f"/api/vhosts/{quote(name, safe='')}").status == 404


def test_importing_user_gets_permissions_in_new_vhosts(api, operator, v) -> None:
    """RabbitMQ: as with PUT /api/vhosts. Permissions in the document have priority."""
    names = [f"{v}-{number}" for number in range(3)]
    own = {"user": "guest", "vhost": names[1], "configure": "", "write": "", "read": "a"}
    document = {"vhosts": [{"name": v}, *({"name": name} for name in names[:2])], "permissions": [own]}
    shown = [each["vhost"] for each in difference(api, document)["changes"] if each["kind"] == "permissions"]
    assert shown == [names[1], names[0]]
    api.send_ok("POST", "/api/definitions", document)
    operator.send_ok("POST", "/api/definitions", {"vhosts": [{"name": names[2]}]})
    found = [[each["configure"] for each in api.get(f"/api/vhosts/{name}/permissions")] for name in names]
    for name in names:
        api.send_ok("DELETE", f"/api/vhosts/{name}")
    assert found == [[".*"], [""], []]
    refused = api("POST", "/api/definitions", {"vhosts": [{"name": "v" * 256}]})
    assert "permissions" not in refused.json["reason"], "an item that is not in the document"


def test_user_changes_show_no_password_or_hash(api, user) -> None:
    existing = user("monitoring", read="a")
    users = [each for each in api.get("/api/definitions")["users"] if each["name"] == existing.user]
    assert difference(api, {"users": users})["changes"] == []
    document = {"users": [{**users[0], "tags": ["management"]}, {"name": "fresh", "password": "x-y-z", "tags": ""}]}
    found = difference(api, document)
    changes_by_name = changes(found)
    assert changes_by_name["users", existing.user]["before"] == {"tags": ["monitoring"]}
    assert changes_by_name["users", existing.user]["after"] == {"tags": ["management"]}
    assert changes_by_name["users", "fresh"]["after"]["password"] == "another"
    assert "argon2" not in json.dumps(found)
    assert "x-y-z" not in json.dumps(found)
    other = {"users": [{"name": existing.user, "password": "another", "tags": ["monitoring"]}]}
    assert changes(difference(api, other))["users", existing.user]["after"] == {"password": "another"}


def test_refused_items_are_listed_with_the_changes(api, amqpd_vhost, channel) -> None:
    name = amqpd_vhost.name
    channel.queue_declare("there", durable=True)
    document = {
        "queues": [
            {"vhost": name, "name": "there", "arguments": {"x-max-length": "many"}},
            {"vhost": name, "name": "coming"},
            {"vhost": "no such", "name": "q", "odd": 1},
        ]
    }
    found = difference(api, document)
    assert found["possible"] is False
    assert [each["path"] for each in found["skipped"]] == ["queues[0]", "queues[2].vhost"]
    assert "x-max-length" in found["skipped"][0]["reason"]
    assert found["unknown"] == ["queues[2].odd"]
    assert set(changes(found)) == {("queues", "coming")}
    assert api("POST", "/api/definitions", document).status == 400
    assert difference(api, document, "?skip_unsupported=true")["possible"] is True


def test_difference_shows_at_most_count_changes(api, amqpd_vhost) -> None:
    document = {"queues": [{"vhost": amqpd_vhost.name, "name": f"q{number}"} for number in range(9)]}
    found = difference(api, document, "?count=4")
    assert (len(found["changes"]), found["changes_left_out"], found["counts"]["queues"]["new"]) == (4, 5, 9)


def test_malformed_document_is_refused(api, v) -> None:
    for document in ([], {"queues": {}}, {"queues": [{"name": "q"}]}, {"users": [{}]}):
        answer = api("POST", "/api/amqpd/definitions/difference", document)
        assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert api("POST", "/api/amqpd/definitions/none/difference", {}).status == 404


def test_difference_needs_administrator(user) -> None:
    for tag in ("management", "policymaker", "monitoring"):
        assert user(tag, read=".*")("POST", "/api/amqpd/definitions/difference", {}).status == 401
