"""Users, permissions, vhosts: changed here, obeyed by AMQP."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError


def login(api, user: str, password: str, vhost: str = "/") -> None:
    port = api.broker.amqp_port
    url = f"amqp://{quote(user, safe='')}:{password}@127.0.0.1:{port}/{quote(vhost, safe='')}"
    pika.BlockingConnection(pika.URLParameters(url)).close()


@pytest.fixture
def name(api, amqpd_vhost):
    """A user name of this test's own, gone afterwards."""
    mine = f"user/{amqpd_vhost.name}"
    yield mine
    api("DELETE", f"/api/users/{quote(mine, safe='')}")


class TestUsers:
    def test_life(self, api, amqpd_vhost, name):
        path = f"/api/users/{quote(name, safe='')}"
        assert api("PUT", path, {"password": "one", "tags": "management, other"}).status == 201
        assert api.get(path)["tags"] == ["management", "other"]
        assert name in {each["name"] for each in api.get("/api/users")}
        assert name in {each["name"] for each in api.get("/api/users/without-permissions")}
        given = {"configure": ".*", "write": ".*", "read": ".*"}
        assert api("PUT", f"/api/permissions/{amqpd_vhost.name}/{quote(name, safe='')}", given).status == 201
        assert api("PUT", f"/api/permissions/{amqpd_vhost.name}/{quote(name, safe='')}", given).status == 204
        login(api, name, "one", amqpd_vhost.name)
        assert api("PUT", path, {"password": "two", "tags": ["monitoring"]}).status == 204
        login(api, name, "two", amqpd_vhost.name)
        with pytest.raises(ProbableAuthenticationError):
            login(api, name, "one", amqpd_vhost.name)
        assert api.get(path + "/permissions") == [{"user": name, "vhost": amqpd_vhost.name, **given}]
        assert api("DELETE", path).status == 204
        assert api("GET", path).status == 404
        assert api("DELETE", path).status == 404

    def test_rabbitmqs_hash_is_taken(self, api, name):
        salt = b"\x01\x02\x03\x04"
        hashed = base64.b64encode(salt + hashlib.sha256(salt + b"imported").digest()).decode()
        path = f"/api/users/{quote(name, safe='')}"
        assert api("PUT", path, {"password_hash": hashed, "tags": "management"}).status == 201
        assert type(api)(api.broker, name, "imported").get("/api/whoami")["name"] == name

    @pytest.mark.parametrize("more", [{}, {"hashing_algorithm": None}])
    def test_a_hash_of_68_bytes_is_sha_512(self, api, name, more):
        """rabbitmqadmin sends one without its algorithm; RabbitMQ keeps it as SHA-256, and no password opens it."""
        salt = b"\x01\x02\x03\x04"
        hashed = base64.b64encode(salt + hashlib.sha512(salt + b"imported").digest()).decode()
        path = f"/api/users/{quote(name, safe='')}"
        assert api("PUT", path, {"password_hash": hashed, "tags": "management", **more}).status == 201
        assert api.get(path)["hashing_algorithm"] == "rabbit_password_hashing_sha512"
        assert type(api)(api.broker, name, "imported").get("/api/whoami")["name"] == name

    def test_an_empty_hash_opens_nothing(self, api, name):
        path = f"/api/users/{quote(name, safe='')}"
        assert api("PUT", path, {"password_hash": "", "tags": "management"}).status == 201
        assert type(api)(api.broker, name, "")("GET", "/api/whoami").status == 401

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"password": "x"},
            {"password": 3, "tags": ""},
            {"password_hash": "no base64!", "tags": ""},
            {"password": "x", "tags": 3},
            {"password": "x", "tags": ["a,b"]},
            {"password": "x", "tags": [str(n) for n in range(1000)]},
        ],
    )
    def test_bodies_that_are_refused(self, api, name, body):
        path = f"/api/users/{quote(name, safe='')}"
        assert api("PUT", path, body).status == 400
        assert api("GET", path).status == 404

    def test_add_but_not_replace(self, api, name):
        path = f"/api/users/{quote(name, safe='')}"
        headers = {"If-None-Match": "*"}
        assert api("PUT", path, {"password": "x", "tags": ""}, headers).status == 201
        assert api("PUT", path, {"password": "y", "tags": ""}, headers).status == 412

    def test_without_a_password_none_opens(self, api, name):
        path = f"/api/users/{quote(name, safe='')}"
        assert api("PUT", path, {"password": "x", "tags": "management"}).status == 201
        assert type(api)(api.broker, name, "x")("GET", "/api/whoami").status == 200
        assert api("PUT", path, {"tags": "management"}).status == 204
        assert type(api)(api.broker, name, "x")("GET", "/api/whoami").status == 401

    def test_password_and_tags_by_themselves(self, api, name):
        path = f"/api/amqpd/users/{quote(name, safe='')}"
        assert api("PUT", path + "/password", {"password": "x"}).status == 404
        api.done("PUT", f"/api/users/{quote(name, safe='')}", {"password": "x", "tags": "management"})
        assert api("PUT", path + "/password", {"password": "y"}).status == 204
        assert api("PUT", path + "/tags", {"tags": ["monitoring"]}).status == 204
        assert type(api)(api.broker, name, "y").get("/api/whoami")["tags"] == ["monitoring"]
        assert api("PUT", path + "/password", {"password_hash": ""}).status == 204
        assert type(api)(api.broker, name, "y")("GET", "/api/whoami").status == 401

    def test_bulk_delete(self, api, name):
        api.done("PUT", f"/api/users/{quote(name, safe='')}", {"password": "x", "tags": ""})
        assert api("POST", "/api/users/bulk-delete", {"users": [name, "no-such-user"]}).status == 400
        assert api("GET", f"/api/users/{quote(name, safe='')}").status == 200
        assert api("POST", "/api/users/bulk-delete", {"users": [name]}).status == 204
        assert api("GET", f"/api/users/{quote(name, safe='')}").status == 404
        assert api("POST", "/api/users/bulk-delete", {"users": "all"}).status == 400

    def test_the_virtual_hosts_that_each_may_enter(self, api, v, name):
        at = quote(name, safe="")
        api.done("PUT", f"/api/users/{at}", {"password": "p", "tags": ""})
        asked = "/api/users?vhosts=true&columns=name,vhosts"
        assert {"name": name, "vhosts": []} in api.get(asked)
        api.done("PUT", f"/api/permissions/{v}/{at}", {"configure": "", "write": "", "read": ""})
        assert {"name": name, "vhosts": [v]} in api.get(asked)
        assert all("vhosts" not in each for each in api.get("/api/users"))

    def test_authenticate(self, api):
        path = "/api/amqpd/authenticate_user"
        right = api.done("POST", path, {"username": "guest", "password": "guest"}).json
        assert right == {"authenticated": True, "user": "guest"}
        wrong = api.done("POST", path, {"username": "guest", "password": "no"}).json
        assert (wrong["authenticated"], wrong["user"]) == (False, "guest")

    def test_no_password_is_ever_shown(self, api, name):
        secret = "canary-7f3a9"
        api.done("PUT", f"/api/users/{quote(name, safe='')}", {"password": secret, "tags": "management"})
        assert type(api)(api.broker, name, secret)("GET", "/api/whoami").status == 200
        for path in ("/api/users", "/api/definitions", "/api/overview", "/api/nodes", "/api/amqpd/status", "/metrics"):
            assert secret not in api("GET", path).body.decode()
        assert secret not in api.broker.stderr

    def test_a_deleted_users_connection_is_closed(self, api, amqpd_vhost, name):
        api.done("PUT", f"/api/users/{quote(name, safe='')}", {"password": "x", "tags": ""})
        given = {"configure": ".*", "write": ".*", "read": ".*"}
        api.done("PUT", f"/api/permissions/{amqpd_vhost.name}/{quote(name, safe='')}", given)
        url = f"amqp://{quote(name, safe='')}:x@127.0.0.1:{api.broker.amqp_port}/{amqpd_vhost.name}"
        connection = pika.BlockingConnection(pika.URLParameters(url))
        assert api("DELETE", f"/api/users/{quote(name, safe='')}").status == 204
        with pytest.raises(ConnectionClosedByBroker) as caught:
            connection.process_data_events(5)
        assert caught.value.reply_code == 320


