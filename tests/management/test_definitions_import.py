"""Definitions from other brokers: unknown keys, unsupported items, password hashes, and exported objects."""

from __future__ import annotations

import base64
import hashlib
import json

import pika
import pytest
from pika.exceptions import ProbableAuthenticationError

from amqpd.testing import BrokerProcess

SHA256, SHA512, MD5 = (f"rabbit_password_hashing_{name}" for name in ("sha256", "sha512", "md5"))
SHOVEL = {"component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}


def rabbit_hash(password: str, kind: str, salt: bytes = b"salt") -> str:
    return base64.b64encode(salt + hashlib.new(kind, salt + password.encode()).digest()).decode()


def test_unknown_keys_are_ignored_and_reported(api, v):
    document = {
        "quues": [],
        "queues": [{"name": "q", "colour": 1, "durable": True}],
        "limits": [],
        "exchanges": [{"name": "x", "type": "fanout", "user_who_performed_action": "guest"}],
    }
    reply = api("POST", f"/api/definitions/{v}?report=true", document)
    assert reply.status == 200
    assert reply.json == {
        "unknown": ["quues", "queues[0].colour", "exchanges[0].user_who_performed_action"],
        "unknown_count": 3,
        "skipped": [],
        "skipped_count": 0,
    }
    assert api("POST", f"/api/definitions/{v}", document).status == 204
    assert api("GET", f"/api/queues/{v}/q").status == 200


def test_document_may_be_the_field_file_of_a_form(api, v):
    """As `curl -F file=@definitions.json` sends it, and the forms of RabbitMQ's page."""
    head = 'Content-Disposition: form-data; name="file"; filename="d.json"\r\nContent-Type: application/json'
    document = json.dumps({"queues": [{"name": "q", "arguments": {"x-note": "--edge"}}]})
    other = '--edge\r\nContent-Disposition: form-data; name="redirect"\r\n\r\n../file\r\n'
    form = f"{other}--edge\r\n{head}\r\n\r\n{document}\r\n--edge--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    assert api("POST", f"/api/definitions/{v}", form, kind, raw=True).status == 204
    assert api.get(f"/api/queues/{v}/q")["arguments"] == {"x-note": "--edge"}
    refused = api("POST", f"/api/definitions/{v}", f"{other}--edge--\r\n", kind, raw=True)
    assert (refused.status, "file" in refused.json["reason"]) == (400, True)
    assert api("POST", f"/api/definitions/{v}", form, {"Content-Type": "multipart/form-data"}, raw=True).status == 400


def test_default_exchange_and_its_bindings_are_there_already(api, v):
    """Lists of exchanges and bindings have them, so documents made of those lists have them too."""
    own = {"source": "", "destination": "q", "destination_type": "queue", "routing_key": "q", "arguments": {}}
    document = {"exchanges": api.get(f"/api/exchanges/{v}"), "queues": [{"name": "q"}], "bindings": [own]}
    assert "" in [each["name"] for each in document["exchanges"]]
    assert api("POST", f"/api/definitions/{v}", document).status == 204
    counts = api.send_ok("POST", f"/api/amqpd/definitions/{v}/difference", document).json["counts"]
    assert (counts["bindings"]["same"], counts["exchanges"]["same"]) == (1, len(document["exchanges"]))
    assert api("POST", f"/api/definitions/{v}", {"exchanges": [{"name": "", "type": "fanout"}]}).status == 400
    for other in ({"routing_key": "other"}, {"destination": "none", "routing_key": "none"}):
        assert api("POST", f"/api/definitions/{v}", {"bindings": [own | other]}).status == 400


def test_all_errors_are_reported_and_nothing_is_created(api, v):
    document = {
        "queues": [{"name": "q"}, {"name": "bad", "arguments": {"x-max-length": -1}}],
        "exchanges": [{"name": "x", "type": "none"}],
        "parameters": [SHOVEL],
        "bindings": [{"source": "x", "destination": "q", "destination_type": "queue"}],
    }
    refused = api("POST", f"/api/definitions/{v}", document)
    assert refused.status == 400
    reason = refused.json["reason"]
    for path in ("parameters[0]: ", "exchanges[0]: ", "queues[1]: ", "bindings[0].source: unknown"):
        assert path in reason
    assert api.get(f"/api/queues/{v}") == []


def test_skip_unsupported_skips_and_reports_bad_items(api, v):
    policy = {"name": "p", "pattern": "", "definition": {"max-length": 3, "x-new": 1}, "priority": 0}
    document = {
        "queues": [{"name": "q"}, {"name": "bad", "arguments": {"x-max-length": -1}}],
        "exchanges": [{"name": "x", "type": "none"}],
        "parameters": [
            SHOVEL,
            {
                "component": "operator_policy",
                "name": "o",
                "value": {"pattern": "", "definition": {"max-length": 2, "new": 1}, "priority": 0},
            },
        ],
        "policies": [policy, {**policy, "name": "none-left", "definition": {"x-new": 1}}],
        "bindings": [
            {"source": "x", "destination": "q", "destination_type": "queue"},
            {"source": "amq.fanout", "destination": "bad", "destination_type": "queue"},
            {"source": "amq.fanout", "destination": "q", "destination_type": "queue"},
        ],
    }
    reply = api("POST", f"/api/definitions/{v}?skip_unsupported=true", document)
    assert reply.status == 200
    assert sorted(each["path"] for each in reply.json["skipped"]) == [
        "bindings[0].source",
        "bindings[1].destination",
        "exchanges[0]",
        "parameters[0]",
        "parameters[1].value.definition.new",
        "policies[0].definition.x-new",
        "policies[1]",
        "queues[1]",
    ]
    assert all(each["reason"] for each in reply.json["skipped"])
    assert reply.json["skipped_count"] == 8
    assert [queue["name"] for queue in api.get(f"/api/queues/{v}")] == ["q"]
    assert api.get(f"/api/policies/{v}/p")["definition"] == {"max-length": 3}
    assert [each["name"] for each in api.get(f"/api/policies/{v}")] == ["p"]
    assert api.get(f"/api/parameters/operator_policy/{v}/o")["value"]["definition"] == {"max-length": 2}
    assert [each["source"] for each in api.get(f"/api/queues/{v}/q/bindings")] == ["", "amq.fanout"]
    # A malformed document is refused in any case.
    wrong = {"queues": [{"durable": True}]}
    assert api("POST", f"/api/definitions/{v}?skip_unsupported=true", wrong).json["reason"] == "queues[0].name: missing"


def test_vhost_document_of_rabbitmq_4_sets_limits(api, v):
    for limits, expected in (([], []), ({"max-queues": 5}, [{"max-queues": 5}])):
        assert api("POST", f"/api/definitions/{v}", {"limits": limits}).status == 204
        assert [each["value"] for each in api.get(f"/api/vhost-limits/{v}")] == expected
    assert api("POST", f"/api/definitions/{v}", {"limits": 3}).json["reason"] == "limits: must be an object"


def test_plaintext_password_is_hashed_once_for_repeated_imports(api, amqpd_broker):
    document = {"users": [{"name": "plain", "password": "secret", "tags": "management"}]}
    assert api("POST", "/api/definitions", document).status == 204
    stored = api.get("/api/users/plain")
    assert stored["hashing_algorithm"]
    assert "secret" not in str(api.get("/api/definitions"))
    assert type(api)(amqpd_broker, "plain", "secret").get("/api/whoami")["tags"] == ["management"]
    assert api("POST", "/api/definitions", document).status == 204
    assert api.get("/api/users/plain") == stored
    document["users"][0]["password"] = "other"
    assert api("POST", "/api/definitions", document).status == 204
    assert type(api)(amqpd_broker, "plain", "other")("GET", "/api/whoami").status == 200
    assert type(api)(amqpd_broker, "plain", "secret")("GET", "/api/whoami").status == 401
    api.send_ok("DELETE", "/api/users/plain")


def test_argon2id_hash_is_exported_in_its_own_key(api, tmp_path):
    with BrokerProcess(tmp_path) as broker:  # the shared broker hashes passwords fast
        client = type(api)(broker)
        client.send_ok("PUT", "/api/users/mine", {"password": "secret", "tags": ""})
        client.send_ok("PUT", "/api/users/empty", {"password_hash": "", "tags": ""})
        exported = {each["name"]: each for each in client.get("/api/definitions")["users"]}
    for name in ("mine", "empty"):
        assert (exported[name]["password_hash"], exported[name]["hashing_algorithm"]) == ("", SHA256)
    assert exported["mine"]["argon2id_hash"].startswith("$argon2id$")
    assert "argon2id_hash" not in exported["empty"]


@pytest.mark.slow
def test_rabbitmq_hashes_are_kept_if_configured_and_else_renewed(tmp_path, api):
    users = {SHA256: "sha256", SHA512: "sha512", MD5: "md5"}
    document = {
        "users": [
            {
                "name": kind,
                "password_hash": rabbit_hash("secret", kind),
                "hashing_algorithm": name,
                "tags": "management",
            }
            for name, kind in users.items()
        ]
    }
    original_hashes = {each["name"]: each["password_hash"] for each in document["users"]}

    def hashes(client):
        return {each["name"]: (each["hashing_algorithm"], each["password_hash"]) for each in client.get("/api/users")}

    settings = {"auth.password_hashing": SHA512}
    with BrokerProcess(tmp_path / "kept", settings=settings) as broker:
        first = type(api)(broker)
        assert first("POST", "/api/definitions", document).status == 204
        for kind in users.values():
            assert type(api)(broker, kind, "secret").get("/api/whoami")["name"] == kind
            assert type(api)(broker, kind, "wrong")("GET", "/api/whoami").status == 401
        first.send_ok("PUT", "/api/users/new", {"password": "secret", "tags": "management"})
        now = hashes(first)
        assert {name: now[kind] for name, kind in users.items()} == {
            name: (name, original_hashes[kind]) for name, kind in users.items()
        }
        assert (now["new"][0], now["guest"][0]) == (SHA512, SHA512)
        exported = first.get("/api/definitions")
        assert all(each["password_hash"] and "argon2id_hash" not in each for each in exported["users"])
    with BrokerProcess(tmp_path / "renewed") as broker:
        second = type(api)(broker)
        assert second("POST", "/api/definitions", exported).status == 204
        for name in ("sha256", "md5", "new"):
            assert type(api)(broker, name, "secret").get("/api/whoami")["name"] == name
        now = hashes(second)
        assert [now[name][0] for name in ("sha256", "md5", "new", "sha512")] == ["argon2id"] * 3 + [SHA512]
        exported_again = second.get("/api/definitions")
    with BrokerProcess(tmp_path / "kept", settings=settings) as broker:
        # At the first login the broker knows the password and stores a hash that RabbitMQ can read.
        first = type(api)(broker)
        assert first("POST", "/api/definitions", exported_again).status == 204
        assert hashes(first)["md5"][0] == "argon2id"
        assert type(api)(broker, "md5", "secret").get("/api/whoami")["name"] == "md5"
        assert hashes(first)["md5"][0] == SHA512


@pytest.mark.slow
def test_transient_and_auto_delete_queues_are_exported_but_not_exclusive(api, amqpd_broker, v):
    with pika.BlockingConnection(pika.URLParameters(f"{amqpd_broker.url}{v}")) as connection:
        channel = connection.channel()
        channel.queue_declare("transient", durable=False)
        channel.queue_declare("going", durable=True, auto_delete=True)
        channel.queue_declare("mine", exclusive=True)
        channel.exchange_declare("t", "topic", durable=False, auto_delete=True)
        for queue in ("transient", "going", "mine"):
            channel.queue_bind(queue, "t", "k")
        exported = api.get(f"/api/definitions/{v}")
        assert [(each["name"], each["durable"], each["auto_delete"]) for each in exported["queues"]] == [
            ("transient", False, False),
            ("going", True, True),
        ]
        assert [(each["durable"], each["auto_delete"]) for each in exported["exchanges"]] == [(False, True)]
        assert [each["destination"] for each in exported["bindings"]] == ["transient", "going"]
    api.send_ok("PUT", "/api/vhosts/other-v")
    try:
        api.send_ok("PUT", "/api/permissions/other-v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        assert api("POST", "/api/definitions/other-v", exported).status == 204
        assert api.get("/api/definitions/other-v") == exported
        amqpd_broker.kill()
        amqpd_broker.start()
        assert [each["name"] for each in api.get("/api/definitions/other-v")["queues"]] == ["going"]
    finally:
        api.send_ok("DELETE", "/api/vhosts/other-v")


@pytest.mark.parametrize("password", ["", "wrong"])
def test_user_without_hash_cannot_log_in(api, amqpd_broker, password):
    assert api("POST", "/api/definitions", {"users": [{"name": "shut"}]}).status == 204
    credentials = pika.PlainCredentials("shut", password)
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqpd_broker.amqp_port, credentials=credentials))
    api.send_ok("DELETE", "/api/users/shut")
