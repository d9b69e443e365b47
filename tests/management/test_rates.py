"""Rates and samples of the last minutes: the arithmetic, in the test's own process, and what a broker answers."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from amqpd.broker.queues.stream_reader import StreamReader
from amqpd.management.call import BadRequest
from amqpd.management.rates import IDLE_AFTER_S, IDLE_INTERVAL_S
from amqpd.management.samples import BASIC, GLOBAL, NO_SPANS, History, Span, details
from amqpd.management.spans import check_list, spans


class TestSpans:
    def test_are_asked_for_in_pairs(self):
        found = spans({"msg_rates_age": "60", "msg_rates_incr": "5", "lengths_age": "60"})
        assert found == (Span(60, 5), None, None, None)
        assert spans({"page": "1"}) is NO_SPANS

    @pytest.mark.parametrize(
        ("age", "increment"), [("x", "5"), ("60", "0"), ("-1", "5"), ("86400", "1"), ("1" * 30, "5")]
    )
    def test_that_make_no_sense(self, age, increment):
        with pytest.raises(BadRequest):
            spans({"msg_rates_age": age, "msg_rates_incr": increment})


def test_a_list_has_only_so_many_samples():
    """All of a list stands in memory before it goes: 10,000 queues with 1,000 samples each would be 5 GB."""
    query = {"lengths_age": "1000", "lengths_incr": "1"}
    check_list(query, 900)
    check_list({}, 10**9)
    check_list({"lengths_age": "60", "lengths_incr": "5", "msg_rates_age": "60", "msg_rates_incr": "5"}, 30_000)
    with pytest.raises(BadRequest, match="1001 samples of each of 1000 are too many: ask for a page"):
        check_list(query, 1000)


class TestHistory:
    def test_newest_first_and_the_oldest_before_all(self):
        history = History(1000.0, 0, (10, 0))
        history.add(1005.0, (20, 0))
        history.add(1010.0, (50, 0))
        found = details(history.moments(Span(20, 5), 1012.0, (70, 0)), 0, Span(20, 5))
        moments = [(each["timestamp"], each["sample"]) for each in found["samples"]]
        assert moments == [(1010000, 70), (1005000, 20), (1000000, 10), (995000, 10), (990000, 10)]
        assert found["avg_rate"] == (70 - 10) / 20
        assert found["avg"] == sum(sample for _, sample in moments) / 5

    @pytest.mark.parametrize(
        ("steps", "span"), [(BASIC, Span(600, 5)), (BASIC, Span(3600, 60)), (GLOBAL, Span(28800, 600))]
    )
    def test_the_longer_ago_the_coarser(self, steps, span):
        """A counter that says when it was: each sample is of its moment, to within a step."""
        history = History(0.0, 0, (0,), steps)
        end = 2 * 86400
        for moment in range(5, end + 1, 5):
            history.add(float(moment), (moment,))
        moments = history.moments(span, float(end), (end,))
        assert len(moments) == span.age // span.increment + 1
        assert all(0 <= at // 1000 - counts[0] <= span.increment for at, counts in moments)

    def test_a_day_at_half_hours(self):
        history = History(0.0, 0, (0,), GLOBAL)
        end = 2 * 86400
        for moment in range(5, end + 1, 5):
            history.add(float(moment), (moment,))
        moments = history.moments(Span(86400, 1800), float(end), (end,))
        assert [counts[0] for _, counts in moments] == list(range(end, end - 86401, -1800))

    @pytest.mark.parametrize(("steps", "most"), [(BASIC, 182), (GLOBAL, 280)])
    def test_does_not_grow_for_ever(self, steps, most):
        history = History(0.0, 0, (0,) * 11, steps)
        for moment in range(5, 3 * 86400, 5):
            history.add(float(moment), (moment,) * 11)
        assert history.size_bytes() <= most * 8 * 12

    def test_a_sweep_that_comes_late_leaves_the_last_one_standing(self):
        history = History(0.0, 0, (1,))
        history.add(60.0, (2,))
        moments = history.moments(Span(60, 20), 60.0, (2,))
        assert [counts[0] for _, counts in moments] == [2, 1, 1, 1]


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
        assert len(published["samples"]) == 5
        assert found["message_stats"]["publish"] == 3
        assert len(found["message_stats"]["deliver_get_details"]["samples"]) == 5
        assert found["messages_ready_details"]["samples"][0].keys() == {"sample", "timestamp"}
        assert api.get(f"/api/queues/{busy}/empty")["message_stats"]["get_empty"] == 1
        assert "samples" not in api.get(f"/api/queues/{busy}/q")["message_stats"]["publish_details"]

    def test_a_vhost_keeps_what_ended_in_it(self, api, busy, channel):
        before = api.get(f"/api/vhosts/{busy}?{AGES}")
        stats = before["message_stats"]
        assert (stats["publish"], stats["confirm"], stats["get"], stats["get_empty"]) == (4, 4, 1, 1)
        assert (stats["drop_unroutable"], stats["return_unroutable"]) == (1, 0)
        assert (before["messages"], before["messages_ready"], before["messages_unacknowledged"]) == (3, 2, 1)
        assert len(before["recv_oct_details"]["samples"]) == len(stats["publish_details"]["samples"]) == 5
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
                assert len(item["samples"]) == 5, name

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


def test_sweeps_are_rare_while_nobody_asks(rates_of):
    rates, queue = rates_of
    asyncio.run(rates.sweep())
    now = time.monotonic()
    assert rates.due(now)
    later = now + IDLE_AFTER_S + 1
    rates._swept_at = later - 5
    assert not rates.due(later)
    assert rates.due(later + IDLE_INTERVAL_S)
    rates._asked_at = later - IDLE_AFTER_S
    rates.utilisation(queue)
    assert rates.due(time.monotonic() + IDLE_AFTER_S - 1)


def test_consumers_of_a_stream_that_keep_up_have_capacity(rates_of):
    rates, stream = rates_of
    stream.rules.stream = True
    stream.ready_count = 10  # a stream keeps its messages
    stream.store = SimpleNamespace(next_offset=10)
    reader = StreamReader.__new__(StreamReader)
    reader.offset = 10
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
def rates_of(tmp_path):
    """Rates over a catalogue of one queue, of which only counters are asked."""
    from amqpd.broker.counters import ChannelTotals, Ended, VhostCounts
    from amqpd.management.rates import Rates
    from amqpd.storage.commit.sync_times import SyncTimes

    class Queue(SimpleNamespace):
        __hash__ = object.__hash__

    names = ("published", "delivered", "delivered_no_ack", "get", "get_no_ack", "redelivered", "acked", "get_empty")
    counters = {f"{name}_count": 0 for name in (*names, "ready", "unacked", "delayed")}
    queue = Queue(vhost_name="v", kind="classic", consumers=[], rules=SimpleNamespace(stream=False), **counters)
    vhost = Queue(name="v", queues={"q": queue}, exchanges={}, counts=VhostCounts(), unroutable_count=0)
    churn = dict.fromkeys(("queue_declared_count", "queue_created_count", "queue_deleted_count"), 0)
    broker = SimpleNamespace(
        vhosts={"v": vhost},
        channels=ChannelTotals(),
        catalogue=SimpleNamespace(ended_queues=Ended(), **churn),
        settings=SimpleNamespace(data_dir=tmp_path),
        storage=SimpleNamespace(sync_times=SyncTimes()),
    )

    class Connections(list):
        opened_count = closed_count = 0
        by_name = ()

    return Rates(broker, Connections()), queue
