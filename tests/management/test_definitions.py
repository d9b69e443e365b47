"""Definitions: export and import between brokers, and documents that are refused completely."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pika
import pytest

from amqpd.broker.vhost.parameters import CLUSTER_NAME
from amqpd.broker.vhost.pending import wait_done
from amqpd.management.definitions import ImportReport, export_definitions, read_items
from amqpd.management.request import BadRequest
from amqpd.testing import BrokerProcess, embedded


@pytest.mark.slow
def test_imported_definitions_equal_exported_and_survive_kill(tmp_path, api):
    with BrokerProcess(tmp_path / "one") as broker:
        api_one = type(api)(broker)
        api_one.send_ok("PUT", "/api/vhosts/shop", {"description": "d", "tags": "a", "default_queue_type": "quorum"})
        api_one.send_ok("PUT", "/api/users/u", {"password": "secret", "tags": "management"})
        api_one.send_ok("PUT", "/api/permissions/shop/u", {"configure": "c", "write": "w", "read": "r"})
        api_one.send_ok("PUT", "/api/topic-permissions/shop/u", {"exchange": "amq.topic", "write": "w", "read": "r"})
        api_one.send_ok("PUT", "/api/permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        api_one.send_ok("PUT", "/api/exchanges/shop/x", {"type": "topic", "arguments": {"alternate-exchange": "y"}})
        api_one.send_ok("PUT", "/api/exchanges/shop/y", {"type": "headers", "internal": True})
        api_one.send_ok("PUT", "/api/queues/shop/q", {"arguments": {"x-max-length": 4}})
        api_one.send_ok("POST", "/api/bindings/shop/e/x/q/q", {"routing_key": "a.#", "arguments": {"n": 1}})
        api_one.send_ok("POST", "/api/bindings/shop/e/x/e/y", {"routing_key": "k"})
        with pika.BlockingConnection(pika.URLParameters(f"{broker.url}shop")) as connection:
            connection.channel().queue_declare("", durable=True, arguments={"x-queue-type": "classic"})
        exported = api_one.get("/api/definitions")
    with BrokerProcess(tmp_path / "two") as broker:
        api_two = type(api)(broker)
        assert api_two("POST", "/api/definitions", exported).status == 204
        assert api_two("POST", "/api/definitions", exported).status == 204
        assert api_two.get("/api/definitions") == exported
        assert type(api)(broker, "u", "secret").get("/api/whoami")["tags"] == ["management"]
        broker.kill()
        broker.start()
        assert api_two.get("/api/definitions") == exported
        connection = pika.BlockingConnection(pika.URLParameters(f"{broker.url}shop"))
        channel = connection.channel()
        channel.basic_publish("x", "a.b", b"routed")
        assert channel.basic_get("q", auto_ack=True)[2] == b"routed"
        connection.close()


def test_import_of_one_vhost(api, v):
    document = {
        "queues": [{"name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
        "exchanges": [{"name": "x", "type": "fanout", "durable": True, "arguments": []}],
        "bindings": [{"source": "x", "destination": "q", "destination_type": "queue", "routing_key": ""}],
    }
    assert api("POST", f"/api/definitions/{v}", document).status == 204
    assert [queue["name"] for queue in api.get(f"/api/queues/{v}")] == ["q"]
    reply = api("POST", f"/api/definitions/{v}?report=true", {"users": [], "queues": []})
    assert (reply.status, reply.json["unknown"]) == (200, ["users"])


@pytest.mark.parametrize("path", ["/api/definitions", "/api/definitions/%2F"])
def test_document_is_a_download_if_the_query_names_a_file(api, path):
    assert "content-disposition" not in api("GET", path).headers
    reply = api("GET", f"{path}?download=rabbit%22%0A.json")
    assert reply.headers["content-disposition"] == 'attachment; filename="rabbit%22%0A.json"'
    assert reply.json["queues"] is not None


def test_import_keeps_type_of_queue_older_than_default_queue_type(api, v):
    """An existing queue keeps its type, so its arguments are not checked against the default type."""
    api.send_ok("PUT", f"/api/queues/{v}/levels", {"arguments": {"x-max-priority": 3}})
    api.send_ok("PUT", f"/api/vhosts/{v}", {"default_queue_type": "quorum"})
    exported = api.get(f"/api/definitions/{v}")
    assert api("POST", f"/api/definitions/{v}", exported).status == 204
    assert api.get(f"/api/definitions/{v}") == exported
    wrong = {"queues": [{"name": "levels", "arguments": {"x-max-priority": -1}}]}
    refused = api("POST", f"/api/definitions/{v}", wrong)
    assert refused.json["reason"].startswith("queues[0]: invalid arg 'x-max-priority'")


GOOD = {"name": "new", "vhost": "/"}
POLICY = {
    "vhost": "/",
    "name": "p",
    "pattern": "^a",
    "apply-to": "queues",
    "definition": {"max-length": 9},
    "priority": 0,
}
PARAMETER = {
    "value": {"pattern": "", "definition": {"expires": 60000, "max-length": 7}, "priority": 0, "apply-to": "queues"},
    "vhost": "/",
    "component": "operator_policy",
    "name": "o",
}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"queues": {}}, "queues"),
        ({"queues": [GOOD, 3]}, "queues[1]"),
        ({"queues": [GOOD, {"vhost": "/"}]}, "queues[1].name"),
        ({"queues": [GOOD, {"name": "q", "vhost": "/", "durable": "yes"}]}, "queues[1].durable"),
        ({"queues": [GOOD, {"name": "q", "vhost": "no such"}]}, "queues[1].vhost"),
        ({"queues": [GOOD, {"name": "q", "vhost": "/", "arguments": {"x-max-length": -1}}]}, "queues[1]"),
        ({"queues": [GOOD, {"name": "q", "vhost": "/", "type": "no-such"}]}, "queues[1]"),
        ({"queues": [GOOD, {"name": "q", "vhost": "/", "type": "quorum", "durable": False}]}, "queues[1]"),
        ({"queues": [GOOD, {"name": "amq.q", "vhost": "/"}]}, "queues[1]"),
        ({"queues": [GOOD], "exchanges": [{"name": "x", "vhost": "/", "type": "none"}]}, "exchanges[0]"),
        ({"queues": [GOOD], "bindings": [{"vhost": "/", "source": "x"}]}, "bindings[0].destination"),
        (
            {
                "queues": [GOOD],
                "bindings": [
                    {"source": "none", "vhost": "/", "destination": "new", "destination_type": "queue"},
                ],
            },
            "bindings[0].source",
        ),
        (
            {
                "queues": [GOOD],
                "bindings": [
                    {
                        "source": "amq.headers", "vhost": "/", "destination": "new", "destination_type": "queue",
                        "arguments": {"x-match": "some"},
                    },
                ],
            },
            "bindings[0]",
        ),
        ({"queues": [GOOD], "users": [{"name": "u", "password": "plain", "password_hash": "abcd"}]}, "users[0]"),
        ({"queues": [GOOD], "users": [{"name": "u", "password": "plain", "argon2id_hash": "abcd"}]}, "users[0]"),
        ({"queues": [GOOD], "users": [{"name": "u", "argon2id_hash": "abcd"}]}, "users[0]"),
        (
            {"queues": [GOOD], "users": [{"name": "u", "password_hash": "abcd", "hashing_algorithm": "mine"}]},
            "users[0]",
        ),
        ({"queues": [GOOD], "users": [{"name": "u", "password_hash": "??"}]}, "users[0]"),
        ({"queues": [GOOD], "users": [{"name": "u", "password_hash": "", "tags": ["x"] * 1000}]}, "users[0]"),
        (
            {
                "queues": [GOOD],
                "permissions": [{"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""}],
            },
            "permissions[0]",
        ),
        (
            {
                "queues": [GOOD],
                "topic_permissions": [
                    {"user": "guest", "vhost": "/", "exchange": "x" * 256, "write": "", "read": ""},
                ],
            },
            "topic_permissions[0]",
        ),
        ({"queues": [GOOD], "policies": [{"name": "p"}]}, "policies[0].vhost"),
        ({"queues": [GOOD], "policies": [{**POLICY, "vhost": "no such"}]}, "policies[0].vhost"),
        ({"queues": [GOOD], "policies": [{**POLICY, "pattern": "("}]}, "policies[0]"),
        ({"queues": [GOOD], "policies": [{**POLICY, "definition": {"max-length": -1}}]}, "policies[0]"),
        ({"queues": [GOOD], "policies": [{**POLICY, "definition": {"no-such": -1}}]}, "policies[0]"),
        ({"queues": [GOOD], "policies": [{**POLICY, "name": "n" * 256}]}, "policies[0]"),
        ({"queues": [GOOD], "policies": [POLICY, POLICY]}, "policies[1]"),
        ({"queues": [GOOD], "parameters": [{**PARAMETER, "component": "shovel"}]}, "parameters[0]"),
        ({"queues": [GOOD], "parameters": [{**PARAMETER, "component": "policy"}]}, "parameters[0]"),
        ({"queues": [GOOD], "parameters": [{**PARAMETER, "value": {"pattern": ""}}]}, "parameters[0]"),
        ({"queues": [GOOD], "parameters": [PARAMETER, PARAMETER]}, "parameters[1]"),
        ({"queues": [GOOD], "global_parameters": [{"name": "other"}]}, "global_parameters[0].value"),
        ({"queues": [GOOD], "global_parameters": [{"name": "cluster_name", "value": 1}]}, "global_parameters[0]"),
    ],
)  # fmt: skip
def test_one_error_refuses_the_whole_document(api, document, path):
    answer = api("POST", "/api/definitions", document)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert answer.json["reason"].startswith(f"{path}:"), answer.json
    assert api("GET", "/api/queues/%2F/new").status == 404
    assert api.get("/api/policies/%2F") == api.get("/api/operator-policies/%2F") == []


@pytest.mark.slow
def test_policies_and_parameters_are_imported_exported_and_kept(tmp_path, api):
    document = {
        "policies": [POLICY, {**POLICY, "name": "q", "pattern": "^(?!amq\\.).*", "priority": 3, "apply-to": "all"}],
        "parameters": [PARAMETER],
        "global_parameters": [
            {"name": "cluster_name", "value": "shop"},
            {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"},
        ],
        "queues": [{**GOOD, "type": "quorum"}],
        "exchanges": [{"name": "new", "vhost": "/", "type": "direct"}],
    }
    with BrokerProcess(tmp_path / "three") as broker:
        api = type(api)(broker)
        api.send_ok("PUT", "/api/queues/%2F/old")
        api.send_ok("PUT", "/api/policies/%2F/p", {"pattern": "^old$", "definition": {"max-length": 2}})
        for _ in range(2):
            assert api("POST", "/api/definitions", document).status == 204
            # The policies are in effect when the reply arrives, for old and imported objects.
            for name in ("old", "new"):
                shown = api.get(f"/api/queues/%2F/{name}")
                assert (shown["policy"], shown["operator_policy"]) == ("q", "o"), shown
                assert shown["effective_policy_definition"] == {"expires": 60000, "max-length": 7}
            assert api.get("/api/exchanges/%2F/new")["policy"] == "q"
            assert api.get("/api/exchanges/%2F/amq.topic")["policy"] is None
        exported = api.get("/api/definitions")
        for kind in ("policies", "parameters", "global_parameters"):
            assert exported[kind] == document[kind]
        of_vhost = api.get("/api/definitions/%2F")
        assert (of_vhost["policies"], of_vhost["parameters"]) == (document["policies"], document["parameters"])
        api.send_ok("PUT", "/api/vhosts/other")
        assert api("POST", "/api/definitions/other", of_vhost).status == 204
        assert [each["name"] for each in api.get("/api/policies/other")] == ["p", "q"]
        assert api.get("/api/parameters/operator_policy/other")[0]["vhost"] == "other"
        broker.kill()
        broker.start()
        assert api.get("/api/definitions/%2F") == of_vhost
        assert api.get("/api/queues/%2F/new")["policy"] == "q"
        assert api.get("/api/cluster-name") == {"name": "shop"}


def test_failed_import_stores_no_policies(api, v):
    """The error is in a later part of the document than the policies."""
    document = {
        "policies": [{**POLICY, "vhost": "x"}],
        "bindings": [{"source": "none", "destination": "q", "destination_type": "queue"}],
    }
    assert api("POST", f"/api/definitions/{v}", document).json["reason"] == "bindings[0].source: unknown"
    assert api.get(f"/api/policies/{v}") == []


def test_half_surrogate_pair_is_refused(api):
    body = '{"vhosts": [{"name": "v-half", "description": "\\ud800"}]}'
    answer = api("POST", "/api/definitions", body, raw=True)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert "UTF-8" in answer.json["reason"]
    assert api("GET", "/api/vhosts/v-half").status == 404


async def test_rabbitmq_export_has_no_unknown_keys():
    """The keys are those of exports of RabbitMQ 3.10 and 3.12."""
    document = {
        "rabbit_version": "3.12.1", "rabbitmq_version": "3.12.1", "product_name": "RabbitMQ",
        "users": [{"name": "u", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
                   "tags": ["administrator"], "limits": {}}],
        "vhosts": [{"name": "/", "description": "d", "tags": [], "metadata": {}, "limits": []}],
        "parameters": [{"vhost": "/", "component": "operator_policy", "name": "o", "value": {}}],
        "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {}, "priority": 0, "apply-to": "all"}],
        "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
    }  # fmt: skip
    report = ImportReport()
    assert [user["name"] for user in (await read_items(document, report))["users"]] == ["u"]
    assert report.unknown == []
    with pytest.raises(BadRequest, match=r"parameters\[0\]"):
        await read_items({"parameters": [{"name": "p"}]}, ImportReport())


async def test_default_cluster_name_is_not_exported(tmp_path: Path) -> None:
    """Otherwise a broker that imports it would get the host name of the exporting machine."""
    async with embedded(tmp_path) as server:
        assert CLUSTER_NAME not in [each["name"] for each in export_definitions(server.broker)["global_parameters"]]
        await wait_done(partial(server.broker.global_parameters.declare, CLUSTER_NAME, "shop"))
        assert {"name": CLUSTER_NAME, "value": "shop"} in export_definitions(server.broker)["global_parameters"]
