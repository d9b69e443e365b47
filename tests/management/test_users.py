"""Users, permissions and vhosts: changes over HTTP and their effect over AMQP."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)


def login(api, user: str, password: str, vhost: str = "/") -> None:
    port = api.broker.amqp_port
    url = f"amqp://{quote(user, safe='')}:{password}@127.0.0.1:{port}/{quote(vhost, safe='')}"
    pika.BlockingConnection(pika.URLParameters(url)).close()


@pytest.fixture
def user_name(api, amqpd_vhost):
    """A user name for this test. The user is deleted afterwards."""
    generated_name = f"user/{amqpd_vhost.name}"
    yield generated_name
    api("DELETE", f"/api/users/{quote(generated_name, safe='')}")


class TestUsers:
    def test_user_is_created_changed_and_deleted(self, api, amqpd_vhost, user_name):
        path = f"/api/users/{quote(user_name, safe='')}"
        assert api("PUT", path, {"password": "one", "tags": "management, other"}).status == 201
        assert api.get(path)["tags"] == ["management", "other"]
        assert user_name in {each["name"] for each in api.get("/api/users")}
        assert user_name in {each["name"] for each in api.get("/api/users/without-permissions")}
        permissions = {"configure": ".*", "write": ".*", "read": ".*"}
        assert api("PUT", f"/api/permissions/{amqpd_vhost.name}/{quote(user_name, safe='')}", permissions).status == 201
        assert api("PUT", f"/api/permissions/{amqpd_vhost.name}/{quote(user_name, safe='')}", permissions).status == 204
        login(api, user_name, "one", amqpd_vhost.name)
        assert api("PUT", path, {"password": "two", "tags": ["monitoring"]}).status == 204
        login(api, user_name, "two", amqpd_vhost.name)
        with pytest.raises(ProbableAuthenticationError):
            login(api, user_name, "one", amqpd_vhost.name)
        assert api.get(path + "/permissions") == [{"user": user_name, "vhost": amqpd_vhost.name, **permissions}]
        assert api("DELETE", path).status == 204
        assert api("GET", path).status == 404
        assert api("DELETE", path).status == 404

    def test_rabbitmq_hash_is_accepted(self, api, user_name):
        salt = b"\x01\x02\x03\x04"
        hashed = base64.b64encode(salt + hashlib.sha256(salt + b"imported").digest()).decode()
        path = f"/api/users/{quote(user_name, safe='')}"
        assert api("PUT", path, {"password_hash": hashed, "tags": "management"}).status == 201
        assert type(api)(api.broker, user_name, "imported").get("/api/whoami")["name"] == user_name

    @pytest.mark.parametrize("more", [{}, {"hashing_algorithm": None}])
    def test_hash_of_68_bytes_is_sha512(self, api, user_name, more):
        """rabbitmqadmin sends the hash without its algorithm. RabbitMQ stores it as SHA-256, so no password matches."""
        salt = b"\x01\x02\x03\x04"
        hashed = base64.b64encode(salt + hashlib.sha512(salt + b"imported").digest()).decode()
        path = f"/api/users/{quote(user_name, safe='')}"
        assert api("PUT", path, {"password_hash": hashed, "tags": "management", **more}).status == 201
        assert api.get(path)["hashing_algorithm"] == "rabbit_password_hashing_sha512"
        assert type(api)(api.broker, user_name, "imported").get("/api/whoami")["name"] == user_name

    def test_empty_hash_matches_no_password(self, api, user_name):
        path = f"/api/users/{quote(user_name, safe='')}"
        assert api("PUT", path, {"password_hash": "", "tags": "management"}).status == 201
        assert type(api)(api.broker, user_name, "")("GET", "/api/whoami").status == 401

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"password": "x"},
            {"password": 3, "tags": ""},
            {"password": "x", "password_hash": "", "tags": ""},
            {"password": "x", "tags": "", "limits": {"nosuch": 1}},
            {"password_hash": "no base64!", "tags": ""},
            {"password": "x", "tags": 3},
            {"password": "x", "tags": ["a,b"]},
            {"password": "x", "tags": [str(n) for n in range(1000)]},
        ],
    )
    def test_bad_user_body_is_refused(self, api, user_name, body):
        path = f"/api/users/{quote(user_name, safe='')}"
        assert api("PUT", path, body).status == 400
        assert api("GET", path).status == 404

    def test_if_none_match_refuses_to_replace_user(self, api, user_name):
        path = f"/api/users/{quote(user_name, safe='')}"
        headers = {"If-None-Match": "*"}
        assert api("PUT", path, {"password": "x", "tags": ""}, headers).status == 201
        assert api("PUT", path, {"password": "y", "tags": ""}, headers).status == 412

    def test_put_without_password_removes_the_password(self, api, user_name):
        path = f"/api/users/{quote(user_name, safe='')}"
        assert api("PUT", path, {"password": "x", "tags": "management"}).status == 201
        assert type(api)(api.broker, user_name, "x")("GET", "/api/whoami").status == 200
        assert api("PUT", path, {"tags": "management"}).status == 204
        assert type(api)(api.broker, user_name, "x")("GET", "/api/whoami").status == 401

    def test_limits_of_the_body_are_set_and_others_kept(self, api, user_name):
        path = f"/api/users/{quote(user_name, safe='')}"
        for limits in ({"max-connections": 1}, {"max-channels": 2}, {}):
            api.send_ok("PUT", path, {"password": "x", "tags": "", "limits": limits})
        assert api.get(path)["limits"] == {"max-channels": 2, "max-connections": 1}

    def test_password_and_tags_change_separately(self, api, user_name):
        path = f"/api/amqpd/users/{quote(user_name, safe='')}"
        assert api("PUT", path + "/password", {"password": "x"}).status == 404
        api.send_ok("PUT", f"/api/users/{quote(user_name, safe='')}", {"password": "x", "tags": "management"})
        assert api("PUT", path + "/password", {"password": "y"}).status == 204
        assert api("PUT", path + "/tags", {"tags": ["monitoring"]}).status == 204
        assert type(api)(api.broker, user_name, "y").get("/api/whoami")["tags"] == ["monitoring"]
        assert api("PUT", path + "/password", {"password_hash": ""}).status == 204
        assert type(api)(api.broker, user_name, "y")("GET", "/api/whoami").status == 401

    def test_bulk_delete_of_missing_user_deletes_none(self, api, user_name):
        api.send_ok("PUT", f"/api/users/{quote(user_name, safe='')}", {"password": "x", "tags": ""})
        assert api("POST", "/api/users/bulk-delete", {"users": [user_name, "no-such-user"]}).status == 400
        assert api("GET", f"/api/users/{quote(user_name, safe='')}").status == 200
        assert api("POST", "/api/users/bulk-delete", {"users": [user_name]}).status == 204
        assert api("GET", f"/api/users/{quote(user_name, safe='')}").status == 404
        assert api("POST", "/api/users/bulk-delete", {"users": "all"}).status == 400

    def test_user_list_shows_accessible_vhosts(self, api, v, user_name):
        quoted_name = quote(user_name, safe="")
        api.send_ok("PUT", f"/api/users/{quoted_name}", {"password": "p", "tags": ""})
        path = "/api/users?vhosts=true&columns=name,vhosts"
        assert {"name": user_name, "vhosts": []} in api.get(path)
        api.send_ok("PUT", f"/api/permissions/{v}/{quoted_name}", {"configure": "", "write": "", "read": ""})
        assert {"name": user_name, "vhosts": [v]} in api.get(path)
        assert all("vhosts" not in each for each in api.get("/api/users"))

    def test_authenticate_user_reports_result(self, api):
        path = "/api/amqpd/authenticate_user"
        accepted = api.send_ok("POST", path, {"username": "guest", "password": "guest"}).json
        assert accepted == {"authenticated": True, "user": "guest"}
        rejected = api.send_ok("POST", path, {"username": "guest", "password": "no"}).json
        assert (rejected["authenticated"], rejected["user"]) == (False, "guest")

    def test_password_is_in_no_answer_and_no_log(self, api, user_name):
        secret = "canary-7f3a9"
        api.send_ok("PUT", f"/api/users/{quote(user_name, safe='')}", {"password": secret, "tags": "management"})
        assert type(api)(api.broker, user_name, secret)("GET", "/api/whoami").status == 200
        for path in ("/api/users", "/api/definitions", "/api/overview", "/api/nodes", "/api/amqpd/status", "/metrics"):
            assert secret not in api("GET", path).body.decode()
        assert secret not in api.broker.stderr

    def test_connection_of_deleted_user_is_closed(self, api, amqpd_vhost, user_name):
        api.send_ok("PUT", f"/api/users/{quote(user_name, safe='')}", {"password": "x", "tags": ""})
        permissions = {"configure": ".*", "write": ".*", "read": ".*"}
        api.send_ok("PUT", f"/api/permissions/{amqpd_vhost.name}/{quote(user_name, safe='')}", permissions)
        url = f"amqp://{quote(user_name, safe='')}:x@127.0.0.1:{api.broker.amqp_port}/{amqpd_vhost.name}"
        connection = pika.BlockingConnection(pika.URLParameters(url))
        assert api("DELETE", f"/api/users/{quote(user_name, safe='')}").status == 204
        with pytest.raises(ConnectionClosedByBroker) as caught:
            connection.process_data_events(5)
        assert caught.value.reply_code == 320


class TestPermissions:
    @pytest.mark.parametrize("pattern", ["(", "(?=x)", "\\1", 7, None])
    def test_bad_pattern_is_refused(self, api, v, pattern):
        answer = api("PUT", f"/api/permissions/{v}/guest", {"configure": pattern, "write": "", "read": ""})
        assert answer.status == 400
        assert api.get(f"/api/permissions/{v}/guest")["configure"] == ".*"

    def test_permission_of_missing_user_or_vhost_is_refused(self, api, v):
        permissions = {"configure": "", "write": "", "read": ""}
        assert api("PUT", f"/api/permissions/{v}/nobody", permissions).json["reason"] == "user 'nobody' does not exist"
        assert (
            api("PUT", "/api/permissions/nowhere/guest", permissions).json["reason"] == "vhost 'nowhere' does not exist"
        )
        assert api("DELETE", f"/api/permissions/{v}/nobody").status == 404

    def test_cleared_permission_refuses_vhost_access(self, api, v, amqpd_vhost):
        assert api("DELETE", f"/api/permissions/{v}/guest").status == 204
        assert api("GET", f"/api/permissions/{v}/guest").status == 404
        with pytest.raises(ProbableAccessDeniedError):
            login(api, "guest", "guest", amqpd_vhost.name)
        assert api.get(f"/api/vhosts/{v}/permissions") == []

    def test_permissions_are_filtered_by_vhost_user_or_exchange(self, api, v, amqpd_vhost):
        of_user, of_vhost = "/api/users/guest/permissions?page=1&name=", f"/api/vhosts/{v}/permissions?page=1&name="
        assert [each["vhost"] for each in api.get(of_user + v)["items"]] == [amqpd_vhost.name]
        assert api.get(of_user + "guest")["filtered_count"] == 0
        assert [each["user"] for each in api.get(of_vhost + "GUES")["items"]] == ["guest"]
        topic_path = f"/api/topic-permissions/{v}/guest"
        api.send_ok("PUT", topic_path, {"exchange": "amq.topic", "write": "a", "read": "b"})
        of_user = of_user.replace("permissions", "topic-permissions")
        assert api.get(of_user + "amq.top")["items"] == api.get(topic_path)
        assert api.get(of_user + v)["items"] == api.get(topic_path)
        assert api.get(of_user + "guest")["filtered_count"] == 0
        api.send_ok("DELETE", topic_path)

    def test_topic_permission_is_created_and_deleted(self, api, v, amqpd_vhost):
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
    def test_vhost_is_created_changed_and_deleted(self, api, amqpd_vhost):
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

    def test_creator_of_vhost_gets_all_permissions(self, api, amqpd_vhost):
        """RabbitMQ: only over HTTP, and only when the vhost is created. A later PUT restores nothing."""
        name = f"{amqpd_vhost.name}-made"
        try:
            assert api("PUT", f"/api/vhosts/{name}", {}).status == 201
            all_permissions = {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
            assert api.get(f"/api/vhosts/{name}/permissions") == [all_permissions]
            assert api("PUT", f"/api/queues/{name}/q", {}).status == 201
            assert api("DELETE", f"/api/permissions/{name}/guest").status == 204
            assert api("PUT", f"/api/vhosts/{name}", {}).status == 204
            assert api.get(f"/api/vhosts/{name}/permissions") == []
        finally:
            assert api("DELETE", f"/api/vhosts/{name}").status == 204

    def test_default_queue_type_applies_over_http(self, api, v):
        api.send_ok("PUT", f"/api/vhosts/{v}", {"default_queue_type": "quorum"})
        permissions = {"configure": ".*", "write": ".*", "read": ".*"}
        api.send_ok("PUT", f"/api/permissions/{v}/guest", permissions)
        api.send_ok("PUT", f"/api/queues/{v}/q", {"durable": True})
        assert api.get(f"/api/queues/{v}/q")["type"] == "quorum"
        assert api("PUT", f"/api/queues/{v}/q", {"durable": True}).status == 204
        body = {"durable": True, "arguments": {"x-queue-type": "classic"}}
        assert api("PUT", f"/api/queues/{v}/q", body).status == 400
        assert api("PUT", f"/api/queues/{v}/c", body).status == 201
        api.send_ok("PUT", f"/api/queues/{v}/brief", {"durable": False})
        assert api.get(f"/api/queues/{v}/brief")["type"] == "classic"

    def test_default_queue_type_applies_over_amqp(self, api, v, channel):
        api.send_ok("PUT", f"/api/vhosts/{v}", {"default_queue_type": "quorum"})
        channel.queue_declare("q", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_declare("", exclusive=True)
        assert {queue["type"] for queue in api.get(f"/api/queues/{v}")} == {"quorum", "classic"}
        assert api.get(f"/api/queues/{v}/q")["type"] == "quorum"
        with pytest.raises(ChannelClosedByBroker, match="server-named queue for type rabbit_quorum_queue"):
            channel.queue_declare("", durable=True)

    @pytest.mark.parametrize("name", ["%00", "a" * 256, ""])
    def test_bad_vhost_name_is_refused(self, api, name):
        assert api("PUT", f"/api/vhosts/{name}", {}).status in (400, 405)

    def test_deleted_vhost_closes_its_connections(self, api, v, channel):
        assert api("DELETE", f"/api/vhosts/{v}").status == 204
        try:
            with pytest.raises(ConnectionClosedByBroker) as caught:
                channel.connection.process_data_events(5)
            assert (caught.value.reply_code, "is deleted" in caught.value.reply_text) == (320, True)
        finally:
            api.send_ok("PUT", f"/api/vhosts/{v}", {})  # the fixture deletes the vhost

    def test_vhost_shows_message_counts(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        channel.basic_publish("", "q", b"x")
        channel.basic_get("q")
        found = api.get(f"/api/vhosts/{v}")
        counts = (found["messages"], found["messages_ready"], found["messages_unacknowledged"])
        assert counts == (2, 1, 1)

    @pytest.mark.slow
    def test_vhost_metadata_survives_kill(self, tmp_path, amqpd_broker, api):
        with type(amqpd_broker)(tmp_path / "data") as broker:
            fresh = type(api)(broker)
            fresh.send_ok(
                "PUT", "/api/vhosts/shop", {"description": "d", "tags": ["t"], "default_queue_type": "quorum"}
            )
            broker.kill()
            broker.start()
            found = fresh.get("/api/vhosts/shop")
            assert (found["description"], found["tags"], found["default_queue_type"]) == ("d", ["t"], "quorum")