class TestPermissions:
    @pytest.mark.parametrize("pattern", ["(", "(?=x)", "\\1", 7, None])
    def test_patterns_that_are_refused(self, api, v, pattern):
        answer = api("PUT", f"/api/permissions/{v}/guest", {"configure": pattern, "write": "", "read": ""})
        assert answer.status == 400
        assert api.get(f"/api/permissions/{v}/guest")["configure"] == ".*"

    def test_of_nobody_and_nowhere(self, api, v):
        given = {"configure": "", "write": "", "read": ""}
        assert api("PUT", f"/api/permissions/{v}/nobody", given).json["reason"] == "user 'nobody' does not exist"
        assert api("PUT", "/api/permissions/nowhere/guest", given).json["reason"] == "vhost 'nowhere' does not exist"
        assert api("DELETE", f"/api/permissions/{v}/nobody").status == 404

    def test_clear(self, api, v, amqpd_vhost):
        assert api("DELETE", f"/api/permissions/{v}/guest").status == 204
        assert api("GET", f"/api/permissions/{v}/guest").status == 404
        with pytest.raises(ProbableAccessDeniedError):
            login(api, "guest", "guest", amqpd_vhost.name)
        assert api.get(f"/api/vhosts/{v}/permissions") == []

    def test_those_of_a_user_are_searched_by_where_they_hold(self, api, v, amqpd_vhost):
        of_user, of_vhost = "/api/users/guest/permissions?page=1&name=", f"/api/vhosts/{v}/permissions?page=1&name="
        assert [each["vhost"] for each in api.get(of_user + v)["items"]] == [amqpd_vhost.name]
        assert api.get(of_user + "guest")["filtered_count"] == 0
        assert [each["user"] for each in api.get(of_vhost + "GUES")["items"]] == ["guest"]
        rules = f"/api/topic-permissions/{v}/guest"
        api.done("PUT", rules, {"exchange": "amq.topic", "write": "a", "read": "b"})
        of_user = of_user.replace("permissions", "topic-permissions")
        assert api.get(of_user + "amq.top")["items"] == api.get(rules)
        assert api.get(of_user + v)["items"] == api.get(rules)
        assert api.get(of_user + "guest")["filtered_count"] == 0
        api.done("DELETE", rules)

    def test_topic_permissions(self, api, v, amqpd_vhost):
        path = f"/api/topic-permissions/{v}/guest"
        assert api("GET", path).status == 404
        body = {"exchange": "amq.topic", "write": "^a", "read": "^{username}"}
        assert api("PUT", path, body).status == 201
        assert api("PUT", path, body).status == 204
        assert api("PUT", path, {**body, "write": "("}).status == 400
        assert api("PUT", path, {**body, "exchange": "x" * 256}).status == 400
        assert api.get(path) == [{"user": "guest", "vhost": amqpd_vhost.name, **body}]
        assert api.get(f"/api/vhosts/{v}/topic-permissions") == api.get(path)
        assert api("DELETE", f"{path}/other").status == 404
        assert api("DELETE", f"{path}/amq.topic").status == 204
        assert api("DELETE", path).status == 404


