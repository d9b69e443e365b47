"""Limits over HTTP: the measured answers of RabbitMQ 3.10.8, permissions, definitions, and a restart."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from amqpd.testing import BrokerProcess

HASH = "gQU4GkDBOhCZRfvqzFvw/6UBP6ePPbUS5ZpGvS8FyPwo5GEF"  # an arbitrary hash


def reason(answer) -> str:
    assert answer.status == 400, answer
    assert answer.json["error"] == "bad_request"
    return answer.json["reason"]


class TestVhostLimits:
    def test_vhost_limits_are_set_listed_and_cleared(self, api, amqpd_vhost, v):
        name = amqpd_vhost.name
        assert api.get(f"/api/vhost-limits/{v}") == []
        assert api("PUT", f"/api/vhost-limits/{v}/max-connections", {"value": -7}).status == 204
        assert api("PUT", f"/api/vhost-limits/{v}/max-queues", {"value": 3}).status == 204
        value = {"max-connections": -7, "max-queues": 3}
        assert api.get(f"/api/vhost-limits/{v}") == [{"vhost": name, "value": value}]
        assert {"vhost": name, "value": value} in api.get("/api/vhost-limits")
        parameter = {"value": value, "vhost": name, "component": "vhost-limits", "name": "limits"}
        assert api.get(f"/api/parameters/vhost-limits/{v}") == [parameter]
        assert parameter in api.get("/api/parameters")
        assert api.get(f"/api/definitions/{v}")["parameters"] == [parameter]
        assert api("DELETE", f"/api/vhost-limits/{v}/max-queues").status == 204
        assert api("DELETE", f"/api/vhost-limits/{v}/max-queues").status == 204
        assert api("DELETE", f"/api/vhost-limits/{v}/nosuch").status == 204
        assert api.get(f"/api/vhost-limits/{v}") == [{"vhost": name, "value": {"max-connections": -7}}]
        assert api("DELETE", f"/api/parameters/vhost-limits/{v}/limits").status == 204
        assert api("DELETE", f"/api/parameters/vhost-limits/{v}/limits").status == 404
        assert api.get(f"/api/vhost-limits/{v}") == []
        assert api("GET", f"/api/vhost-limits/{v}/max-queues").status == 405

    def test_bad_vhost_limit_is_refused(self, api, v):
        path = f"/api/vhost-limits/{v}/max-queues"
        wrong = "Validation failed\n\nmax-queues should be a number, actually was {}\n"
        assert reason(api("PUT", path, {"value": "5"})) == wrong.format('<<"5">>')
        assert reason(api("PUT", path, {"value": None})) == wrong.format("null")
        assert reason(api("PUT", path, {})) == "[{key_missing,value}]"
        unknown = 'Validation failed\n\nUnrecognised terms [{<<"nosuch">>,5}] in limits\n'
        assert reason(api("PUT", f"/api/vhost-limits/{v}/nosuch", {"value": 5})) == unknown
        assert reason(api("PUT", f"/api/parameters/vhost-limits/{v}/limits", {"value": {"nosuch": 5}})) == unknown
        assert "not other" in reason(api("PUT", f"/api/parameters/vhost-limits/{v}/other", {"value": {}}))
        assert api("PUT", "/api/vhost-limits/no-such/max-queues", {"value": 5}).status == 404
        assert api("GET", "/api/vhost-limits/no-such").status == 404

    def test_queue_limit_applies_over_http_and_to_imports(self, api, amqpd_vhost, v):
        name = amqpd_vhost.name
        api.send_ok("PUT", f"/api/vhost-limits/{v}/max-queues", {"value": 1})
        api.send_ok("PUT", f"/api/queues/{v}/a", {"durable": True})
        text = f"cannot declare queue 'b': queue limit in vhost '{name}' (1) is reached"
        assert reason(api("PUT", f"/api/queues/{v}/b", {})) == text
        queues = [{"name": each, "durable": True, "auto_delete": False, "arguments": {}} for each in "ab"]
        assert reason(api("POST", f"/api/definitions/{v}", {"queues": queues})) == f"queues[1]: {text}"
        raised = [{"component": "vhost-limits", "name": "limits", "value": {"max-queues": 2}}]
        api.send_ok("POST", f"/api/definitions/{v}", {"queues": queues, "parameters": raised})
        assert api.get(f"/api/vhost-limits/{v}")[0]["value"] == {"max-queues": 2}

    def test_limits_of_rabbitmq_4_vhost_are_imported(self, api, amqpd_vhost, v):
        name = amqpd_vhost.name
        api.send_ok("POST", "/api/definitions", {"vhosts": [{"name": name, "limits": {"max-queues": 4}}]})
        assert api.get(f"/api/vhost-limits/{v}")[0]["value"] == {"max-queues": 4}
        api.send_ok("POST", "/api/definitions", {"vhosts": [{"name": name, "limits": []}]})
        assert api.get(f"/api/vhost-limits/{v}")[0]["value"] == {"max-queues": 4}
        both = {
            "vhosts": [{"name": name, "limits": {"max-queues": 5}}],
            "parameters": [{"vhost": name, "component": "vhost-limits", "name": "limits", "value": {"max-queues": 6}}],
        }
        api.send_ok("POST", "/api/definitions", both)
        assert api.get(f"/api/vhost-limits/{v}")[0]["value"] == {"max-queues": 6}
        wrong = {"vhosts": [{"name": name, "limits": {"max-queues": "x"}}]}
        assert reason(api("POST", "/api/definitions", wrong)).startswith("vhosts[0]: max-queues should be a number")

    def test_limits_need_administrator(self, user, v):
        caller = user("policymaker", configure=".*")
        for method, path in (
            ("PUT", f"/api/vhost-limits/{v}/max-queues"),
            ("DELETE", f"/api/vhost-limits/{v}/max-queues"),
            ("PUT", f"/api/parameters/vhost-limits/{v}/limits"),
            ("PUT", f"/api/user-limits/{caller.user}/max-channels"),
        ):
            assert caller(method, path, {"value": {}} if method == "PUT" else None).status == 401
        assert caller.get(f"/api/vhost-limits/{v}") == []


class TestUserLimits:
    def test_user_limits_are_set_listed_and_cleared(self, api, user):
        name = user("management").user
        path = f"/api/user-limits/{name}"
        assert api.get(path) == []
        assert api("PUT", f"{path}/max-connections", {"value": 5}).status == 204
        assert api("PUT", f"{path}/max-channels", {"value": -1}).status == 204
        shown = {"user": name, "value": {"max-channels": -1, "max-connections": 5}}
        assert api.get(path) == [shown]
        assert shown in api.get("/api/user-limits")
        assert api.get(f"/api/users/{name}")["limits"] == shown["value"]
        assert next(each for each in api.get("/api/users") if each["name"] == name)["limits"] == shown["value"]
        assert api("DELETE", f"{path}/max-channels").status == api("DELETE", f"{path}/nosuch").status == 204
        assert api.get(path)[0]["value"] == {"max-connections": 5}
        assert api("DELETE", f"{path}/max-connections").status == 204
        assert api.get(path) == []

    def test_bad_user_limit_is_refused(self, api, user):
        path = f"/api/user-limits/{user('').user}"
        wrong = 'max-channels should be a number, actually was <<"x">>'
        assert reason(api("PUT", f"{path}/max-channels", {"value": "x"})) == wrong
        assert reason(api("PUT", f"{path}/nosuch", {"value": 5})) == (
            'Unrecognised terms [{<<"nosuch">>,5}] in user-limits'
        )
        assert reason(api("PUT", f"{path}/max-channels", {})) == "[{key_missing,value}]"
        for method in ("GET", "PUT", "DELETE"):
            suffix = "" if method == "GET" else "/max-channels"
            status = 400 if method == "PUT" else 404
            assert api(method, f"/api/user-limits/no-such{suffix}", {"value": 1}).status == status

    def test_user_sees_only_own_limits(self, api, user):
        caller, other = user("management"), user("management")
        for each in (caller, other):
            api.send_ok("PUT", f"/api/user-limits/{each.user}/max-channels", {"value": 9})
        own = [{"user": caller.user, "value": {"max-channels": 9}}]
        assert caller.get("/api/user-limits") == caller.get(f"/api/user-limits/{caller.user}") == own
        assert caller("GET", f"/api/user-limits/{other.user}").status == 401

    def test_limits_are_deleted_with_the_user(self, api, user):
        name = user("").user
        api.send_ok("PUT", f"/api/user-limits/{name}/max-channels", {"value": 0})
        api.send_ok("PUT", f"/api/users/{name}", {"password": "other", "tags": "management"})
        assert api.get(f"/api/users/{name}")["limits"] == {"max-channels": 0}
        api.send_ok("DELETE", f"/api/users/{name}")
        api.send_ok("PUT", f"/api/users/{name}", {"password": "other", "tags": ""})
        assert api.get(f"/api/users/{name}")["limits"] == {}

    def test_limits_of_users_are_exported_and_imported(self, api, user):
        name = user("").user
        item = {"name": name, "password_hash": HASH, "tags": [], "limits": {"max-channels": 7}}
        api.send_ok("POST", "/api/definitions", {"users": [item]})
        exported = next(each for each in api.get("/api/definitions")["users"] if each["name"] == name)
        assert exported["limits"] == {"max-channels": 7}
        del item["limits"]
        api.send_ok("POST", "/api/definitions", {"users": [item]})
        assert api.get(f"/api/users/{name}")["limits"] == {"max-channels": 7}, "an import without limits keeps them"
        assert reason(api("POST", "/api/definitions", {"users": [{**item, "limits": {"x": 1}}]})) == (
            'users[0]: Unrecognised terms [{<<"x">>,1}] in user-limits'
        )
        api.send_ok("POST", "/api/definitions", {"users": [{**item, "limits": {}}]})
        assert api.get(f"/api/users/{name}")["limits"] == {}


@pytest.mark.slow
def test_limits_survive_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.api("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 1})
        broker.api("PUT", "/api/user-limits/guest/max-connections", {"value": 1})
        broker.kill()
        broker.start()
        assert broker.api("GET", "/api/vhost-limits") == [{"vhost": "/", "value": {"max-queues": 1}}]
        assert broker.api("GET", "/api/user-limits") == [{"user": "guest", "value": {"max-connections": 1}}]
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="user connection limit"):
            pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("a", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queue limit in vhost"):
            channel.queue_declare("b")
        connection.close()
        broker.kill()
        broker.start()
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queue limit in vhost"):
            connection.channel().queue_declare("b")  # queues from before the restart count
        connection.close()
