"""Rates and samples: the arithmetic, in the test process, and the answers of a broker."""

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


class TestRequestedRanges:
    def test_range_needs_age_and_increment(self):
        found = requested_ranges({"msg_rates_age": "60", "msg_rates_incr": "5", "lengths_age": "60"})
        assert found == (SampleRange(60, 5), None, None, None)
        assert requested_ranges({"page": "1"}) is NO_SPANS

    @pytest.mark.parametrize(
        ("age", "increment"), [("x", "5"), ("60", "0"), ("-1", "5"), ("86400", "1"), ("1" * 30, "5")]
    )
    def test_bad_range_is_refused(self, age, increment):
        with pytest.raises(BadRequest):
            requested_ranges({"msg_rates_age": age, "msg_rates_incr": increment})


def test_too_many_samples_in_a_list_are_refused():
    """A list is built in memory before it is sent: 10,000 queues with 1,000 samples each would be 5 GB."""
    query = {"lengths_age": "1000", "lengths_incr": "1"}
    check_sample_count(query, 900)
    check_sample_count({}, 10**9)
    check_sample_count({"lengths_age": "60", "lengths_incr": "5", "msg_rates_age": "60", "msg_rates_incr": "5"}, 30_000)
    with pytest.raises(BadRequest, match="1001 samples of each of 1000 are too many: ask for a page"):
        check_sample_count(query, 1000)


