"""Queues, exchanges, bindings and messages through the API, checked with pika as well."""

from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote, urlencode, urljoin

import pika
import pytest

from amqpd.management.bindings import properties_key
from amqpd.testing import BrokerProcess

GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}


class TestQueues:
    def test_queue_declared_over_http_is_usable_over_amqp(self, api, v, channel):
        path = f"/api/queues/{v}/q"
        body = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}}
        assert api("PUT", path, body).status == 201
        assert api("PUT", path, body).status == 204
        assert channel.queue_declare("q", passive=True).method.message_count == 0
        channel.basic_publish("", "q", b"1234")
        found = api.get(path)
        assert found["arguments"] == {"x-max-length": 5}
        assert (found["durable"], found["type"], found["exclusive"]) == (True, "classic", False)

    def test_inequivalent_redeclare_is_refused(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/q", {"durable": True})
        answer = api("PUT", f"/api/queues/{v}/q", {"durable": False})
        assert answer.status == 400
        assert "inequivalent arg 'durable'" in answer.json["reason"]

    def test_reserved_name_is_refused(self, api, v):
        assert api("PUT", f"/api/queues/{v}/amq.mine", {}).status == 401
        assert api("PUT", f"/api/queues/{v}/amq.rabbitmq.reply-to", {}).status == 401

    def test_message_counts_of_queue(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "q", b"12345")
        channel.basic_get("q")
        found = api.get(f"/api/queues/{v}/q")
        expected = {"messages": 3, "messages_ready": 2, "messages_unacknowledged": 1, "message_bytes": 15}
        assert {name: found[name] for name in expected} == expected
        assert (found["message_stats"]["publish"], found["message_stats"]["get"]) == (3, 1)

    def test_messages_unmatched_counts_messages_that_no_filter_matches(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None, arguments={"x-filter": "colour = 'red'"})
        for colour in ("red", "blue", "green"):
            channel.basic_publish("", "q", b"", pika.BasicProperties(headers={"colour": colour}))
        channel.queue_declare("q", passive=True)
        found = api.get(f"/api/queues/{v}/q")
        expected = {"messages": 3, "messages_ready": 2, "messages_unacknowledged": 1, "messages_unmatched": 2}
        assert {name: found[name] for name in expected} == expected

    @pytest.mark.slow
    def test_counts_are_right_after_restart_before_first_use(self, tmp_path, api):
        with BrokerProcess(tmp_path / "data") as broker:
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True)
            channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
            connection.close()
            broker.kill()
            broker.start()
            fresh = type(api)(broker)
            assert [queue["messages_ready"] for queue in fresh.get("/api/queues")] == [1]
            assert fresh.get("/api/overview")["queue_totals"]["messages"] == 1

    def test_delete_if_empty_is_refused_and_delete_succeeds(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        assert api("DELETE", f"/api/queues/{v}/q?if-empty=true").status == 400
        assert api("DELETE", f"/api/queues/{v}/q").status == 204
        assert api("DELETE", f"/api/queues/{v}/q").status == 404

    def test_delete_if_unused_is_refused_with_consumer(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None)
        assert api("DELETE", f"/api/queues/{v}/q?if-unused=true").status == 400

    def test_purge_removes_messages(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x")
        assert api("DELETE", f"/api/queues/{v}/q/contents").status == 204
        assert api.get(f"/api/queues/{v}/q")["messages"] == 0

    def test_exclusive_queue_of_another_connection_is_refused(self, api, v, channel):
        channel.queue_declare("own", exclusive=True)
        found = api.get(f"/api/queues/{v}/own")
        assert found["exclusive"] is True
        assert found["owner_pid_details"]["name"] in {each["name"] for each in api.get("/api/connections")}
        for method, path in (("DELETE", ""), ("DELETE", "/contents"), ("POST", "/get")):
            answer = api(method, f"/api/queues/{v}/own{path}", GET if method == "POST" else None)
            assert answer.status == 400, answer
            assert "exclusive access" in answer.json["reason"]


class TestPermissions:
    def test_configure_write_and_read_permissions_are_checked(self, api, user, v):
        caller = user("management", configure="^mine", write="^mine", read="^mine")
        api.send_ok("PUT", f"/api/queues/{v}/theirs", {})
        assert caller("PUT", f"/api/queues/{v}/mine", {}).status == 201
        refused = caller("PUT", f"/api/queues/{v}/other", {})
        assert refused.status == 401
        assert "access to queue 'other'" in refused.json["reason"]
        assert caller("DELETE", f"/api/queues/{v}/theirs").status == 401
        assert caller("DELETE", f"/api/queues/{v}/theirs/contents").status == 401
        assert caller("POST", f"/api/queues/{v}/theirs/get", GET).status == 401
        assert caller("POST", f"/api/bindings/{v}/e/amq.direct/q/mine", {}).status == 401
        assert caller("PUT", f"/api/exchanges/{v}/x", {}).status == 401
        publish = {"routing_key": "mine", "payload": ""}
        assert caller("POST", f"/api/exchanges/{v}/amq.default/publish", publish).status == 401
        assert caller("POST", "/api/amqpd/delete_queue", {"vhost": "/", "queue": "x"}).status == 401
        assert {queue["name"] for queue in api.get(f"/api/queues/{v}")} == {"mine", "theirs"}

    @pytest.mark.parametrize(
        ("path", "argument"), [("queues", "x-dead-letter-exchange"), ("exchanges", "alternate-exchange")]
    )
    def test_exchange_in_arguments_of_a_new_object_needs_write_permission(self, api, user, v, path, argument):
        caller = user("management", configure=".*", read=".*")
        body = {"arguments": {argument: "amq.direct"}}
        assert caller("PUT", f"/api/{path}/{v}/it", body).status == 401
        api.send_ok("PUT", f"/api/{path}/{v}/it", body)
        assert caller("PUT", f"/api/{path}/{v}/it", body).status == 204

    def test_monitoring_user_sees_queues_and_changes_nothing(self, api, user, v):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        caller = user("monitoring")
        assert [queue["name"] for queue in caller.get(f"/api/queues/{v}")] == ["q"]
        assert caller("DELETE", f"/api/queues/{v}/q").status == 401
        assert caller("PUT", f"/api/queues/{v}/p", {}).status == 401

    def test_vhost_without_permission_looks_like_missing_vhost(self, user, v):
        caller = user("management", vhost="/", read=".*")
        assert "/" in {vhost["name"] for vhost in caller.get("/api/vhosts")}
        forbidden, missing = caller("GET", f"/api/queues/{v}"), caller("GET", "/api/queues/no-such")
        assert (forbidden.status, forbidden.body) == (401, missing.body)
        assert all(queue["vhost"] == "/" for queue in caller.get("/api/queues"))

    def test_topic_permissions_are_checked_for_key_and_cc(self, api, user, v, amqpd_vhost):
        caller = user("management", write=".*", read=".*")
        api.send_ok("PUT", f"/api/exchanges/{v}/t", {"type": "topic"})
        body = {"exchange": "t", "write": "^a", "read": "^a"}
        api.send_ok("PUT", f"/api/topic-permissions/{v}/{caller.user}", body)
        path = f"/api/exchanges/{v}/t/publish"
        assert caller("POST", path, {"routing_key": "a.b", "payload": ""}).status == 200
        assert caller("POST", path, {"routing_key": "b", "payload": ""}).status == 401
        hidden = {"routing_key": "a", "payload": "", "properties": {"headers": {"CC": ["b"]}}}
        assert caller("POST", path, hidden).status == 401


class TestMessages:
    def test_message_published_over_http_is_read_over_http_and_amqp(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        properties = {"delivery_mode": 2, "headers": {"n": 1, "deep": {"a": [1, "x"]}}, "type": "t", "timestamp": 7}
        message = {"routing_key": "q", "payload": "héllo", "payload_encoding": "string", "properties": properties}
        assert api.send_ok("POST", f"/api/exchanges/{v}/amq.default/publish", message).json == {"routed": True}
        (found,) = api.send_ok("POST", f"/api/queues/{v}/q/get", {**GET, "count": 5}).json
        assert found == {
            "payload_bytes": 6,
            "redelivered": False,
            "exchange": "",
            "routing_key": "q",
            "message_count": 0,
            "properties": properties,
            "payload": "héllo",
            "payload_encoding": "string",
        }
        method, received_properties, body = channel.basic_get("q")
        assert (body.decode(), method.redelivered, received_properties.headers["deep"]) == (
            "héllo",
            True,
            {"a": [1, "x"]},
        )

    def test_binary_payload_is_base64(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"\xff\x00")
        (found,) = api.send_ok("POST", f"/api/queues/{v}/q/get", {**GET, "ackmode": "ack_requeue_false"}).json
        assert (found["payload_encoding"], base64.b64decode(found["payload"])) == ("base64", b"\xff\x00")
        assert api.get(f"/api/queues/{v}/q")["messages"] == 0

    @pytest.mark.parametrize(
        ("ackmode", "left"),
        [("ack_requeue_true", 2), ("reject_requeue_true", 2), ("ack_requeue_false", 0), ("reject_requeue_false", 0)],
    )
    def test_ack_mode_decides_if_messages_stay(self, api, v, channel, ackmode, left):
        channel.queue_declare("q", durable=True)
        for body in (b"1", b"2"):
            channel.basic_publish("", "q", body)
        received = api.send_ok(
            "POST", f"/api/queues/{v}/q/get", {"count": 9, "ackmode": ackmode, "encoding": "auto"}
        ).json
        assert [(each["payload"], each["message_count"]) for each in received] == [("1", 1), ("2", 0)]
        found = api.get(f"/api/queues/{v}/q")
        assert (found["messages_ready"], found["messages_unacknowledged"]) == (left, 0)
        if left:
            assert channel.basic_get("q")[2] == b"1"

    def test_message_of_quorum_queue_has_its_delivery_count(self, api, v, channel):
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "q", b"x")
        for count in (0, 1):
            (found,) = api.send_ok("POST", f"/api/queues/{v}/q/get", GET).json
            assert found["properties"] == {"headers": {"x-delivery-count": count}}

    def test_truncate_shortens_payload(self, api, v, channel):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"123456")
        # RabbitMQ accepts numbers as strings; rabbitmqadmin sends those.
        body = {**GET, "count": "1", "truncate": "2"}
        (found,) = api.send_ok("POST", f"/api/queues/{v}/q/get", body).json
        assert (found["payload"], found["payload_bytes"]) == ("12", 6)

    @pytest.mark.parametrize(
        "body",
        [
            *({"count": count} for count in ("-1", "x", "", "1" * 5000, True)),
            {"ackmode": "x"},
            {"encoding": "x"},
            {"truncate": -1},
        ],
    )
    def test_get_with_bad_value_is_refused(self, api, v, body):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        assert api("POST", f"/api/queues/{v}/q/get", {**GET, **body}).status == 400

    def test_any_count_may_be_asked_for(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        api.send_ok("POST", f"/api/exchanges/{v}/amq.default/publish", {"routing_key": "q", "payload": "x"})
        for count, taken in ((0, 0), (20_000, 1)):
            assert len(api.send_ok("POST", f"/api/queues/{v}/q/get", {**GET, "count": count}).json) == taken

    def test_base64_payload_may_have_line_breaks(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        body = {"routing_key": "q", "payload": "YWJj\r\nZGVm\n", "payload_encoding": "base64"}
        assert api.send_ok("POST", f"/api/exchanges/{v}/amq.default/publish", body).json == {"routed": True}
        (found,) = api.send_ok("POST", f"/api/queues/{v}/q/get", GET).json
        assert found["payload"] == "abcdef"

    @pytest.mark.parametrize("name", ["count", "ackmode", "encoding"])
    def test_get_with_missing_key_is_refused(self, api, v, name):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        body = {key: value for key, value in GET.items() if key != name}
        assert api("POST", f"/api/queues/{v}/q/get", body).json["reason"] == f"[{{key_missing,{name}}}]"

    @pytest.mark.parametrize(
        "body",
        [
            {"payload": ""},
            {"routing_key": "k"},
            {"routing_key": "k" * 256, "payload": ""},
            {"routing_key": "k", "payload": "?", "payload_encoding": "base64"},
            {"routing_key": "k", "payload": "", "payload_encoding": "x"},
            {"routing_key": "k", "payload": "", "properties": {"delivery_mode": 3}},
            {"routing_key": "k", "payload": "", "properties": {"priority": 256}},
            {"routing_key": "k", "payload": "", "properties": {"expiration": "soon"}},
            {"routing_key": "k", "payload": "", "properties": {"user_id": "somebody"}},
            {"routing_key": "k", "payload": "", "properties": {"colour": "red"}},
            {"routing_key": "k", "payload": "", "properties": {"headers": {"CC": 1}}},
            {"routing_key": "k", "payload": "", "properties": {"reply_to": "amq.rabbitmq.reply-to"}},
        ],
    )
    def test_bad_publish_is_refused(self, api, v, body):
        assert api("POST", f"/api/exchanges/{v}/amq.direct/publish", body).status == 400

    def test_publish_to_260_queues_is_routed_and_one_reject_is_503(self, api, v, channel):
        names = [f"q{number}" for number in range(260)]
        for name in names:
            channel.queue_declare(name)
            channel.queue_bind(name, "amq.fanout")
        path, body = f"/api/exchanges/{v}/amq.fanout/publish", {"routing_key": "", "payload": "x"}
        assert api.send_ok("POST", path, body).json == {"routed": True}
        assert all(channel.basic_get(name, auto_ack=True)[2] == b"x" for name in names)
        channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        channel.queue_bind("full", "amq.fanout")
        answer = api("POST", path, body)
        assert (answer.status, "did not take" in answer.json["reason"]) == (503, True)

    def test_publish_that_a_full_queue_rejects_is_400(self, api, v, channel):
        """RabbitMQ's status; rabbitmqadmin prints the reason of a 400, and a traceback for a 503."""
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        body = {"routing_key": "full", "payload": "x", "properties": {"delivery_mode": 2}}
        answer = api("POST", f"/api/exchanges/{v}/amq.default/publish", body)
        assert (answer.status, "queue limits" in answer.json["reason"]) == (400, True)

    def test_unroutable_publish_is_not_routed(self, api, v):
        body = {"routing_key": "nobody", "payload": "x", "properties": []}
        assert api.send_ok("POST", f"/api/exchanges/{v}/amq.direct/publish", body).json == {"routed": False}

    def test_bcc_is_routed_and_removed(self, api, v, channel):
        for name in ("a", "b", "c"):
            channel.queue_declare(name)
        headers = {"CC": ["b"], "BCC": ["c"]}
        body = {"routing_key": "a", "payload": "x", "properties": {"headers": headers}}
        assert api.send_ok("POST", f"/api/exchanges/{v}/amq.default/publish", body).json == {"routed": True}
        assert [channel.basic_get(name, auto_ack=True)[1].headers for name in ("a", "b", "c")] == [{"CC": ["b"]}] * 3

    def test_published_message_survives_kill(self, tmp_path, api):
        with BrokerProcess(tmp_path / "data") as broker:
            fresh = type(api)(broker)
            fresh.send_ok("PUT", "/api/queues/%2F/q", {})
            body = {"routing_key": "q", "payload": "x", "properties": {"delivery_mode": 2}}
            assert fresh.send_ok("POST", "/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
            broker.kill()
            broker.start()
            assert fresh.get("/api/queues/%2F/q")["messages"] == 1

    def test_consumer_receives_message_published_over_http(self, api, v, channel):
        channel.queue_declare("q")
        received: list[bytes] = []
        channel.basic_consume("q", lambda _c, _m, _p, body: received.append(body), auto_ack=True)
        api.send_ok("POST", f"/api/exchanges/{v}/amq.default/publish", {"routing_key": "q", "payload": "now"})
        deadline = time.monotonic() + 30
        while not received and time.monotonic() < deadline:
            channel.connection.process_data_events(0.05)
        assert received == [b"now"]


class TestExchanges:
    def test_exchange_is_created_and_deleted(self, api, v):
        path = f"/api/exchanges/{v}/x"
        body = {"type": "topic", "durable": True, "internal": True, "arguments": {"alternate-exchange": "amq.fanout"}}
        assert api("PUT", path, body).status == 201
        assert api("PUT", path, body).status == 204
        assert api("PUT", path, {**body, "type": "direct"}).status == 400
        found = api.get(path)
        assert {name: found[name] for name in body} == body
        assert api("POST", path + "/publish", {"routing_key": "k", "payload": ""}).status == 401
        assert api("DELETE", path).status == 204
        assert api("GET", path).status == 404

    def test_bad_exchange_is_refused(self, api, v):
        assert api("PUT", f"/api/exchanges/{v}/x", {"type": "no-such"}).status == 400
        assert api("PUT", f"/api/exchanges/{v}/amq.mine", {}).status == 401
        assert api("PUT", f"/api/exchanges/{v}/amq.default", {}).status == 401
        assert api("DELETE", f"/api/exchanges/{v}/amq.direct").status == 401

    def test_predeclared_exchanges_are_listed(self, api, v):
        names = [exchange["name"] for exchange in api.get(f"/api/exchanges/{v}")]
        assert names == sorted(names)
        assert {"", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"} <= set(names)

    def test_delete_if_unused_is_refused_with_binding(self, api, v):
        api.send_ok("PUT", f"/api/exchanges/{v}/x", {})
        api.send_ok("POST", f"/api/bindings/{v}/e/x/e/amq.fanout", {})
        assert api("DELETE", f"/api/exchanges/{v}/x?if-unused=true").status == 400
        assert api("DELETE", f"/api/exchanges/{v}/x?if-unused=perhaps").status == 400
        assert api("DELETE", f"/api/exchanges/{v}/x").status == 204


class TestBindings:
    @pytest.mark.parametrize(
        ("key", "arguments", "shown"),
        [("", {}, "~"), ("a.b", {}, "a.b"), ("a/ ~b", {}, "a%2F+%7Eb"), ("é", {}, "%C3%A9")],
    )
    def test_properties_key_encodes_routing_key(self, key, arguments, shown):
        assert properties_key(key, arguments) == shown

    def test_properties_key_differs_for_each_arguments(self):
        keys = {properties_key(key, arguments) for key in ("", "k") for arguments in ({}, {"a": 1}, {"a": 2})}
        assert len(keys) == 6

    @pytest.mark.parametrize("arguments", [{}, {"k": "v"}])
    def test_properties_key_decodes_once_or_twice(self, api, v, channel, arguments):
        """Ansible sends the properties key as it is in the list. A path decodes it once, and RabbitMQ once more."""
        channel.queue_declare("q")
        path = f"/api/bindings/{v}/e/amq.topic/q/q"
        for encode in (str, lambda key: quote(key, safe="")):
            api.send_ok("POST", path, {"routing_key": "a.*/b #+1", "arguments": arguments})
            key = next(each["properties_key"] for each in api.get(path))
            assert api.get(f"{path}/{encode(key)}")["routing_key"] == "a.*/b #+1"
            api.send_ok("DELETE", f"{path}/{encode(key)}")
            assert api.get(path) == []

    @pytest.mark.parametrize("key", ["", "a.b", "a/b ~c", "é%2F"])
    @pytest.mark.parametrize("arguments", [{}, {"x": 1}])
    def test_binding_is_created_read_and_deleted(self, api, v, key, arguments):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        path = f"/api/bindings/{v}/e/amq.topic/q/q"
        answer = api("POST", path, {"routing_key": key, "arguments": arguments})
        assert answer.status == 201
        (found,) = api.get(path)
        assert (found["routing_key"], found["arguments"], found["destination_type"]) == (key, arguments, "queue")
        assert answer.headers["location"] == f"q/{quote(found['properties_key'], safe='')}"
        location = urljoin(f"http://host{path}", answer.headers["location"]).removeprefix("http://host")
        assert api.get(location) == found
        assert api("DELETE", location).status == 204
        assert api.get(path) == []
        assert api("DELETE", location).status == 404

    def test_exchange_binding_is_listed_at_both_exchanges(self, api, v):
        api.send_ok("PUT", f"/api/exchanges/{v}/x", {})
        path = f"/api/bindings/{v}/e/x/e/amq.fanout"
        api.send_ok("POST", path, {"routing_key": "k"})
        (found,) = api.get(path)
        assert found["destination_type"] == "exchange"
        assert api.get(f"/api/exchanges/{v}/x/bindings/source") == [found]
        assert api.get(f"/api/exchanges/{v}/amq.fanout/bindings/destination") == [found]
        assert found in api.get(f"/api/bindings/{v}")
        assert api("DELETE", f"{path}/k").status == 204

    def test_bindings_of_exchange_or_queue_are_paged_sorted_and_filtered(self, api, v):
        for name in ("q1", "q2"):
            api.send_ok("PUT", f"/api/queues/{v}/{name}", {"durable": False})
        for number in range(30):
            key = {"routing_key": f"orders.{number:02}"}
            api.send_ok("POST", f"/api/bindings/{v}/e/amq.topic/q/q{1 + number % 2}", key)
        of_exchange, of_queue = f"/api/exchanges/{v}/amq.topic/bindings/source", f"/api/queues/{v}/q1/bindings"

        def keys(path: str, **query: object) -> list[str]:
            parameters = urlencode({"page": 1, "page_size": 5, "sort": "routing_key", **query})
            return [each["routing_key"] for each in api.get(f"{path}?{parameters}")["items"]]

        assert keys(of_exchange, page=2) == [f"orders.{number:02}" for number in range(5, 10)]
        assert keys(of_exchange, sort_reverse="true", page_size=2) == ["orders.29", "orders.28"]
        assert keys(of_exchange, name="S.1", page=2) == [f"orders.{number}" for number in range(15, 20)]
        assert api.get(f"{of_exchange}?page=1&name=q2")["filtered_count"] == 15
        assert keys(of_exchange, name=r"^orders\.0[13]$", use_regex="true") == ["orders.01", "orders.03"]
        assert keys(of_queue, name="orders.0") == ["orders.00", "orders.02", "orders.04", "orders.06", "orders.08"]
        assert api.get(f"{of_queue}?page=1&name=amq.topic")["filtered_count"] == 15
        assert api.get(f"{of_queue}?page=1&name=q2")["filtered_count"] == 0

    def test_every_queue_is_bound_to_the_default_exchange(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        (found,) = api.get(f"/api/queues/{v}/q/bindings")
        assert (found["source"], found["destination"], found["routing_key"]) == ("", "q", "q")
        assert api.get(f"/api/bindings/{v}/e/amq.default/q/q") == [found]
        assert api.get(f"/api/bindings/{v}/e/amq.default/q/q/{found['properties_key']}") == found
        assert api("POST", f"/api/bindings/{v}/e/amq.default/q/q", {}).status == 401

    def test_binding_made_over_http_routes(self, api, v, channel):
        channel.queue_declare("q")
        api.send_ok("POST", f"/api/bindings/{v}/e/amq.topic/q/q", {"routing_key": "a.*"})
        channel.basic_publish("amq.topic", "a.b", b"routed")
        assert channel.basic_get("q", auto_ack=True)[2] == b"routed"


class TestLists:
    def names(self, api, path):
        return [item["name"] for item in api.get(path)["items"]]

    def test_list_is_paged_filtered_and_sorted(self, api, v):
        for index in range(5):
            api.send_ok("PUT", f"/api/queues/{v}/q{index}", {"durable": False})
        page = api.get(f"/api/queues/{v}?page=2&page_size=2")
        assert [item["name"] for item in page.pop("items")] == ["q2", "q3"]
        assert page == {
            "filtered_count": 5,
            "item_count": 2,
            "page": 2,
            "page_count": 3,
            "page_size": 2,
            "total_count": 5,
        }
        assert self.names(api, f"/api/queues/{v}?page=1&name=Q3") == ["q3"]
        assert self.names(api, f"/api/queues/{v}?page=1&name=%5EQ%5B13%5D%24&use_regex=true") == ["q1", "q3"]
        assert self.names(api, f"/api/queues/{v}?page=1&page_size=2&sort=name&sort_reverse=true") == ["q4", "q3"]

    def test_invalid_pattern_is_shown_as_it_was_sent(self, api, v):
        refused = api("GET", f"/api/queues/{v}?page=1&name=(&use_regex=true")
        assert (refused.status, refused.json["reason"].startswith("'(' is not a regular")) == (400, True), refused.json

    def test_empty_list_has_no_page_and_page_1_may_be_asked_for(self, api, v):
        page = api.get(f"/api/queues/{v}?page=1")
        assert (page["page"], page["page_count"], page["items"]) == (1, 0, [])
        refused = api("GET", f"/api/queues/{v}?page=2")
        assert (refused.status, refused.json["error"]) == (400, "page_out_of_range")

    @pytest.mark.parametrize(
        "query",
        ["page=0", "page=x", "page=2", "page=1&page_size=501", "page=1&page_size=1e9", "page=1&name=(&use_regex=true"],
    )
    def test_bad_page_parameters_are_refused(self, api, v, query):
        assert api("GET", f"/api/queues/{v}?{query}").status == 400

    def test_catastrophic_pattern_is_answered_in_time(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/{'a' * 60}", {"durable": False})
        started = time.monotonic()
        api.get(f"/api/queues/{v}?page=1&name=(a%2B)%2B%24b&use_regex=true")
        assert time.monotonic() - started < 30

    def test_columns_select_fields(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/q", {})
        found = api.get(f"/api/queues/{v}?columns=name,message_stats.publish,message_stats.publish_details.rate,none")
        assert found == [{"name": "q", "message_stats": {"publish": 0, "publish_details": {"rate": 0.0}}}]
        assert api.get(f"/api/queues/{v}/q?columns=durable") == {"durable": True}


def test_sort_order_equals_shown_values_for_each_column(amqpd_broker, api, amqpd_vhost):
    """`queues._keys` sorts without rendering. Its keys must equal the shown values of each column."""
    v = amqpd_vhost.name
    for name, kind in (("a", "classic"), ("b", "quorum"), ("c", "stream")):
        api("PUT", f"/api/queues/{v}/{name}", {"arguments": {"x-queue-type": kind}})
    message = {"routing_key": "a", "payload": "x", "payload_encoding": "string", "properties": {}}
    for key in "aabccc":
        api("POST", f"/api/exchanges/{v}/amq.default/publish", {**message, "routing_key": key})
    get_body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert len(api("POST", f"/api/queues/{v}/b/get", get_body).json) == 1
    for column in (
        *("name", "vhost", "type", "messages", "messages_ready", "messages_unacknowledged", "consumers"),
        *("message_stats.publish_details.rate", "message_stats.deliver_get_details.rate", "state", "arguments"),
    ):
        for reverse in ("true", "false"):
            items = api.get(f"/api/queues/{v}?sort={column}&sort_reverse={reverse}")
            shown = []
            for item in items:
                for word in column.split("."):
                    item = item[word]
                shown.append(item)
            keys = [json.dumps(each, sort_keys=True) if isinstance(each, dict) else each for each in shown]
            assert len(keys) == 3
            assert keys == sorted(keys, reverse=reverse == "true"), (column, reverse)


def test_consumers_of_queue_are_paged(api, v, channel):
    channel.queue_declare("q")
    channel.queue_declare("other")
    for number in range(5):
        channel.basic_consume("q", lambda *_: None, consumer_tag=f"c{number}")
    channel.basic_consume("other", lambda *_: None, consumer_tag="of the other")
    page = api.get(f"/api/queues/{v}/q/consumers?page=2&page_size=2&columns=consumer_tag")
    assert (page["total_count"], page["page_count"]) == (5, 3)
    assert [each["consumer_tag"] for each in page["items"]] == ["c2", "c3"]
    assert len(api.get(f"/api/queues/{v}/q/consumers")) == 5
    # A request with columns does not walk over all consumers.
    assert api.get(f"/api/queues/{v}/q?columns=name,consumers") == {"name": "q", "consumers": 5}
    assert len(api.get(f"/api/queues/{v}/q?columns=consumer_details")["consumer_details"]) == 5
    assert api("GET", f"/api/queues/{v}/none/consumers").status == 404
