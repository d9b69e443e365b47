"""/api/queues/V/Q/offsets: permissions, refusals, and replies."""

from __future__ import annotations

import pytest

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream(channel) -> str:
    channel.confirm_delivery()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    for number in range(4):
        channel.basic_publish("", "s", b"%d" % number)
    return "s"


def test_offset_is_set_listed_and_deleted(api, v, stream) -> None:
    path = f"/api/queues/{v}/{stream}/offsets"
    assert api.get(path) == []
    assert api("PUT", f"{path}/a%2Fb", {"offset": 1}).status == 204
    assert api("PUT", f"{path}/c", {"offset": "4"}).status == 204
    (first, second) = api.get(path)
    assert (first["name"], first["offset"], first["lag"]) == ("a/b", 1, 3)
    assert first["time"] > 1_700_000_000_000
    assert (second["name"], second["offset"], second["lag"]) == ("c", 4, 0)
    assert api.get(f"{path}/a%2Fb") == first
    assert api.get(f"{path}?columns=name") == [{"name": "a/b"}, {"name": "c"}]
    assert api("DELETE", f"{path}/a%2Fb").status == 204
    assert [each["name"] for each in api.get(path)] == ["c"]


def test_offsets_are_deleted_with_the_queue(api, v, stream, channel) -> None:
    path = f"/api/queues/{v}/{stream}/offsets"
    api.send_ok("PUT", f"{path}/n", {"offset": 1})
    channel.queue_delete("s")
    assert api("GET", path).status == 404
    channel.queue_declare("s", durable=True, arguments=STREAM)
    assert api.get(path) == []


@pytest.mark.parametrize("body", [{}, *({"offset": value} for value in (-1, 5, 1.5, True, None))])
def test_bad_offset_is_refused(api, v, stream, body) -> None:
    answer = api("PUT", f"/api/queues/{v}/{stream}/offsets/n", body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert api.get(f"/api/queues/{v}/{stream}/offsets") == []


@pytest.mark.parametrize("name", ["x" * 256, "a%00b", "%0A"])
def test_bad_offset_name_is_refused(api, v, stream, name) -> None:
    assert api("PUT", f"/api/queues/{v}/{stream}/offsets/{name}", {"offset": 0}).status == 400


def test_missing_queue_stream_or_offset_is_refused(api, v, stream, channel) -> None:
    channel.queue_declare("classic", durable=True)
    for method in ("GET", "PUT", "DELETE"):
        body = {"offset": 0} if method == "PUT" else None
        assert api(method, f"/api/queues/{v}/none/offsets/n", body).status == 404
        answer = api(method, f"/api/queues/{v}/classic/offsets/n", body)
        assert (answer.status, "is not a stream" in answer.json["reason"]) == (400, True)
        if method != "PUT":
            assert api(method, f"/api/queues/{v}/{stream}/offsets/n", body).status == 404


def test_offsets_need_only_read_permission(user, v, stream) -> None:
    path = f"/api/queues/{v}/{stream}/offsets"
    assert user("management", configure=".*", write=".*", read="^$")("GET", path).status == 401
    reader = user("management", configure="^$", write="^$", read="^s$")
    assert reader("PUT", f"{path}/n", {"offset": 2}).status == 204
    assert reader.get(f"{path}/n")["offset"] == 2
    assert user("", read=".*")("GET", path).status == 401
