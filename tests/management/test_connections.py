"""Connections, channels, consumers; closing connections; stopping and starting the application; the whole broker."""

from __future__ import annotations

import re
import socket
import time
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from amqpd import __version__
from amqpd.testing import BrokerProcess


def own_connection(api, channel):
    """Return this test's connection as the API shows it."""
    vhost = channel.connection._impl.params.virtual_host
    (found,) = [each for each in api.get("/api/connections") if each["vhost"] == vhost]
    return found


class TestConnections:
    def test_fields_of_connection(self, api, amqpd_vhost):
        parameters = pika.URLParameters(amqpd_vhost.url + "?heartbeat=77&channel_max=9&frame_max=65536")
        parameters.client_properties = {"connection_name": "my name"}
        before = time.time()
        connection = pika.BlockingConnection(parameters)
        connection.channel()
        found = own_connection(api, connection.channel())
        connection.close()
        assert before - 1 < found.pop("connected_at") / 1000 < time.time() + 1
        assert found["client_properties"]["connection_name"] == found["user_provided_name"] == "my name"
        assert found["name"] == f"127.0.0.1:{found['peer_port']} -> 127.0.0.1:{api.broker.amqp_port}"
        assert found["recv_oct"] > 100
        assert found["send_oct"] > 100
        expected = {
            "user": "guest", "vhost": amqpd_vhost.name, "peer_host": "127.0.0.1", "host": "127.0.0.1",
            "port": api.broker.amqp_port, "protocol": "AMQP 0-9-1", "auth_mechanism": "PLAIN", "channels": 2,
            "channel_max": 9, "frame_max": 65536, "timeout": 77, "state": "running", "ssl": False, "type": "network",
        }  # fmt: skip
        assert {name: found[name] for name in expected} == expected

    def test_connection_is_found_by_name_channels_and_vhost(self, api, v, channel):
        found = own_connection(api, channel)
        path = f"/api/connections/{quote(found['name'], safe='')}"
        assert api.get(path)["pid"] == found["pid"]
        (shown,) = api.get(path + "/channels")
        assert (shown["number"], shown["name"]) == (1, f"{found['name']} (1)")
        assert api.get(f"/api/channels/{quote(shown['name'], safe='')}")["consumer_details"] == []
        assert [each["name"] for each in api.get(f"/api/vhosts/{v}/connections")] == [found["name"]]
        assert api("GET", "/api/connections/none").status == 404
        for number in ("77", "7" * 5000):  # Python reads no number of so many digits
            assert api("GET", f"/api/channels/{quote(found['name'], safe='')}%20({number})").status == 404

    def test_user_without_monitoring_sees_own_consumers_alone(self, api, v, amqpd_vhost, channel, user):
        """RabbitMQ: as with connections and channels."""
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None, consumer_tag="of guest")
        caller = user("management", configure=".*", write=".*", read=".*")
        login = pika.PlainCredentials(caller.user, caller.password)
        parameters = pika.ConnectionParameters("127.0.0.1", api.broker.amqp_port, amqpd_vhost.name, login)
        with pika.BlockingConnection(parameters) as connection:
            connection.channel().basic_consume("q", lambda *_: None, consumer_tag="own")
            for path in ("/api/consumers", f"/api/consumers/{v}"):
                assert [each["consumer_tag"] for each in caller.get(path)] == ["own"]
            seen = {each["consumer_tag"] for each in user("monitoring").get(f"/api/consumers/{v}")}
        assert seen == {"of guest", "own"}

    def test_user_without_monitoring_sees_no_channels_of_others_in_other_routes(self, api, v, channel, user):
        """RabbitMQ shows those of others only in `consumer_details` and `owner_pid_details` of a queue."""
        channel.queue_declare("q")
        channel.queue_bind("q", "amq.topic", "k")
        channel.basic_consume("q", lambda *_: None)
        channel.basic_publish("amq.topic", "k", b"x")
        channel.connection.process_data_events(0.2)
        seen = []
        for caller in (user("management", read=".*"), user("monitoring", read=".*")):
            topology, queue = caller.get(f"/api/amqpd/topology/{v}"), caller.get(f"/api/queues/{v}/q")
            incoming = caller.get(f"/api/exchanges/{v}/amq.topic")["incoming"]
            lists = (topology["consumers"], topology["publishers"], queue["deliveries"], incoming)
            seen.append([len(each) for each in lists])
            assert len(queue["consumer_details"]) == 1
        assert seen == [[0] * 4, [1] * 4]
        totals = user("management", read=".*").get("/api/overview")["object_totals"]
        assert (totals["queues"], totals["connections"], totals["channels"]) == (1, 0, 0)

    @pytest.mark.parametrize(
        ("headers", "text"), [({}, "Closed via management plugin"), ({"X-Reason": "because"}, "because")]
    )
    def test_delete_closes_connection_with_reason(self, api, channel, headers, text):
        path = f"/api/connections/{quote(own_connection(api, channel)['name'], safe='')}"
        assert api("DELETE", path, headers=headers).status == 204
        with pytest.raises(ConnectionClosedByBroker) as caught:
            channel.connection.process_data_events(5)
        assert (caught.value.reply_code, caught.value.reply_text) == (320, f"CONNECTION_FORCED - {text}")
        assert api("DELETE", path).status == 404

    def test_close_by_pid_replaces_control_characters_in_reason(self, api, channel):
        body = {"pid": own_connection(api, channel)["pid"], "reason": "tired\r\n\x1b[31m2026 ERROR forged %s"}
        assert api("POST", "/api/amqpd/close_connection", body).status == 204
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - tired") as caught:
            channel.connection.process_data_events(5)
        assert caught.value.reply_text.endswith("tired???[31m2026 ERROR forged %s")
        assert "\x1b" not in api.broker.stderr
        assert api("POST", "/api/amqpd/close_connection", body).status == 404
        assert api("POST", "/api/amqpd/close_connection", {}).status == 400

    def test_close_all_closes_only_connections_of_the_vhost(self, api, amqpd_vhost, channel):
        other = pika.BlockingConnection(pika.URLParameters(api.broker.url))
        body = {"reason": "all", "vhost": amqpd_vhost.name}
        assert api.send_ok("POST", "/api/amqpd/close_all_connections", body).json == {"closed": 1}
        with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - all"):
            channel.connection.process_data_events(5)
        other.process_data_events(0)
        other.close()

    def test_management_user_does_not_see_connections_of_others(self, api, user, channel):
        caller = user("management", read=".*")
        assert caller.get("/api/connections") == []
        assert caller.get("/api/channels") == []
        path = f"/api/connections/{quote(own_connection(api, channel)['name'], safe='')}"
        assert caller("GET", path).status == 404
        assert caller("DELETE", path).status == 404
        watcher = user("monitoring")
        assert watcher("GET", path).status == 200
        assert watcher("DELETE", path).status == 404
        channel.connection.process_data_events(0)


