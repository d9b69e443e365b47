"""Message statistics of exchanges, channels and queues. They are exact at once, without sampling."""

from __future__ import annotations

import pika
import pytest

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def sync(channel):
    """Wait until the broker has processed all earlier publishes of the channel."""
    channel.queue_declare("said", exclusive=True)


def stats(api, path):
    found = api.get(path)["message_stats"]
    return {name: count for name, count in found.items() if not name.endswith("_details")}


def test_publishes_over_http_are_counted_as_on_a_channel(api, v):
    """RabbitMQ: its API publishes with confirms and with `mandatory`."""
    api.send_ok("PUT", f"/api/queues/{v}/q", {})
    before = stats(api, "/api/overview")
    for key in ("q", "q", "nowhere"):
        api.send_ok("POST", f"/api/exchanges/{v}/amq.default/publish", {"routing_key": key, "payload": "x"})
    names = ("publish", "confirm", "return_unroutable", "drop_unroutable")
    found = stats(api, f"/api/vhosts/{v}")
    assert [found[name] for name in names] == [3, 3, 1, 0]
    after = stats(api, "/api/overview")
    assert [after[name] - before[name] for name in names] == [3, 3, 1, 0]


class TestExchanges:
    def test_publish_in_counts_publishes_and_publish_out_counts_enqueues(self, api, v, channel):
        channel.exchange_declare("all", "fanout")
        for name in ("a", "b"):
            channel.queue_declare(name)
            channel.queue_bind(name, "all")
        for _ in range(3):
            channel.basic_publish("all", "", b"x")
            channel.basic_publish("", "a", b"x")
        channel.basic_publish("", "nowhere", b"x")
        sync(channel)
        assert stats(api, f"/api/exchanges/{v}/all") == {"publish_in": 3, "publish_out": 6}
        assert stats(api, f"/api/exchanges/{v}/amq.default") == {"publish_in": 4, "publish_out": 3}
        listed = {each["name"]: each["message_stats"] for each in api.get(f"/api/exchanges/{v}")}
        assert listed["all"]["publish_out"] == 6
        assert listed["amq.topic"]["publish_in"] == 0

    def test_headers_exchange_counts_routed_messages(self, api, v, channel):
        channel.exchange_declare("h", "headers")
        channel.queue_declare("q")
        channel.queue_bind("q", "h", arguments={"x-match": "all", "colour": "red"})
        for colour in ("red", "blue", "red"):
            channel.basic_publish("h", "", b"", pika.BasicProperties(headers={"colour": colour}))
        channel.basic_publish("h", "", b"", pika.BasicProperties(headers={"colour": "red", "CC": ["q"]}))
        sync(channel)
        assert stats(api, f"/api/exchanges/{v}/h") == {"publish_in": 4, "publish_out": 3}

    def test_topic_exchange_counts_new_routing_keys(self, api, v, channel):
        channel.exchange_declare("t", "topic")
        channel.queue_declare("q")
        channel.queue_bind("q", "t", "a.#")
        for number in range(50):
            channel.basic_publish("t", f"a.{number}", b"")
            channel.basic_publish("t", f"b.{number}", b"")
        sync(channel)
        assert stats(api, f"/api/exchanges/{v}/t") == {"publish_in": 100, "publish_out": 50}

    def test_exchange_bound_to_another_exchange_counts_nothing(self, api, v, channel):
        """RabbitMQ: only the exchange that the client names has counters."""
        channel.exchange_declare("first", "fanout")
        channel.exchange_declare("second", "fanout")
        channel.exchange_bind("second", "first")
        channel.queue_declare("q")
        channel.queue_bind("q", "second")
        channel.basic_publish("first", "", b"")
        sync(channel)
        assert stats(api, f"/api/exchanges/{v}/first") == {"publish_in": 1, "publish_out": 1}
        assert stats(api, f"/api/exchanges/{v}/second") == {"publish_in": 0, "publish_out": 0}

    def test_counts_survive_channel_close_and_reset_with_exchange_delete(self, api, v, channel):
        channel.exchange_declare("x", "fanout")
        other = channel.connection.channel()
        other.basic_publish("x", "", b"")
        other.close()
        channel.basic_publish("x", "", b"")
        sync(channel)
        assert stats(api, f"/api/exchanges/{v}/x")["publish_in"] == 2
        channel.exchange_delete("x")
        channel.exchange_declare("x", "fanout")
        channel.basic_publish("x", "", b"")
        sync(channel)
        assert stats(api, f"/api/exchanges/{v}/x")["publish_in"] == 1

    def test_publish_over_http_is_counted(self, api, v, channel):
        channel.queue_declare("q")
        body = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
        assert api("POST", f"/api/exchanges/{v}/amq.default/publish", body).status == 200
        assert stats(api, f"/api/exchanges/{v}/amq.default") == {"publish_in": 1, "publish_out": 1}

    def test_publish_in_transaction_is_counted(self, api, v, channel):
        channel.queue_declare("q")
        channel.tx_select()
        channel.basic_publish("", "q", b"")
        channel.basic_publish("", "nowhere", b"")
        channel.tx_commit()
        assert stats(api, f"/api/exchanges/{v}/amq.default") == {"publish_in": 2, "publish_out": 1}
        (name,) = [each["name"] for each in api.get(f"/api/vhosts/{v}/channels")]
        assert stats(api, f"/api/channels/{name.replace(' ', '%20')}")["drop_unroutable"] == 1

    def test_incoming_lists_publishes_per_channel(self, api, v, channel):
        channel.exchange_declare("x", "fanout")
        other = channel.connection.channel()
        for _ in range(2):
            channel.basic_publish("x", "", b"")
        other.basic_publish("x", "", b"")
        other.queue_declare("", exclusive=True)
        sync(channel)
        found = api.get(f"/api/exchanges/{v}/x")
        incoming = {each["channel_details"]["number"]: each["stats"]["publish"] for each in found["incoming"]}
        assert incoming == {1: 2, 2: 1}
        assert found["outgoing"] == []

    def test_exchange_rates_have_samples(self, api, v, channel):
        found = api.get(f"/api/exchanges/{v}/amq.topic?msg_rates_age=60&msg_rates_incr=5")
        (sample,) = found["message_stats"]["publish_in_details"]["samples"]
        assert sample["sample"] == found["message_stats"]["publish_in"]


