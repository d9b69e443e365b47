"""Rates and samples of the last minutes: the arithmetic, in the test's own process, and what a broker answers."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.cluster.api_gateway import _add
from amqpd.management import stats as rates_module
from amqpd.management.listing import check_sample_count, requested_ranges
from amqpd.management.request import BadRequest
from amqpd.management.samples import BASIC, GLOBAL, NO_SPANS, History, SampleRange, SampleRanges, details
from amqpd.management.stats import IDLE_AFTER_S, QUEUE


class TestSpans:
    def test_are_asked_for_in_pairs(self):
        found = requested_ranges({"msg_rates_age": "60", "msg_rates_incr": "5", "lengths_age": "60"})
        assert found == (SampleRange(60, 5), None, None, None)
        assert requested_ranges({"page": "1"}) is NO_SPANS

    @pytest.mark.parametrize(
        ("age", "increment"), [("x", "5"), ("60", "0"), ("-1", "5"), ("86400", "1"), ("1" * 30, "5")]
    )
    def test_that_make_no_sense(self, age, increment):
        with pytest.raises(BadRequest):
            requested_ranges({"msg_rates_age": age, "msg_rates_incr": increment})


def test_a_list_has_only_so_many_samples():
    """All of a list stands in memory before it goes: 10,000 queues with 1,000 samples each would be 5 GB."""
    query = {"lengths_age": "1000", "lengths_incr": "1"}
    check_sample_count(query, 900)
    check_sample_count({}, 10**9)
    check_sample_count({"lengths_age": "60", "lengths_incr": "5", "msg_rates_age": "60", "msg_rates_incr": "5"}, 30_000)
    with pytest.raises(BadRequest, match="1001 samples of each of 1000 are too many: ask for a page"):
        check_sample_count(query, 1000)


def shown(moments):
    return [(at // 1000, counts[0]) for at, counts in moments]


class TestHistory:
    def test_newest_first_and_nothing_before_the_first(self):
        history = History(1000.0, 0, (10, 0))
        history.add(1005.0, (20, 0))
        history.add(1010.0, (50, 0))
        found = details(history.points(SampleRange(20, 5), 1012.0, (70, 0)), 0, history.since)
        moments = [(each["timestamp"], each["sample"]) for each in found["samples"]]
        assert moments == [(1010000, 70), (1005000, 20), (1000000, 10)]
        assert found["avg_rate"] == (70 - 10) / 10
        assert found["avg"] == sum(sample for _, sample in moments) / 3
        assert found["recorded_since"] == 1000000

    def test_the_first_request_has_no_past(self):
        found = details(History(1003.0, 0, (10,)).points(SampleRange(600, 5), 1003.0, (10,)), 0, 1003.0)
        assert found["samples"] == [{"sample": 10, "timestamp": 1000000}]
        assert found["avg_rate"] == 0.0 and found["avg"] == 10

    def test_sweeps_that_are_far_apart_make_a_line_and_no_steps(self):
        history = History(1000.0, 0, (0,))
        history.add(1060.0, (600,))
        found = shown(history.points(SampleRange(60, 5), 1060.0, (600,)))
        assert found == [(1060 - 5 * step, 600 - 50 * step) for step in range(13)]

    def test_it_goes_on_from_the_last_sweep_to_now(self):
        history = History(1000.0, 0, (0,))
        assert shown(history.points(SampleRange(20, 5), 1021.0, (210,))) == [
            (1020, 210),
            (1015, 150),
            (1010, 100),
            (1005, 50),
            (1000, 0),
        ]

    def test_where_nothing_was_sampled_is_a_gap(self):
        history = History(1000.0, 0, (0,))
        history.add(1005.0, (50,))
        history.add(1500.0, (60,))
        history.add(1505.0, (110,))
        assert shown(history.points(SampleRange(510, 5), 1510.0, (160,))) == [
            (1510, 160),
            (1505, 110),
            (1500, 60),
            (1005, 50),
            (1000, 0),
        ]

    @pytest.mark.parametrize(
        ("steps", "span"),
        [(BASIC, SampleRange(600, 5)), (BASIC, SampleRange(3600, 60)), (GLOBAL, SampleRange(28800, 600))],
    )
    def test_the_longer_ago_the_coarser(self, steps, span):
        """A counter that says when it was: each sample is of its moment, to within a step."""
        history = History(0.0, 0, (0,), steps)
        end = 2 * 86400
        for moment in range(5, end + 1, 5):
            history.add(float(moment), (moment,))
        moments = history.points(span, float(end), (end,))
        assert len(moments) == span.age // span.increment + 1
        assert all(0 <= at // 1000 - counts[0] <= span.increment for at, counts in moments)

    def test_a_day_at_half_hours(self):
        history = History(0.0, 0, (0,), GLOBAL)
        end = 2 * 86400
        for moment in range(5, end + 1, 5):
            history.add(float(moment), (moment,))
        moments = history.points(SampleRange(86400, 1800), float(end), (end,))
        assert [counts[0] for _, counts in moments] == list(range(end, end - 86401, -1800))

    @pytest.mark.parametrize(("steps", "most"), [(BASIC, 182), (GLOBAL, 280)])
    def test_does_not_grow_for_ever(self, steps, most):
        history = History(0.0, 0, (0,) * 11, steps)
        for moment in range(5, 3 * 86400, 5):
            history.add(float(moment), (moment,) * 11)
        assert history.size_bytes() <= most * 8 * 12


def test_of_a_cluster_only_what_all_nodes_have_recorded():
    """A node that started later adds no step to the sum."""
    found: dict[str, Any] = {}
    for counts, since in (({20: 7, 15: 5, 10: 4}, 9000), ({20: 3, 15: 1}, 14000)):
        samples = [{"sample": count, "timestamp": at} for at, count in counts.items()]
        _add(found, {"publish_details": {"rate": 1.0, "samples": samples, "recorded_since": since}})
    samples = [{"sample": 10, "timestamp": 20}, {"sample": 6, "timestamp": 15}]
    assert found == {"publish_details": {"rate": 2.0, "samples": samples, "recorded_since": 14000}}


AGES = "msg_rates_age=20&msg_rates_incr=5&lengths_age=20&lengths_incr=5&data_rates_age=20&data_rates_incr=5"


class TestAnswers:
    @pytest.fixture
    def busy(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "q", b"12345")
        channel.basic_publish("", "nowhere", b"lost")
        channel.basic_get("q", auto_ack=False)
        channel.queue_declare("empty")
        channel.basic_get("empty")
        return v

    def test_samples_of_a_queue(self, api, busy):
        found = api.get(f"/api/queues/{busy}/q?{AGES}")
        published = found["message_stats"]["publish_details"]
        (sample,) = published["samples"]
        assert sample["sample"] == found["message_stats"]["publish"] == 3
        assert 0 <= published["recorded_since"] - sample["timestamp"] < 5000, "from now on"
        assert len(found["message_stats"]["deliver_get_details"]["samples"]) == 1
        assert found["messages_ready_details"]["samples"][0].keys() == {"sample", "timestamp"}
        assert api.get(f"/api/queues/{busy}/empty")["message_stats"]["get_empty"] == 1
        assert "samples" not in api.get(f"/api/queues/{busy}/q")["message_stats"]["publish_details"]

    def test_a_vhost_keeps_what_ended_in_it(self, api, busy, channel):
        before = api.get(f"/api/vhosts/{busy}?{AGES}")
        stats = before["message_stats"]
        assert (stats["publish"], stats["confirm"], stats["get"], stats["get_empty"]) == (4, 4, 1, 1)
        assert (stats["drop_unroutable"], stats["return_unroutable"]) == (1, 0)
        assert (before["messages"], before["messages_ready"], before["messages_unacknowledged"]) == (3, 2, 1)
        assert 1 <= len(before["recv_oct_details"]["samples"]) == len(stats["publish_details"]["samples"]) <= 5
        channel.queue_delete("q")
        channel.close()
        after = api.get(f"/api/vhosts/{busy}")["message_stats"]
        assert (after["publish"], after["confirm"], after["get"]) == (4, 4, 1)

    def test_returns_are_counted_apart(self, api, v, channel):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
        channel.basic_publish("", "nowhere", b"")
        channel.queue_declare("after")
        stats = api.get(f"/api/vhosts/{v}")["message_stats"]
        assert (stats["return_unroutable"], stats["drop_unroutable"]) == (1, 1)

    def test_the_overview_has_all_of_it(self, api, busy):
        found = api.get(f"/api/overview?{AGES}")
        for part in ("message_stats", "churn_rates", "queue_totals"):
            details = {name: item for name, item in found[part].items() if name.endswith("_details")}
            assert details
            for name, item in details.items():
                assert 1 <= len(item["samples"]) <= 5 and item["recorded_since"] > 0, name

    def test_wrong_spans_are_refused(self, api, v):
        for path in ("/api/overview", "/api/vhosts", f"/api/vhosts/{v}"):
            assert api("GET", f"{path}?msg_rates_age=x&msg_rates_incr=5").status == 400, path


class TestLists:
    def test_without_statistics(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"1")
        channel.queue_declare("q", passive=True)
        (bare,) = api.get(f"/api/queues/{v}?disable_stats=true")
        assert "messages" not in bare
        assert "message_stats" not in bare
        (totals,) = api.get(f"/api/queues/{v}?disable_stats=true&enable_queue_totals=true")
        assert {**bare, "messages": 1, "messages_ready": 1, "messages_unacknowledged": 0} == totals

    def test_copies_are_here(self, api, v):
        node = api.get("/api/overview")["node"]
        api.done("PUT", f"/api/queues/{v}/votes", {"arguments": {"x-queue-type": "quorum"}})
        api.done("PUT", f"/api/queues/{v}/events", {"arguments": {"x-queue-type": "stream"}})
        votes, events = (api.get(f"/api/queues/{v}/{name}") for name in ("votes", "events"))
        assert (votes["leader"], votes["members"], votes["online"]) == (node, [node], [node])
        assert (events["members"], events["online"]) == ([node], [node])


@pytest.mark.parametrize(("count", "interval_s"), [(1, 5.0), (50_000, 10.0), (10**6, 60.0)])
def test_sweeps_come_also_while_no_request_does(rates_of, count, interval_s):
    """As often as while requests come, unless there are very many objects."""
    rates, queue = rates_of
    rates._object_count = count
    later = time.monotonic() + IDLE_AFTER_S + 1
    rates._swept_at = later
    assert not rates.is_sweep_due(later + interval_s - 1)
    assert rates.is_sweep_due(later + interval_s)
    rates.utilisation(queue)
    rates._asked_at = later
    assert rates.is_sweep_due(later + 1), "a request has come"


def test_what_happened_while_no_request_came_is_in_the_history(rates_of, monkeypatch):
    """Ten minutes of 10 messages a second, and then the first request: no spikes, and no past before the start."""
    rates, queue = rates_of
    clock = Clock(monkeypatch)
    for second in range(0, 600, 5):
        clock.now = float(second)
        queue.published_count = 10 * second
        asyncio.run(rates.sweep())
    clock.now, queue.published_count = 600.0, 6000
    found = asyncio.run(rates.totals(QUEUE, SampleRanges(SampleRange(1200, 5), None, None)))["publish_details"]
    samples = [each["sample"] for each in found["samples"]]
    assert samples == list(range(6000, -1, -50))
    assert found["recorded_since"] == 0


class Clock:
    """Both clocks of `rates`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(rates_module, "time", self)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def test_consumers_of_a_stream_that_keep_up_have_capacity(rates_of, monkeypatch):
    rates, stream = rates_of
    stream.rules.stream = True
    stream.ready_count = 10  # a stream keeps its messages
    stream.store = SimpleNamespace(next_offset=10)
    reader = SimpleNamespace(offset=10)
    monkeypatch.setattr(rates_module, "StreamReader", SimpleNamespace)
    stream.consumers = [SimpleNamespace(reader=reader)]
    asyncio.run(rates.sweep())
    stream.store.next_offset = 15  # on their way
    asyncio.run(rates.sweep())
    assert rates.utilisation(stream) == 1.0
    stream.store.next_offset = 20
    asyncio.run(rates.sweep())
    assert rates.utilisation(stream) < 1.0