class TestChannels:
    def test_fields_of_channel_and_consumer(self, api, amqpd_vhost, channel):
        channel.queue_declare("q")
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=7)
        for _ in range(3):
            channel.basic_publish("", "q", b"x")
        channel.basic_get("q")
        channel.basic_consume("q", lambda *_: None, consumer_tag="me", arguments={"x-priority": 2})
        channel.connection.process_data_events(0.2)
        (found,) = [each for each in api.get("/api/channels") if each["vhost"] == amqpd_vhost.name]
        expected = {
            "confirm": True, "transactional": False, "consumer_count": 1, "prefetch_count": 7, "number": 1,
            "global_prefetch_count": 0, "messages_unacknowledged": 3, "messages_unconfirmed": 0, "user": "guest",
        }  # fmt: skip
        assert {name: found[name] for name in expected} == expected
        stats = found["message_stats"]
        assert (stats["publish"], stats["confirm"], stats["deliver_get"], stats["ack"]) == (3, 3, 3, 0)
        (consumer,) = api.get(f"/api/consumers/{quote(amqpd_vhost.name, safe='')}")
        assert (consumer["consumer_tag"], consumer["ack_required"], consumer["prefetch_count"]) == ("me", True, 7)
        assert (consumer["arguments"], consumer["queue"]["name"]) == ({"x-priority": 2}, "q")
        assert consumer["channel_details"]["pid"] == found["pid"]

    def test_transactional_channel_shows_uncommitted_count(self, api, amqpd_vhost, channel):
        channel.tx_select()
        channel.basic_publish("", "nowhere", b"x")
        channel.connection.process_data_events(0.1)
        (found,) = [each for each in api.get("/api/channels") if each["vhost"] == amqpd_vhost.name]
        assert (found["transactional"], found["messages_uncommitted"]) == (True, 1)