@pytest.fixture
def channel_details(api, v, channel):
    """Return a function that reads the details of channel 1."""

    def get_details():
        (name,) = [each["name"] for each in api.get(f"/api/vhosts/{v}/channels") if each["number"] == 1]
        return api.get(f"/api/channels/{name.replace(' ', '%20')}")

    return get_details


class TestChannels:
    def test_deliveries_are_counted_by_kind(self, api, v, channel, channel_details):
        channel.queue_declare("q")
        for _ in range(6):
            channel.basic_publish("", "q", b"")
        sync(channel)
        channel.basic_get("q", auto_ack=True)
        returned, _, _ = channel.basic_get("q")
        channel.basic_nack(returned.delivery_tag, requeue=True)
        delivery_tags: list[int] = []
        channel.basic_qos(prefetch_count=2)
        tag = channel.basic_consume("q", lambda _c, method, _p, _b: delivery_tags.append(method.delivery_tag))
        while len(delivery_tags) < 2:
            channel.connection.process_data_events(0.1)
        channel.basic_ack(delivery_tags[0])
        channel.basic_cancel(tag)
        channel.queue_declare("empty", exclusive=True)
        channel.basic_get("empty")
        found = channel_details()
        counts = {name: count for name, count in found["message_stats"].items() if not name.endswith("_details")}
        delivered = counts["deliver"]
        assert delivered in (2, 3)  # the ack can have triggered one more delivery
        assert {name: count for name, count in counts.items() if count} == {
            "publish": 6,
            "deliver": delivered,
            "get": 1,
            "get_no_ack": 1,
            "get_empty": 1,
            "redeliver": 1,
            "ack": 1,
            "deliver_get": delivered + 2,
        }
        deliveries = {each["queue"]["name"]: each["stats"] for each in found["deliveries"]}
        assert (deliveries["q"]["deliver"], deliveries["q"]["get"], deliveries["q"]["ack"]) == (delivered, 1, 1)
        assert deliveries["empty"]["get_empty"] == 1
        (queue_side,) = api.get(f"/api/queues/{v}/q")["deliveries"]
        assert queue_side["stats"]["deliver"] == delivered
        assert queue_side["channel_details"]["number"] == 1

    def test_no_ack_deliveries_are_separate_and_rejects_are_not_acks(self, api, v, channel, channel_details):
        channel.queue_declare("quick")
        channel.queue_declare("slow")
        received: list[int] = []
        delivery_tags: list[int] = []
        channel.basic_consume("quick", lambda *_: received.append(1), auto_ack=True)
        channel.basic_consume("slow", lambda _c, method, _p, _b: delivery_tags.append(method.delivery_tag))
        for _ in range(4):
            channel.basic_publish("", "quick", b"")
        for _ in range(2):
            channel.basic_publish("", "slow", b"")
        while len(received) < 4 or len(delivery_tags) < 2:
            channel.connection.process_data_events(0.1)
        channel.basic_reject(delivery_tags[0], requeue=False)
        channel.basic_ack(delivery_tags[1])
        sync(channel)
        found = channel_details()
        counts = found["message_stats"]
        assert (counts["deliver"], counts["deliver_no_ack"], counts["ack"]) == (2, 4, 1)
        acks = {each["queue"]["name"]: each["stats"]["ack"] for each in found["deliveries"]}
        assert acks == {"quick": 0, "slow": 1}

    def test_unroutable_publishes_are_counted_as_returned_or_dropped(self, v, channel, channel_details):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
        channel.basic_publish("", "nowhere", b"")
        channel.basic_publish("", "nowhere", b"")
        sync(channel)
        counts = channel_details()["message_stats"]
        assert (counts["publish"], counts["return_unroutable"], counts["drop_unroutable"]) == (3, 1, 2)

    def test_publishes_are_counted_per_exchange(self, v, channel, channel_details):
        channel.queue_declare("q")
        for _ in range(2):
            channel.basic_publish("", "q", b"")
        channel.basic_publish("amq.topic", "q", b"")
        sync(channel)
        found = {each["exchange"]["name"]: each["stats"]["publish"] for each in channel_details()["publishes"]}
        assert found == {"": 2, "amq.topic": 1}


