"""The list of all exporters with their lag."""

from __future__ import annotations


def test_list_shows_every_exporter_with_its_lag(api, amqpd_vhost, v, channel) -> None:
    channel.confirm_delivery()
    channel.queue_declare("sales", durable=True)
    channel.queue_declare("declared", durable=True, arguments={"x-export": "lake"})
    channel.queue_declare("none", durable=True)
    for _ in range(5):
        channel.basic_publish("", "sales", b"x")
    for name in ("b", "a"):
        api.send_ok("PUT", f"/api/amqpd/exports/{v}/sales", {"name": name, "max_bytes": 1 << 20})
    api.send_ok("POST", f"/api/amqpd/exports/{v}/sales", {"name": "a", "offset": 3})
    found = api.get(f"/api/amqpd/exports/{v}")
    assert [(each["queue"], each["name"], each["offset"], each["lag"], each["declared"]) for each in found] == [
        ("declared", "lake", 0, 0, True),
        ("sales", "a", 3, 2, False),
        ("sales", "b", 0, 5, False),
    ]
    assert (found[1]["end_offset"], found[1]["max_bytes"], found[1]["vhost"]) == (5, 1 << 20, amqpd_vhost.name)
    page = api.get("/api/amqpd/exports?page=1&page_size=500&name=sales")
    assert [each["name"] for each in page["items"] if each["vhost"] == amqpd_vhost.name] == ["a", "b"]


def test_exporter_list_needs_vhost_access_or_monitoring(user, v, channel) -> None:
    channel.queue_declare("declared", durable=True, arguments={"x-export": "lake"})
    assert user("management")("GET", f"/api/amqpd/exports/{v}").status == 401
    assert user("management").get("/api/amqpd/exports") == []
    assert len(user("management", read="^none$").get(f"/api/amqpd/exports/{v}")) == 1
    assert len(user("monitoring").get(f"/api/amqpd/exports/{v}")) == 1
