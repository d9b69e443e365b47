"""Cluster operations on one node, health checks of later RabbitMQ versions, node memory, connections of a user."""

from __future__ import annotations

from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker


def test_cluster_operations_succeed_without_effect_on_one_node(api, v):
    api.send_ok("PUT", f"/api/queues/{v}/q", {})
    node = quote(api.get("/api/overview")["node"])
    for method, path, body in (
        ("POST", "/api/rebalance/queues", {}),
        ("POST", f"/api/queues/{v}/q/actions", {"action": "sync"}),
        ("POST", f"/api/vhosts/{v}/start/{node}", None),
        ("DELETE", f"/api/reset/{node}", None),
        ("DELETE", "/api/reset", None),
    ):
        assert api(method, path, body).status == 204, path


def test_bad_cluster_operation_is_refused(api, v):
    api.send_ok("PUT", f"/api/queues/{v}/q", {})
    for method, path, body, status in (
        ("POST", f"/api/queues/{v}/q/actions", {"action": "dance"}, 400),
        ("POST", f"/api/queues/{v}/none/actions", {"action": "sync"}, 404),
        ("POST", f"/api/vhosts/{v}/start/other@host", None, 400),
        ("POST", "/api/vhosts/nowhere/start/other@host", None, 400),
        ("DELETE", "/api/reset/other@host", None, 404),
        ("GET", "/api/nodes/other@host/memory", None, 404),
    ):
        assert api(method, path, body).status == status, path


def test_all_configuration_equals_definitions(api):
    assert api.get("/api/all-configuration").keys() == api.get("/api/definitions").keys()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class TestLogin:
    def test_login_form_checks_password(self, api):
        anonymous = type(api)(api.broker, "")
        for form, status in (("username=guest&password=guest", 200), ("username=guest&password=no", 401), ("x=1", 401)):
            assert anonymous("POST", "/api/login", form, FORM, raw=True).status == status

    @pytest.mark.parametrize("path", ["/api/login", "/api/amqpd/session"])
    def test_form_is_short_because_its_sender_is_unknown(self, api, path):
        form = "username=guest&password=" + "p" * 20_000
        answer = type(api)(api.broker, "")("POST", path, form, {**FORM, "Amqpd-Page": "1"}, raw=True)
        assert answer.status == 413
        assert answer.json["reason"] == "a body has at most 16384 bytes"

    def test_login_of_user_without_tag_is_refused(self, api, user):
        untagged = user("")
        form = f"username={quote(untagged.user)}&password={quote(untagged.password)}"
        assert type(api)(api.broker, "")("POST", "/api/login", form, FORM, raw=True).status == 401


class TestOptions:
    def test_options_lists_methods_without_login(self, api):
        answer = type(api)(api.broker, "")("OPTIONS", "/api/queues/%2F/q")
        assert (answer.status, answer.headers["allow"]) == (200, "DELETE, GET, HEAD, OPTIONS, PUT")
        assert "access-control-allow-origin" not in answer.headers
        assert api("OPTIONS", "/api/none").status == 404


class TestNode:
    def test_node_has_fields_that_newer_clients_need(self, api):
        (node,) = api.get("/api/nodes")
        for name in ("run_queue", "proc_total", "proc_used", "fd_used", "sockets_total", "mem_used"):
            assert isinstance(node[name], int), name
        versions = {each["name"]: each["version"] for each in node["applications"]}
        assert versions["rabbit"] == api.get("/api/overview")["rabbitmq_version"]
        assert api.get(f"/api/nodes/{quote(node['name'])}").keys() == node.keys()
        host = node["name"].partition("@")[2]
        assert api.get(f"/api/nodes/rabbit@{host}")["name"] == node["name"]  # the name that Nagios's checks write
        assert api("GET", "/api/nodes/rabbit@other").status == 404
        assert api.get("/api/nodes?columns=name,running") == [{"name": node["name"], "running": True}]

    def test_memory_parts_add_up_to_total(self, api):
        node = quote(api.get("/api/overview")["node"])
        memory = api.get(f"/api/nodes/{node}/memory")["memory"]
        sizes = {name: size for name, size in memory.items() if name not in ("total", "strategy")}
        assert sum(sizes.values()) == memory["total"]["rss"] > 10_000_000
        assert memory["code"] > 0
        shares = api.get(f"/api/nodes/{node}/memory/relative")["memory"]
        assert shares.pop("total") == 100
        assert shares.keys() == sizes.keys()
        assert 100 <= sum(shares.values()) <= 100 + len(shares)
        (listed,) = api.get("/api/nodes?memory=true")
        assert listed["memory"].keys() == memory.keys()
        assert api.get(f"/api/nodes/{node}/memory/ets") == {"ets_tables_memory": {"total": 0}}

    def test_memory_includes_bodies_of_queued_messages(self, api, v, channel):
        node = quote(api.get("/api/overview")["node"])
        before = api.get(f"/api/nodes/{node}/memory")["memory"]["binary"]
        channel.queue_declare("q")
        channel.basic_publish("", "q", bytes(1 << 20))
        channel.queue_declare("q", passive=True)
        assert api.get(f"/api/nodes/{node}/memory")["memory"]["binary"] >= before + (1 << 20)


@pytest.mark.parametrize(
    "check",
    [
        *("ready-to-serve-clients", "is-in-service", "below-node-connection-limit", "reached-target-cluster-size"),
        *("metadata-store/initialized", "metadata-store/initialized/with-data", "certificate-expiration/1/months"),
        *("quorum-queues-without-elected-leaders/all-vhosts", "node-is-quorum-critical"),
    ],
)
def test_health_check_is_ok(api, check):
    assert api.get(f"/api/health/checks/{check}")["status"] == "ok"


def test_bad_health_check_is_refused(api):
    for path, status in (
        ("certificate-expiration/x/months", 400),
        ("certificate-expiration/1/ages", 400),
        ("quorum-queues-without-elected-leaders/vhost/nowhere", 404),
    ):
        assert api("GET", f"/api/health/checks/{path}").status == status, path


class TestConnectionsOfUser:
    def test_connections_of_user_are_listed_and_closed(self, api, user, amqpd_vhost):
        caller = user("management", configure=".*", write=".*", read=".*")
        url = (
            f"amqp://{quote(caller.user)}:{quote(caller.password)}@127.0.0.1:{api.broker.amqp_port}/{amqpd_vhost.name}"
        )
        connection = pika.BlockingConnection(pika.URLParameters(url))
        path = f"/api/connections/username/{quote(caller.user)}"
        (shown,) = api.get(path)
        assert (shown["user"], shown["vhost"]) == (caller.user, amqpd_vhost.name)
        assert caller.get(path) == [shown]
        assert caller.get("/api/connections/username/guest") == []
        assert caller("DELETE", path, headers={"X-Reason": "enough"}).status == 204
        with pytest.raises(ConnectionClosedByBroker, match="enough"):
            connection.process_data_events(5)
        assert api("DELETE", path).status == 204
