"""What has no work to do on one node, checks of later RabbitMQs, the node and its memory, connections of a user."""

from __future__ import annotations

from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker


def test_what_has_nothing_to_do_is_done(api, v):
    api.done("PUT", f"/api/queues/{v}/q", {})
    node = quote(api.get("/api/overview")["node"])
    for method, path, body in (
        ("POST", "/api/rebalance/queues", {}),
        ("POST", f"/api/queues/{v}/q/actions", {"action": "sync"}),
        ("POST", f"/api/vhosts/{v}/start/{node}", None),
        ("DELETE", f"/api/reset/{node}", None),
        ("DELETE", "/api/reset", None),
    ):
        assert api(method, path, body).status == 204, path


def test_what_makes_no_sense_is_refused(api, v):
    api.done("PUT", f"/api/queues/{v}/q", {})
    for method, path, body, status in (
        ("POST", f"/api/queues/{v}/q/actions", {"action": "dance"}, 400),
        ("POST", f"/api/queues/{v}/none/actions", {"action": "sync"}, 404),
        ("POST", f"/api/vhosts/{v}/start/other@host", None, 400),
        ("POST", "/api/vhosts/nowhere/start/other@host", None, 400),
        ("DELETE", "/api/reset/other@host", None, 404),
        ("GET", "/api/nodes/other@host/memory", None, 404),
    ):
        assert api(method, path, body).status == status, path


def test_definitions_have_their_older_name(api):
    assert api.get("/api/all-configuration").keys() == api.get("/api/definitions").keys()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class TestLogin:
    def test_a_form_says_who_asks(self, api):
        nobody = type(api)(api.broker, "")
        for form, status in (("username=guest&password=guest", 200), ("username=guest&password=no", 401), ("x=1", 401)):
            assert nobody("POST", "/api/login", form, FORM, raw=True).status == status

    def test_who_may_not_use_the_api_may_not_log_in(self, api, user):
        nobody = user("")
        form = f"username={quote(nobody.user)}&password={quote(nobody.password)}"
        assert type(api)(api.broker, "")("POST", "/api/login", form, FORM, raw=True).status == 401


class TestOptions:
    def test_tells_what_a_path_takes_and_asks_nobody_who_he_is(self, api):
        answer = type(api)(api.broker, "")("OPTIONS", "/api/queues/%2F/q")
        assert (answer.status, answer.headers["allow"]) == (200, "DELETE, GET, HEAD, OPTIONS, PUT")
        assert "access-control-allow-origin" not in answer.headers
        assert api("OPTIONS", "/api/none").status == 404


class TestNode:
    def test_what_newer_clients_cannot_do_without(self, api):
        (node,) = api.get("/api/nodes")
        for name in ("run_queue", "proc_total", "proc_used", "fd_used", "sockets_total", "mem_used"):
            assert isinstance(node[name], int), name
        versions = {each["name"]: each["version"] for each in node["applications"]}
        assert versions["rabbit"] == api.get("/api/overview")["rabbitmq_version"]
        assert api.get(f"/api/nodes/{quote(node['name'])}").keys() == node.keys()
        assert api.get("/api/nodes?columns=name,running") == [{"name": node["name"], "running": True}]

    def test_memory_adds_up(self, api):
        node = quote(api.get("/api/overview")["node"])
        memory = api.get(f"/api/nodes/{node}/memory")["memory"]
        sizes = {name: size for name, size in memory.items() if name not in ("total", "strategy")}
        assert sum(sizes.values()) == memory["total"]["rss"] > 10_000_000
        assert memory["code"] > 0
        shares = api.get(f"/api/nodes/{node}/memory/relative")["memory"]
        assert shares.pop("total") == 100
        assert shares.keys() == sizes.keys()
        assert 100 <= sum(shares.values()) <= 100 + len(shares)
        (asked,) = api.get("/api/nodes?memory=true")
        assert asked["memory"].keys() == memory.keys()
        assert api.get(f"/api/nodes/{node}/memory/ets") == {"ets_tables_memory": {"total": 0}}

    def test_memory_has_the_bodies_that_queues_keep(self, api, v, channel):
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
def test_checks(api, check):
    assert api.get(f"/api/health/checks/{check}")["status"] == "ok"


def test_checks_that_are_asked_wrongly(api):
    for path, status in (
        ("certificate-expiration/x/months", 400),
        ("certificate-expiration/1/ages", 400),
        ("quorum-queues-without-elected-leaders/vhost/nowhere", 404),
    ):
        assert api("GET", f"/api/health/checks/{path}").status == status, path


class TestConnectionsOfAUser:
    def test_are_shown_and_closed(self, api, user, amqpd_vhost):
        one = user("management", configure=".*", write=".*", read=".*")
        url = f"amqp://{quote(one.user)}:{quote(one.password)}@127.0.0.1:{api.broker.amqp_port}/{amqpd_vhost.name}"
        connection = pika.BlockingConnection(pika.URLParameters(url))
        path = f"/api/connections/username/{quote(one.user)}"
        (shown,) = api.get(path)
        assert (shown["user"], shown["vhost"]) == (one.user, amqpd_vhost.name)
        assert one.get(path) == [shown]
        assert one.get("/api/connections/username/guest") == []
        assert one("DELETE", path, headers={"X-Reason": "enough"}).status == 204
        with pytest.raises(ConnectionClosedByBroker, match="enough"):
            connection.process_data_events(5)
        assert api("DELETE", path).status == 204
