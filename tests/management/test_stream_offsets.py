"""/api/queues/V/Q/offsets: who may, what is refused, what is answered."""

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


def test_set_shown_and_deleted(api, v, stream) -> None:
    place = f"/api/queues/{v}/{stream}/offsets"
    assert api.get(place) == []
    assert api("PUT", f"{place}/a%2Fb", {"offset": 1}).status == 204
    assert api("PUT", f"{place}/c", {"offset": "4"}).status == 204
    (first, second) = api.get(place)
    assert (first["name"], first["offset"], first["lag"]) == ("a/b", 1, 3)
    assert first["time"] > 1_700_000_000_000
    assert (second["name"], second["offset"], second["lag"]) == ("c", 4, 0)
    assert api.get(f"{place}/a%2Fb") == first
    assert api.get(f"{place}?columns=name") == [{"name": "a/b"}, {"name": "c"}]
    assert api("DELETE", f"{place}/a%2Fb").status == 204
    assert [each["name"] for each in api.get(place)] == ["c"]


def test_they_go_with_the_queue(api, v, stream, channel) -> None:
    place = f"/api/queues/{v}/{stream}/offsets"
    api.done("PUT", f"{place}/n", {"offset": 1})
    channel.queue_delete("s")
    assert api("GET", place).status == 404
    channel.queue_declare("s", durable=True, arguments=STREAM)
    assert api.get(place) == []


@pytest.mark.parametrize("body", [{}, *({"offset": value} for value in (-1, 5, 1.5, True, None))])
def test_bad_offsets(api, v, stream, body) -> None:
    answer = api("PUT", f"/api/queues/{v}/{stream}/offsets/n", body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert api.get(f"/api/queues/{v}/{stream}/offsets") == []


@pytest.mark.parametrize("name", ["x" * 256, "a%00b", "%0A"])
def test_bad_names(api, v, stream, name) -> None:
    assert api("PUT", f"/api/queues/{v}/{stream}/offsets/{name}", {"offset": 0}).status == 400


def test_what_is_not_there(api, v, stream, channel) -> None:
    channel.queue_declare("classic", durable=True)
    for method in ("GET", "PUT", "DELETE"):
        body = {"offset": 0} if method == "PUT" else None
        assert api(method, f"/api/queues/{v}/none/offsets/n", body).status == 404
        answer = api(method, f"/api/queues/{v}/classic/offsets/n", body)
        assert (answer.status, "is not a stream" in answer.json["reason"]) == (400, True)
        if method != "PUT":
            assert api(method, f"/api/queues/{v}/{stream}/offsets/n", body).status == 404


def test_it_takes_the_right_to_read(user, v, stream) -> None:
    place = f"/api/queues/{v}/{stream}/offsets"
    assert user("management", configure=".*", write=".*", read="^$")("GET", place).status == 401
    reader = user("management", configure="^$", write="^$", read="^s$")
    assert reader("PUT", f"{place}/n", {"offset": 2}).status == 204
    assert reader.get(f"{place}/n")["offset"] == 2
    assert user("", read=".*")("GET", place).status == 401