class TestVhosts:
    def test_life(self, api, amqpd_vhost):
        path = f"/api/vhosts/{quote(amqpd_vhost.name + '/ö', safe='')}"
        body = {"description": "shop", "tags": "a,b", "default_queue_type": "quorum"}
        try:
            assert api("PUT", path, body).status == 201
            found = api.get(path)
            assert (found["description"], found["tags"], found["default_queue_type"]) == ("shop", ["a", "b"], "quorum")
            assert api("PUT", path, {"description": "store"}).status == 204
            found = api.get(path)
            assert (found["description"], found["tags"]) == ("store", ["a", "b"])
            assert api("PUT", path, {"default_queue_type": "no-such"}).status == 400
        finally:
            assert api("DELETE", path).status == 204
        assert api("GET", path).status == 404
        assert api("DELETE", path).status == 404

    def test_who_makes_one_may_use_it(self, api, amqpd_vhost):
        """rabbit: over HTTP, and once: a later PUT of the same vhost gives nothing back."""
        name = f"{amqpd_vhost.name}-made"
        try:
            assert api("PUT", f"/api/vhosts/{name}", {}).status == 201
            everything = {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
            assert api.get(f"/api/vhosts/{name}/permissions") == [everything]
            assert api("PUT", f"/api/queues/{name}/q", {}).status == 201
            assert api("DELETE", f"/api/permissions/{name}/guest").status == 204
            assert api("PUT", f"/api/vhosts/{name}", {}).status == 204
            assert api.get(f"/api/vhosts/{name}/permissions") == []
        finally:
            assert api("DELETE", f"/api/vhosts/{name}").status == 204

    def test_the_default_queue_type_is_used(self, api, v):
        api.done("PUT", f"/api/vhosts/{v}", {"default_queue_type": "quorum"})
        given = {"configure": ".*", "write": ".*", "read": ".*"}
        api.done("PUT", f"/api/permissions/{v}/guest", given)
        api.done("PUT", f"/api/queues/{v}/q", {"durable": True})
        assert api.get(f"/api/queues/{v}/q")["type"] == "quorum"
        assert api("PUT", f"/api/queues/{v}/q", {"durable": True}).status == 204
        body = {"durable": True, "arguments": {"x-queue-type": "classic"}}
        assert api("PUT", f"/api/queues/{v}/q", body).status == 400
        assert api("PUT", f"/api/queues/{v}/c", body).status == 201
        api.done("PUT", f"/api/queues/{v}/brief", {"durable": False})
        assert api.get(f"/api/queues/{v}/brief")["type"] == "classic"

    def test_the_default_queue_type_holds_for_amqp_too(self, api, v, channel):
        api.done("PUT", f"/api/vhosts/{v}", {"default_queue_type": "quorum"})
        channel.queue_declare("q", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_declare("", exclusive=True)
        assert {queue["type"] for queue in api.get(f"/api/queues/{v}")} == {"quorum", "classic"}
        assert api.get(f"/api/queues/{v}/q")["type"] == "quorum"

    @pytest.mark.parametrize("name", ["%00", "a" * 256, ""])
    def test_names_that_cannot_be(self, api, name):
        assert api("PUT", f"/api/vhosts/{name}", {}).status in (400, 405)

    def test_deleting_one_closes_its_connections(self, api, v, channel):
        assert api("DELETE", f"/api/vhosts/{v}").status == 204
        try:
            with pytest.raises(ConnectionClosedByBroker) as caught:
                channel.connection.process_data_events(5)
            assert (caught.value.reply_code, "is down" in caught.value.reply_text) == (320, True)
        finally:
            api.done("PUT", f"/api/vhosts/{v}", {})  # the fixture takes it away

    def test_counts(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        channel.basic_publish("", "q", b"x")
        channel.basic_get("q")
        found = api.get(f"/api/vhosts/{v}")
        counts = (found["messages"], found["messages_ready"], found["messages_unacknowledged"])
        assert counts == (2, 1, 1)

    @pytest.mark.slow
    def test_they_survive_a_restart(self, tmp_path, amqpd_broker, api):
        with type(amqpd_broker)(tmp_path / "data") as broker:
            fresh = type(api)(broker)
            fresh.done("PUT", "/api/vhosts/shop", {"description": "d", "tags": ["t"], "default_queue_type": "quorum"})
            broker.kill()
            broker.start()
            found = fresh.get("/api/vhosts/shop")
            assert (found["description"], found["tags"], found["default_queue_type"]) == ("d", ["t"], "quorum")
