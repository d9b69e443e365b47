"""Paths and queries of RabbitMQ 4.x and its tools: detailed lists, deprecated features, node samples."""

from __future__ import annotations

import pika

from amqpd.management.router import Router
from amqpd.management.routes import ROUTES


def test_detailed_queue_list_has_statistics(api, v, channel):
    channel.queue_declare("q", durable=True)
    own_queues = [each for each in api.get("/api/queues/detailed") if each["vhost"] == v]
    assert [each["name"] for each in own_queues] == ["q"]
    assert "message_stats" in own_queues[0]
    page = api.get("/api/queues/detailed?page=1&page_size=1")
    assert page["page_size"] == 1


def test_vhost_named_detailed_is_reachable(api):
    api.send_ok("PUT", "/api/vhosts/detailed")
    try:
        api.send_ok("PUT", "/api/permissions/detailed/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        api.send_ok("PUT", "/api/queues/detailed/q", {})
        assert api.get("/api/queues/detailed/q")["vhost"] == "detailed"
    finally:
        api.send_ok("DELETE", "/api/vhosts/detailed")


def test_router_falls_back_from_literal_segment_to_parameter():
    router = Router(ROUTES)
    assert router.find("GET", "/api/queues/detailed")[0].path == "api/queues/detailed"
    route, names = router.find("DELETE", "/api/queues/detailed/detailed/contents")
    assert (route.path, names) == ("api/queues/{vhost}/{queue}/contents", {"vhost": "detailed", "queue": "detailed"})


def test_deprecated_features_are_listed_and_used(api, v, channel):
    listed = {each["name"]: each for each in api.get("/api/deprecated-features")}
    assert listed["global_qos"]["deprecation_phase"] == "permitted_by_default"
    fields = {"name", "desc", "deprecation_phase", "doc_url", "provided_by", "state"}
    assert all(each.keys() == fields for each in listed.values())
    channel.queue_declare("passing", durable=False)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    used = {each["name"] for each in api.get("/api/deprecated-features/used")}
    assert used == set(listed)


def test_node_shows_memory_and_samples(api):
    node = api.get("/api/overview")["node"]
    assert "memory" not in api.get(f"/api/nodes/{node}")
    found = api.get(f"/api/nodes/{node}?memory=true&node_stats_age=60&node_stats_incr=5")
    assert found["memory"]["total"]["rss"] > 1024 * 1024
    assert found["memory"].keys() == api.get(f"/api/nodes/{node}/memory")["memory"].keys()
    for name in ("mem_used", "fd_used", "proc_used", "io_write_bytes", "sockets_used", "disk_free"):
        assert 1 <= len(found[f"{name}_details"]["samples"]) <= 13, name
    assert found["mem_used_details"]["samples"][0]["sample"] > 1024 * 1024


def test_node_counts_syncs(api, v, channel):
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    before = api.get("/api/nodes")[0]["io_sync_count"]
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    found = api.get("/api/nodes")[0]
    assert found["io_sync_count"] > before
    assert found["io_sync_avg_time"] >= 0.0
    assert "io_sync_us" not in found


def test_samples_reach_back_to_the_start_of_recording(api):
    found = api.get("/api/overview?msg_rates_age=86400&msg_rates_incr=1800&lengths_age=3600&lengths_incr=60")
    assert found["sample_retention_policies"]["global"] == [600, 3600, 28800, 86400]
    assert found["sample_retention_policies"]["basic"] == [600, 3600]
    since_s = found["message_stats"]["publish_details"]["recorded_since"] / 1000
    for part, name, increment in (("message_stats", "publish_details", 1800), ("queue_totals", "messages_details", 60)):
        times = [each["timestamp"] / 1000 for each in found[part][name]["samples"]]
        assert all(at % increment == 0 for at in times)
        assert all(at >= since_s for at in times[1:]), "a sample is older than the record"