def seconds_and_counts(moments):
    return [(at // 1000, counts[0]) for at, counts in moments]


class TestHistory:
    def test_samples_are_newest_first_and_end_at_the_first_record(self):
        history = History(1000.0, 0, (10, 0))
        history.add(1005.0, (20, 0))
        history.add(1010.0, (50, 0))
        found = details(history.points(SampleRange(20, 5), 1012.0, (70, 0)), 0, history.since)
        moments = [(each["timestamp"], each["sample"]) for each in found["samples"]]
        assert moments == [(1010000, 70), (1005000, 20), (1000000, 10)]
        assert found["avg_rate"] == (70 - 10) / 10
        assert found["avg"] == sum(sample for _, sample in moments) / 3
        assert found["recorded_since"] == 1000000

    def test_first_request_has_one_sample(self):
        found = details(History(1003.0, 0, (10,)).points(SampleRange(600, 5), 1003.0, (10,)), 0, 1003.0)
        assert found["samples"] == [{"sample": 10, "timestamp": 1000000}]
        assert found["avg_rate"] == 0.0 and found["avg"] == 10

    def test_distant_sweeps_are_interpolated(self):
        history = History(1000.0, 0, (0,))
        history.add(1060.0, (600,))
        found = seconds_and_counts(history.points(SampleRange(60, 5), 1060.0, (600,)))
        assert found == [(1060 - 5 * step, 600 - 50 * step) for step in range(13)]

    def test_samples_after_the_last_sweep_are_interpolated(self):
        history = History(1000.0, 0, (0,))
        assert seconds_and_counts(history.points(SampleRange(20, 5), 1021.0, (210,))) == [
            (1020, 210),
            (1015, 150),
            (1010, 100),
            (1005, 50),
            (1000, 0),
        ]

    def test_time_without_sweeps_is_a_gap(self):
        history = History(1000.0, 0, (0,))
        history.add(1005.0, (50,))
        history.add(1500.0, (60,))
        history.add(1505.0, (110,))
        assert seconds_and_counts(history.points(SampleRange(510, 5), 1510.0, (160,))) == [
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
    def test_samples_are_accurate_to_one_increment(self, steps, span):
        """The counter equals the time, so each sample shows its own moment."""
        history = History(0.0, 0, (0,), steps)
        end = 2 * 86400
        for moment in range(5, end + 1, 5):
            history.add(float(moment), (moment,))
        moments = history.points(span, float(end), (end,))
        assert len(moments) == span.age // span.increment + 1
        assert all(0 <= at // 1000 - counts[0] <= span.increment for at, counts in moments)

    def test_a_day_in_half_hour_samples(self):
        history = History(0.0, 0, (0,), GLOBAL)
        end = 2 * 86400
        for moment in range(5, end + 1, 5):
            history.add(float(moment), (moment,))
        moments = history.points(SampleRange(86400, 1800), float(end), (end,))
        assert [counts[0] for _, counts in moments] == list(range(end, end - 86401, -1800))

    @pytest.mark.parametrize(("steps", "points_max"), [(BASIC, 182), (GLOBAL, 280)])
    def test_history_size_is_bounded(self, steps, points_max):
        history = History(0.0, 0, (0,) * 11, steps)
        for moment in range(5, 3 * 86400, 5):
            history.add(float(moment), (moment,) * 11)
        assert sum(len(track.times) for track in history._tracks) <= points_max
        assert all(len(track._values) == 11 * len(track.times) for track in history._tracks)


def test_cluster_sum_has_only_samples_of_all_nodes():
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
    def busy_vhost(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "q", b"12345")
        channel.basic_publish("", "nowhere", b"lost")
        channel.basic_get("q", auto_ack=False)
        channel.queue_declare("empty")
        channel.basic_get("empty")
        return v

    def test_queue_statistics_have_samples(self, api, busy_vhost):
        found = api.get(f"/api/queues/{busy_vhost}/q?{AGES}")
        published = found["message_stats"]["publish_details"]
        (sample,) = published["samples"]
        assert sample["sample"] == found["message_stats"]["publish"] == 3
        assert 0 <= published["recorded_since"] - sample["timestamp"] < 5000, "the record begins now"
        assert len(found["message_stats"]["deliver_get_details"]["samples"]) == 1
        assert found["messages_ready_details"]["samples"][0].keys() == {"sample", "timestamp"}
        assert api.get(f"/api/queues/{busy_vhost}/empty")["message_stats"]["get_empty"] == 1
        assert "samples" not in api.get(f"/api/queues/{busy_vhost}/q")["message_stats"]["publish_details"]

    def test_vhost_statistics_keep_counts_of_deleted_queue_and_channel(self, api, busy_vhost, channel):
        before = api.get(f"/api/vhosts/{busy_vhost}?{AGES}")
        stats = before["message_stats"]
        assert (stats["publish"], stats["confirm"], stats["get"], stats["get_empty"]) == (4, 4, 1, 1)
        assert (stats["drop_unroutable"], stats["return_unroutable"]) == (1, 0)
        assert (before["messages"], before["messages_ready"], before["messages_unacknowledged"]) == (3, 2, 1)
        assert 1 <= len(before["recv_oct_details"]["samples"]) == len(stats["publish_details"]["samples"]) <= 5
        channel.queue_delete("q")
        channel.close()
        after = api.get(f"/api/vhosts/{busy_vhost}")["message_stats"]
        assert (after["publish"], after["confirm"], after["get"]) == (4, 4, 1)

    def test_returned_and_dropped_messages_are_counted_separately(self, api, v, channel):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
        channel.basic_publish("", "nowhere", b"")
        channel.queue_declare("after")
        stats = api.get(f"/api/vhosts/{v}")["message_stats"]
        assert (stats["return_unroutable"], stats["drop_unroutable"]) == (1, 1)

    def test_overview_has_samples_of_all_parts(self, api, busy_vhost):
        found = api.get(f"/api/overview?{AGES}")
        for part in ("message_stats", "churn_rates", "queue_totals"):
            details = {name: item for name, item in found[part].items() if name.endswith("_details")}
            assert details
            for name, item in details.items():
                assert 1 <= len(item["samples"]) <= 5 and item["recorded_since"] > 0, name

    def test_bad_range_is_refused_by_overview_and_vhosts(self, api, v):
        for path in ("/api/overview", "/api/vhosts", f"/api/vhosts/{v}"):
            assert api("GET", f"{path}?msg_rates_age=x&msg_rates_incr=5").status == 400, path


class TestLists:
    def test_disable_stats_leaves_out_statistics(self, api, v, channel):
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"1")
        channel.queue_declare("q", passive=True)
        (without_stats,) = api.get(f"/api/queues/{v}?disable_stats=true")
        assert "messages" not in without_stats
        assert "message_stats" not in without_stats
        (totals,) = api.get(f"/api/queues/{v}?disable_stats=true&enable_queue_totals=true")
        assert {**without_stats, "messages": 1, "messages_ready": 1, "messages_unacknowledged": 0} == totals

    def test_members_of_quorum_queue_and_stream_are_this_node(self, api, v):
        node = api.get("/api/overview")["node"]
        api.send_ok("PUT", f"/api/queues/{v}/votes", {"arguments": {"x-queue-type": "quorum"}})
        api.send_ok("PUT", f"/api/queues/{v}/events", {"arguments": {"x-queue-type": "stream"}})
        votes, events = (api.get(f"/api/queues/{v}/{name}") for name in ("votes", "events"))
        assert (votes["leader"], votes["members"], votes["online"]) == (node, [node], [node])
        assert (events["members"], events["online"]) == ([node], [node])


@pytest.mark.parametrize(("count", "interval_s"), [(1, 5.0), (50_000, 10.0), (10**6, 60.0)])
def test_idle_sweep_interval_depends_on_object_count(rates_of, count, interval_s):
    """Without requests, sweeps are as frequent as with requests unless there are very many objects."""
    rates, queue = rates_of
    rates._object_count = count
    later = time.monotonic() + IDLE_AFTER_S + 1
    rates._swept_at = later
    assert not rates.is_sweep_due(later + interval_s - 1)
    assert rates.is_sweep_due(later + interval_s)
    rates.utilisation(queue)
    rates._asked_at = later
    assert rates.is_sweep_due(later + 1), "after a request sweeps are frequent"


def test_history_covers_time_without_requests(rates_of, monkeypatch):
    """After ten minutes of 10 messages a second, the first request gets no spikes and no samples before the start."""
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
    """Fake for the `time` module of `amqpd.management.stats`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(rates_module, "time", self)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def test_stream_consumer_that_keeps_up_has_full_capacity(rates_of, monkeypatch):
    rates, stream = rates_of
    stream.rules.stream = True
    stream.ready_count = 10  # a stream keeps its messages
    stream.store = SimpleNamespace(next_offset=10)
    reader = SimpleNamespace(offset=10)
    monkeypatch.setattr(rates_module, "StreamReader", SimpleNamespace)
    stream.consumers = [SimpleNamespace(reader=reader)]
    asyncio.run(rates.sweep())
    stream.store.next_offset = 15  # 5 messages are in flight
    asyncio.run(rates.sweep())
    assert rates.utilisation(stream) == 1.0
    stream.store.next_offset = 20
    asyncio.run(rates.sweep())
    assert rates.utilisation(stream) < 1.0


def test_idle_queue_shows_idle_since(rates_of):
    rates, queue = rates_of
    assert rates.idle_since(queue) is None
    asyncio.run(rates.sweep())
    asyncio.run(rates.sweep())
    since = rates.idle_since(queue)
    assert since is not None
    queue.published_count += 1
    asyncio.run(rates.sweep())
    assert rates.idle_since(queue) is None


def test_sweep_without_free_descriptor_is_logged_without_traceback(rates_of, monkeypatch, caplog, tmp_path):
    rates, _ = rates_of
    monkeypatch.setattr(rates_module, "INTERVAL_S", 0)
    monkeypatch.setattr(rates_module, "_RESIDENT", tmp_path / "cannot be opened")

    async def run():
        logged = asyncio.Event()
        rates_module.log.addFilter(lambda _: logged.set() or True)
        rates.start()
        async with asyncio.timeout(60):
            await logged.wait()
        rates.stop()
        rates_module.log.filters.clear()

    asyncio.run(run())
    assert "a sweep failed" in caplog.text and caplog.records[0].exc_info is None


@pytest.fixture
def rates_of(tmp_path, monkeypatch):
    """Rates over a catalogue with one fake queue that has only counters."""
    from amqpd.broker.stats import ChannelTotals, EndedTotals, VhostCounts
    from amqpd.management.stats import Rates
    from amqpd.storage.fsync_thread import SyncTimes

    class Queue(SimpleNamespace):
        __hash__ = object.__hash__

    def counts(queue):
        """Replace the compiled `queue_counts`, which accepts only its own class."""
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