class TestQueues:
    @pytest.mark.parametrize("durable", [True, False])
    def test_message_bytes_are_counted_by_state(self, api, v, channel, durable):
        channel.queue_declare("q", durable=durable)
        for size in (10, 20, 30):
            channel.basic_publish("", "q", b"x" * size, PERSISTENT)
        sync(channel)
        method, _, _ = channel.basic_get("q")
        found = api.get(f"/api/queues/{v}/q")
        by_state = {"message_bytes": 60, "message_bytes_ready": 50, "message_bytes_unacknowledged": 10}
        assert {name: found[name] for name in by_state} == by_state
        assert found["messages_persistent"] == (3 if durable else 0)
        assert found["message_bytes_persistent"] == (60 if durable else 0)
        assert found["message_bytes_ram"] == (50 if durable else 60)
        assert found["messages_ram"] + found["messages_paged_out"] == found["messages"] == 3
        channel.basic_nack(method.delivery_tag, requeue=True)
        channel.basic_get("q", auto_ack=True)
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
        sync(channel)
        found = api.get(f"/api/queues/{v}/q")
        assert (found["message_bytes"], found["message_bytes_unacknowledged"]) == (30, 0)

    @pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}, {"x-group-by": "routing_key"}])
    def test_head_message_timestamp_follows_the_first_message(self, api, v, channel, arguments):
        channel.queue_declare("q", arguments=arguments)
        assert api.get(f"/api/queues/{v}/q")["head_message_timestamp"] is None
        for timestamp in (1700000000, 1800000000):
            channel.basic_publish("", "q", b"", pika.BasicProperties(timestamp=timestamp))
        channel.basic_publish("", "q", b"")
        sync(channel)
        assert api.get(f"/api/queues/{v}/q")["head_message_timestamp"] == 1700000000
        for expected in (1800000000, None, None):
            channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
            sync(channel)
            assert api.get(f"/api/queues/{v}/q")["head_message_timestamp"] == expected
