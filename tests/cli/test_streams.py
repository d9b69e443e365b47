from __future__ import annotations

import pytest
from fake_broker import Ctl, FakeBroker

OFFSETS = "/api/queues/shop/a%2Fb/offsets"
STORED = [{"name": "billing", "offset": 7, "lag": 3, "time": 1700000000000}]
NO_STREAM = (400, {"error": "bad_request", "reason": "queue 'a/b' in vhost 'shop' is not a stream"})


def test_list_stream_offsets_prints_offset_and_lag(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", OFFSETS] = (200, STORED)
    assert ctl("list_stream_offsets", "-p", "shop", "a/b") == (
        0,
        "Listing stored offsets of queue a/b in vhost shop ...\nname\toffset\tlag\nbilling\t7\t3\n",
        "",
    )
    assert ctl("-q", "list_stream_offsets", "-p", "shop", "a/b", "time", "name").out == (
        "time\tname\n1700000000000\tbilling\n"
    )
    assert ctl("list_stream_offsets", "a/b", "nonsense").code == 64
    assert ctl("list_stream_offsets").code == 64


def test_set_stream_offset_sends_number(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", f"{OFFSETS}/%C3%BC"] = (204, None)
    result = ctl("set_stream_offset", "-p", "shop", "a/b", "ü", "41")
    assert (result.code, result.err) == (0, "")
    assert broker.requests[0].body == {"offset": 41}


@pytest.mark.parametrize("text", ["-1", "first", "1.5", "", "9" * 20])
def test_bad_offset_is_a_usage_error(broker: FakeBroker, ctl: Ctl, text: str) -> None:
    assert ctl("set_stream_offset", "q", "name", "--", text).code == 64
    assert broker.requests == []


def test_delete_stream_offset(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["DELETE", f"{OFFSETS}/billing"] = (204, None)
    assert ctl("-q", "delete_stream_offset", "-p", "shop", "a/b", "billing") == (0, "", "")


@pytest.mark.parametrize(
    ("answer", "code"), [(NO_STREAM, 64), ((404, {"error": "Object Not Found", "reason": "no queue"}), 69)]
)
def test_refusal_sets_exit_code(broker: FakeBroker, ctl: Ctl, answer: tuple[int, dict[str, str]], code: int) -> None:
    for method, path, line in (
        ("GET", OFFSETS, ("list_stream_offsets", "a/b")),
        ("PUT", f"{OFFSETS}/n", ("set_stream_offset", "a/b", "n", "1")),
        ("DELETE", f"{OFFSETS}/n", ("delete_stream_offset", "a/b", "n")),
    ):
        broker.answers[method, path] = answer
        assert ctl("-q", "-p", "shop", *line) == (code, "", f"Error:\n{answer[1]['reason']}\n")