class TestBroker:
    def test_overview_shows_version_listeners_and_node(self, api, channel):
        found = api.get("/api/overview")
        assert (found["product_name"], found["rabbitmq_version"], found["management_version"]) == (
            "amqpd", __version__, __version__,
        )  # fmt: skip
        assert found["object_totals"]["connections"] >= 1
        assert {listener["protocol"]: listener["port"] for listener in found["listeners"]} == {
            "amqp": api.broker.amqp_port, "http": api.broker.http_port,
        }  # fmt: skip
        for contexts in (found["contexts"], api.get("/api/nodes")[0]["contexts"]):
            assert [each["port"] for each in contexts] == [str(api.broker.http_port)]  # rabbit: text
        assert found["node"] == api.get("/api/nodes")[0]["name"]
        assert api.get(f"/api/nodes/{quote(found['node'], safe='')}")["running"] is True
        assert api.get("/api/cluster-name") == {"name": found["cluster_name"]}

    def test_every_deleted_queue_is_counted(self, api, amqpd_broker, amqpd_vhost):
        """Queues are deleted by a client, with their connection, and with their vhost."""

        def deleted() -> int:
            text = api("GET", "/metrics").body.decode()
            return int(re.search(r"^rabbitmq_queues_deleted_total (\d+)$", text, re.MULTILINE)[1])

        before = deleted()
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
        channel = connection.channel()
        for _ in range(3):
            channel.queue_declare("", exclusive=True)
        channel.queue_declare("by-client")
        channel.queue_delete("by-client")
        assert deleted() == before + 1
        connection.close()
        assert deleted() == before + 4
        other = amqpd_broker.add_vhost()
        connection = pika.BlockingConnection(pika.URLParameters(other.url))
        for name in ("a", "b"):
            connection.channel().queue_declare(name, durable=name == "a")
        amqpd_broker.delete_vhost(other.name)
        assert deleted() == before + 6
        with pytest.raises(ConnectionClosedByBroker):
            connection.process_data_events(10)

    def test_totals_do_not_fall_when_connection_and_queue_end(self, api, amqpd_vhost):
        before = api.get("/api/overview")["message_stats"]
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
        channel = connection.channel()
        channel.queue_declare("brief", exclusive=True)
        for _ in range(5):
            channel.basic_publish("", "brief", b"x")
        channel.basic_get("brief", auto_ack=True)
        during = api.get("/api/overview")["message_stats"]
        connection.close()
        after = api.get("/api/overview")["message_stats"]
        for name, rise in (("publish", 5), ("get_no_ack", 1), ("deliver_get", 1)):
            assert (during[name] - before[name], after[name] - before[name]) == (rise, rise), name

    @pytest.mark.slow
    def test_publish_rate_is_shown(self, api, amqpd_vhost, v, channel):
        channel.queue_declare("busy")
        deadline = time.monotonic() + 30
        rate = 0.0
        while rate == 0.0 and time.monotonic() < deadline:
            for _ in range(20):
                channel.basic_publish("", "busy", b"x")
            channel.connection.process_data_events(0.2)
            rate = api.get(f"/api/queues/{v}/busy")["message_stats"]["publish_details"]["rate"]
        assert 0 < rate < 10_000
        assert api.get("/api/overview")["message_stats"]["publish_details"]["rate"] > 0

    @pytest.mark.parametrize(
        "check", ["health/checks/alarms", "health/checks/protocol-listener/amqp", "healthchecks/node"]
    )
    def test_health_checks_need_the_tag_management(self, user, check):
        """RabbitMQ: any user of the API."""
        assert user("management")("GET", f"/api/{check}").status == 200
        assert user("")("GET", f"/api/{check}").status == 401

    def test_health_checks(self, api, v):
        for name in ("alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "protocol-listener/amqp"):
            assert api.get(f"/api/health/checks/{name}")["status"] == "ok"
        assert api.get(f"/api/health/checks/port-listener/{api.broker.amqp_port}")["status"] == "ok"
        closed = api("GET", "/api/health/checks/port-listener/1")
        assert (closed.status, closed.json["missing"]) == (503, 1)
        assert api("GET", "/api/health/checks/port-listener/x").status == 400
        assert api("GET", "/api/health/checks/protocol-listener/mqtt").status == 503
        assert api.get("/api/healthchecks/node") == {"status": "ok"}
        assert api.get(f"/api/aliveness-test/{v}") == {"status": "ok"}
        assert api.get(f"/api/queues/{v}") == []

    def test_metrics_are_unique_and_plausible(self, api, amqpd_broker, channel):
        text = type(api)(amqpd_broker, "")("GET", "/metrics").body.decode()
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                assert name not in values
                values[name] = float(value)
        assert values["rabbitmq_connections"] >= 1
        assert values["rabbitmq_channels"] >= 1
        assert 10_000_000 < values["rabbitmq_process_resident_memory_bytes"] < 2_000_000_000
        for name in ("queues", "queue_messages_ready", "queue_messages_unacked"):
            assert f"rabbitmq_{name}" in values
        assert 'rabbitmq_global_messages_received_total{protocol="amqp091"}' in values
        assert any(name.startswith("rabbitmq_build_info{") for name in values)

    def test_definitions_contain_exchange_queues_and_bindings(self, api, v, amqpd_vhost):
        api.send_ok("PUT", f"/api/exchanges/{v}/x", {"type": "topic"})
        api.send_ok("PUT", f"/api/queues/{v}/q", {"arguments": {"x-max-length": 3}})
        api.send_ok("PUT", f"/api/queues/{v}/brief", {"durable": False})
        api.send_ok("POST", f"/api/bindings/{v}/e/x/q/q", {"routing_key": "a.#"})
        found = api.get(f"/api/definitions/{v}")
        declared = {queue["name"]: queue for queue in found["queues"]}
        assert set(declared) == {"q", "brief"}  # RabbitMQ: transient queues are included
        assert declared["q"]["arguments"] == {"x-max-length": 3}
        assert [exchange["name"] for exchange in found["exchanges"]] == ["x"]
        assert found["bindings"] == [
            {"source": "x", "destination": "q", "destination_type": "queue", "routing_key": "a.#", "arguments": {}}
        ]
        all_definitions = api.get("/api/definitions")
        assert {"vhost": amqpd_vhost.name, **declared["q"]} in all_definitions["queues"]
        assert "guest" in {user["name"] for user in all_definitions["users"]}


class TestStopAndStart:
    @pytest.mark.slow
    def test_stop_app_closes_connections_and_start_app_keeps_messages(self, tmp_path, api):
        with BrokerProcess(tmp_path / "data") as broker:
            operator = type(api)(broker, None)
            assert type(api)(broker).get("/api/amqpd/ping")
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True)
            channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
            assert operator("POST", "/api/amqpd/stop_app").status == 204
            with pytest.raises(ConnectionClosedByBroker) as caught:
                connection.process_data_events(5)
            expected = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
            assert (caught.value.reply_code, caught.value.reply_text) == (320, expected)
            with pytest.raises(AMQPConnectionError):
                pika.BlockingConnection(pika.URLParameters(broker.url))
            assert operator.get("/api/amqpd/status")["app_running"] is False
            assert operator.get("/api/healthchecks/node")["status"] == "failed"
            assert operator("POST", "/api/amqpd/start_app").status == 204
            assert operator("POST", "/api/amqpd/start_app").status == 204
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            assert connection.channel().basic_get("kept", auto_ack=True)[2] == b"x"
            connection.close()

    @pytest.mark.slow
    def test_start_app_fails_when_port_is_in_use(self, tmp_path, api):
        with BrokerProcess(tmp_path / "data") as broker:
            fresh = type(api)(broker)
            assert fresh("POST", "/api/amqpd/stop_app").status == 204
            with socket.socket() as other_listener:
                other_listener.bind(("127.0.0.1", broker.amqp_port))
                other_listener.listen()
                answer = fresh("POST", "/api/amqpd/start_app")
            assert (answer.status, answer.json["error"]) == (500, "cannot_listen")
            assert fresh("POST", "/api/amqpd/start_app").status == 204

    def test_stop_ends_the_process(self, tmp_path, api):
        broker = BrokerProcess(tmp_path / "data").start()
        try:
            assert type(api)(broker)("POST", "/api/amqpd/stop").json == {"pid": broker.pid}
            deadline = time.monotonic() + 30
            while broker.running and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not broker.running
        finally:
            broker.close()
