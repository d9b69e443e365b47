"""Metadata and deletion protection of vhosts, and the cluster name: over HTTP, in definitions, after a kill."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess

FIELDS = ("description", "tags", "default_queue_type", "protected_from_deletion")


def metadata_fields(api, v) -> tuple[object, ...]:
    found = api.get(f"/api/vhosts/{v}")
    fields = tuple(found[name] for name in FIELDS)
    assert fields == tuple(found["metadata"][name] for name in FIELDS)
    return fields


class TestProtection:
    def test_protected_vhost_cannot_be_deleted(self, api, amqpd_vhost, v):
        path = f"/api/vhosts/{v}/deletion/protection"
        for method in ("POST", "PUT"):
            assert metadata_fields(api, v)[3] is False
            assert api(method, path).status == api(method, path).status == 204
            assert metadata_fields(api, v)[3] is True
            refused = api("DELETE", f"/api/vhosts/{v}")
            assert (refused.status, refused.json["error"]) == (412, "precondition_failed")
            assert refused.json["reason"] == (
                f"Refusing to delete virtual host '{amqpd_vhost.name}' because it is protected from deletion"
            )
            assert api("DELETE", path).status == api("DELETE", path).status == 204
        assert api("POST", "/api/vhosts/no-such/deletion/protection").status == 404
        assert not [each for each in api.get("/api/parameters") if each["vhost"] == amqpd_vhost.name]

    def test_protection_is_a_vhost_field(self, api, v):
        api.send_ok("PUT", f"/api/vhosts/{v}", {"protected_from_deletion": True})
        api.send_ok("PUT", f"/api/vhosts/{v}", {"description": "d"})
        assert metadata_fields(api, v) == ("d", [], "classic", True)
        api.send_ok("PUT", f"/api/vhosts/{v}", {"protected_from_deletion": False})
        assert metadata_fields(api, v)[3] is False
        assert api("PUT", f"/api/vhosts/{v}", {"protected_from_deletion": 1}).status == 400

    def test_protection_needs_administrator(self, user, v):
        caller = user("policymaker", configure=".*")
        for method in ("POST", "PUT", "DELETE"):
            assert caller(method, f"/api/vhosts/{v}/deletion/protection").status == 401


def test_if_match_changes_only_existing_vhost(api, v):
    assert api("PUT", "/api/vhosts/no-such", {"description": "x"}, {"If-Match": "*"}).status == 412
    assert api("GET", "/api/vhosts/no-such").status == 404
    assert api("PUT", f"/api/vhosts/{v}", {"description": "x"}, {"If-Match": "*"}).status == 204
    assert metadata_fields(api, v)[0] == "x"


class TestDefinitions:
    def test_vhost_metadata_is_exported_and_imported(self, api, operator, v, amqpd_vhost):
        body = {"description": "shop", "tags": "a,b", "default_queue_type": "quorum", "protected_from_deletion": True}
        api.send_ok("PUT", f"/api/vhosts/{v}", body)
        before = metadata_fields(api, v)
        item = next(each for each in api.get("/api/definitions")["vhosts"] if each["name"] == amqpd_vhost.name)
        api.send_ok("DELETE", f"/api/vhosts/{v}/deletion/protection")
        api.send_ok("DELETE", f"/api/vhosts/{v}")
        operator.send_ok("POST", "/api/definitions", {"vhosts": [item]})
        assert metadata_fields(api, v) == before == ("shop", ["a", "b"], "quorum", True)
        assert not api.get(f"/api/vhosts/{v}/permissions")  # an administrator changes limits without permissions:
        api.send_ok("PUT", f"/api/vhost-limits/{v}/max-queues", {"value": 1})
        api.send_ok("DELETE", f"/api/vhost-limits/{v}/max-queues")
        api.send_ok("DELETE", f"/api/vhosts/{v}/deletion/protection")

    def test_rabbitmq_metadata_object_is_imported(self, api, v, amqpd_vhost):
        api.send_ok("DELETE", f"/api/vhosts/{v}")
        metadata = {"description": "shop", "tags": ["a"], "default_queue_type": "undefined"}
        api.send_ok("POST", "/api/definitions", {"vhosts": [{"name": amqpd_vhost.name, "metadata": metadata}]})
        assert metadata_fields(api, v) == ("shop", ["a"], "classic", False)
        for key in ("description", "tags", "default_queue_type", "protected_from_deletion"):
            wrong = 1 if key != "default_queue_type" else "x"
            answer = api("POST", "/api/definitions", {"vhosts": [{"name": "new", "metadata": {key: wrong}}]})
            assert (answer.status, answer.json["reason"].startswith("vhosts[0]: ")) == (400, True), answer

    def test_tracing_is_imported(self, api, v, amqpd_vhost):
        api.send_ok("POST", "/api/definitions", {"vhosts": [{"name": amqpd_vhost.name, "tracing": True}]})
        assert api.get(f"/api/vhosts/{v}")["tracing"] is True


@pytest.mark.slow
def test_vhost_metadata_and_cluster_name_survive_kill(tmp_path: Path) -> None:
    def announced_cluster_name() -> str:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        properties = connection._impl.server_properties
        connection.close()
        return str(properties["cluster_name"])

    with BrokerProcess(tmp_path, settings={"cluster_name": "of the setting"}) as broker:
        assert broker.ctl("add_vhost", "shop", "--description", "web shop").returncode == 0
        assert broker.ctl("enable_vhost_deletion_protection", "shop").returncode == 0
        assert broker.ctl("update_vhost_metadata", "shop", "--default-queue-type", "quorum").returncode == 0
        assert broker.ctl("set_vhost_tags", "shop", "a", "b").returncode == 0
        assert broker.ctl("update_vhost_metadata", "none", "--tags", "a").returncode == 65
        assert announced_cluster_name() == "of the setting"
        assert broker.ctl("set_cluster_name", "the shop").returncode == 0
        assert broker.ctl("set_cluster_name", "").returncode == 69
        assert announced_cluster_name() == "the shop"
        broker.kill()
        broker.start()
        assert announced_cluster_name() == "the shop"
        assert broker.api("GET", "/api/cluster-name") == {"name": "the shop"}
        columns = ("name", "description", "tags", "default_queue_type", "protected_from_deletion")
        assert "shop\tweb shop\t[a, b]\tquorum\ttrue" in broker.ctl("-q", "list_vhosts", *columns).stdout
        refused = broker.ctl("delete_vhost", "shop")
        assert (refused.returncode, "is protected from deletion" in refused.stderr) == (69, True)
        assert broker.ctl("disable_vhost_deletion_protection", "shop").returncode == 0
        assert broker.ctl("enable_vhost_deletion_protection", "none").returncode == 65
        assert broker.ctl("delete_vhost", "shop").returncode == 0
        try:
            broker.api("PUT", "/api/cluster-name", {"name": 5})
        except BrokerFailed as error:
            assert " 400 " in str(error)  # noqa: PT017 - the status is in its text
        else:
            raise AssertionError("a number is accepted as a name")