def test_an_idle_queue_says_since_when(rates_of):
    rates, queue = rates_of
    assert rates.idle_since(queue) is None
    asyncio.run(rates.sweep())
    asyncio.run(rates.sweep())
    since = rates.idle_since(queue)
    assert since is not None
    queue.published_count += 1
    asyncio.run(rates.sweep())
    assert rates.idle_since(queue) is None


@pytest.fixture
def rates_of(tmp_path, monkeypatch):
    """Rates over a catalogue of one queue, of which only counters are asked."""
    from amqpd.broker.stats import ChannelTotals, EndedTotals, VhostCounts
    from amqpd.management.stats import Rates
    from amqpd.storage.fsync_thread import SyncTimes

    class Queue(SimpleNamespace):
        __hash__ = object.__hash__

    def counts(queue):
        """The compiled `queue_counts` takes no other class than its own."""
        return tuple(getattr(queue, f"{name}_count") for name in names)

    monkeypatch.setattr(rates_module, "queue_counts", counts)
    names = ("published", "delivered", "delivered_no_ack", "get", "get_no_ack", "redelivered", "acked", "get_empty")
    counters = {f"{name}_count": 0 for name in (*names, "ready", "unacked", "delayed")}
    queue = Queue(vhost_name="v", kind="classic", consumers=[], rules=SimpleNamespace(stream=False), **counters)
    vhost = Queue(name="v", queues={"q": queue}, exchanges={}, counts=VhostCounts(), unroutable_count=0)
    churn = dict.fromkeys(("queue_declared_count", "queue_created_count", "queue_deleted_count"), 0)
    broker = SimpleNamespace(
        vhosts={"v": vhost},
        channels=ChannelTotals(),
        catalogue=SimpleNamespace(ended_queues=EndedTotals(), **churn),
        settings=SimpleNamespace(data_dir=tmp_path),
        storage=SimpleNamespace(sync_times=SyncTimes()),
    )

    class Connections(list):
        opened_count = closed_count = 0
        by_name = ()

    return Rates(broker, Connections()), queue
