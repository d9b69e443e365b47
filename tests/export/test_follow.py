"""Exports with --follow: few files, messages that wait for more, restarts and kills."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpd.cli.main import run as run_command
from amqpd.storage.export import job as job_module
from amqpd.storage.export.engine import PyarrowEngine, spread
from amqpd.storage.export.files import BrokerUnreachable
from amqpd.storage.export.job import BatchTrigger, ExportJob, ExportOptions
from amqpd.storage.export.plan import LogPartition


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_batch_waits_for_bytes_or_age():
    clock = Clock()
    trigger = BatchTrigger(1000, 60.0, clock)
    assert trigger.wait_s(1, is_full=False) == 0.0  # what waits at the start of the run
    trigger.reset()
    assert trigger.wait_s(999, is_full=False) == 60.0
    assert trigger.wait_s(1000, is_full=False) == 0.0
    assert trigger.wait_s(1, is_full=True) == 0.0
    clock.now += 20
    assert trigger.wait_s(999, is_full=False) == 40.0
    clock.now += 41
    assert trigger.wait_s(1, is_full=False) == 0.0
    trigger.reset()
    clock.now += 1000
    assert trigger.wait_s(1, is_full=False) == 60.0  # of the first message, not since the last batch
    assert BatchTrigger(1, 60.0, clock).wait_s(1, is_full=False) == 0.0
    trigger = BatchTrigger(1 << 30, 0.0, clock)
    trigger.reset()
    assert trigger.wait_s(1, is_full=False) == 0.0


def test_log_bytes_are_those_of_the_segments_from_the_batch_on(make_lake):
    lake = make_lake(64 * 1024)
    sizes = []
    for number in range(300):
        lake.append(b"%03d" % number + b"." * 1000)
        lake.turn()
        sizes.append(lake.snapshot().log_bytes(0))
    snapshot = lake.snapshot()
    assert len(snapshot.segments) > 3
    total = sizes[-1]
    assert total == sum(segment.size for segment in snapshot.segments)
    assert [snapshot.log_bytes(first) for first in range(1, 300)] == [total - before for before in sizes[:-1]]
    assert snapshot.log_bytes(300) == 0
    lake.append(b"." * 1000)
    lake.turn()
    assert lake.snapshot().log_bytes(300) == lake.snapshot().log_bytes(0) - total


def test_following_makes_one_file_of_the_bytes_that_are_enough():
    parts = [LogPartition(None, n, n + 1, 1, n, n + 1, 0, -1, 16 << 20) for n in range(10)]
    assert len(spread(parts, 8)) == 8
    assert len(spread(parts, 8, 128 << 20)) == 1
    assert len(spread(parts, 8, 64 << 20)) == 2


class Following:
    """A job that follows a log. `steps` are called one by one at the waits, in place of time that passes."""

    def __init__(self, lake, tmp_path, monkeypatch, **given):
        self.lake, self.tmp_path = lake, tmp_path
        self.given = {"follow": True, "min_batch_bytes": 50_000, **given}
        self.waits, self.batches, self.steps = [], [], []
        self.looks = self.seen = 0
        monkeypatch.setattr(job_module, "POLL_S", 0.001)

    def append(self, count):
        def step():
            self.lake.append(*[b"." * 200 for _ in range(count)])
            self.lake.settled()

        return step

    def run(self, *steps, engine=None):
        self.steps = list(steps)
        to, checkpoint = str(self.tmp_path / "lake"), str(self.tmp_path / "check")
        wanted = ExportOptions({"path": self.lake.data_dir}, "/", "tasks", to, checkpoint, **self.given)
        job = ExportJob(wanted, engine or PyarrowEngine(), self.batches.append, self._next, waits=self.waits.append)
        return job.run()

    def _next(self):
        """Run the next step if nothing has happened since the last look. Return True if there is none."""
        state = len(self.batches)
        self.looks = self.looks + 1 if state == self.seen else 0
        self.seen = state
        if self.looks < 4:  # the job looks several times between two looks at the log
            return False
        self.looks = 0
        if not self.steps:
            return True
        self.steps.pop(0)()
        return False

    def files(self):
        return sorted((self.tmp_path / "lake").glob("*.parquet"))

    def offsets(self):
        return sorted(each for path in self.files() for each in pq.read_table(path)["offset"].to_pylist())


def test_messages_wait_until_there_are_enough_bytes(written, tmp_path, monkeypatch):
    following = Following(written, tmp_path, monkeypatch)
    wait = following.append(1)
    total = following.run(wait, following.append(10), wait, following.append(300), wait, wait)
    assert [batch.rows for batch in following.batches] == [4000, 312]
    assert total.lag == 2 and following.offsets() == list(range(1000, 5312))
    assert len(following.files()) == 2
    lags = [each.lag for each in following.waits]
    assert [lag for lag, before in zip(lags, [0, *lags], strict=False) if lag != before] == [1, 11, 12, 1, 2]
    sizes = [each.waiting_bytes for each in following.waits[: lags.index(12) + 1]]
    assert sizes == sorted(sizes) and 0 < sizes[0] < sizes[-1] < 50_000
    assert all(0 < each.wait_s < 60.001 for each in following.waits)  # the difference of two floats
    # What waits is exported by the next run, at once.
    assert following.run().rows == 2
    assert following.offsets() == list(range(1000, 5314))


def test_last_offset_and_size_of_a_batch_end_the_wait(written, tmp_path, monkeypatch):
    following = Following(written, tmp_path, monkeypatch, min_batch_bytes=1 << 30, batch_rows=2500, to_offset=5020)
    total = following.run(following.append(10), following.append(20))
    assert [batch.rows for batch in following.batches] == [1500, 2500, 20]
    assert (total.lag, following.offsets()) == (0, list(range(1000, 5020)))


def test_age_ends_the_wait(written, tmp_path, monkeypatch):
    following = Following(written, tmp_path, monkeypatch, min_batch_bytes=1 << 30, max_batch_age_s=0.02)
    written.append(b"x")
    written.settled()
    first = following.append(1)
    polls = []

    def stopped():
        polls.append(len(following.batches))
        if polls[-1] == 1 and polls.count(1) == 3:
            first()
        return polls[-1] == 2

    to, checkpoint = str(tmp_path / "lake"), str(tmp_path / "check")
    wanted = ExportOptions({"path": written.data_dir}, "/", "tasks", to, checkpoint, **following.given)
    ExportJob(wanted, PyarrowEngine(), following.batches.append, stopped, waits=following.waits.append).run()
    assert [batch.rows for batch in following.batches] == [4001, 1]
    assert following.waits and max(each.wait_s for each in following.waits) < 0.021  # rounded


def test_stop_together_with_the_broker_is_no_error(written, tmp_path, monkeypatch, caplog):
    """A machine that is shut down stops both."""
    spans = ExportJob._spans

    def unreachable_at_the_end(self, ledger, limit):
        if limit is None:
            raise BrokerUnreachable("the broker does not answer")
        return spans(self, ledger, limit)

    monkeypatch.setattr(ExportJob, "_spans", unreachable_at_the_end)
    source, places = {"path": written.data_dir}, (str(tmp_path / "lake"), str(tmp_path / "check"))
    batches = []
    wanted = ExportOptions(source, "/", "tasks", *places, follow=True)
    assert ExportJob(wanted, PyarrowEngine(), batches.append, lambda: bool(batches)).run().rows == 4000
    with pytest.raises(BrokerUnreachable):
        ExportJob(replace(wanted, follow=False), PyarrowEngine(), batches.append, lambda: False).run()
    assert "the broker does not answer; what waits is not known" in caplog.text


def test_database_does_not_wait(tmp_path):
    given = {"follow": True}
    files = ExportOptions({}, "/", "tasks", str(tmp_path / "lake"), "c", **given)
    assert files.batch_bytes_min == 128 << 20
    assert ExportOptions({}, "/", "tasks", "sqlite:///x.db", "c", **given).batch_bytes_min == 0
    assert ExportOptions({}, "/", "tasks", "s3://lake", "c", **given, min_batch_bytes=5).batch_bytes_min == 5


@pytest.mark.slow
def test_each_offset_is_exported_once_after_a_kill_at_each_step(written, tmp_path, monkeypatch, kill_steps):
    """Kills during the batches of a run that follows, and between them."""
    for number in range(1, 60):
        before = kill_steps.count
        place = tmp_path / f"{number}"
        place.mkdir()
        following = Following(written, place, monkeypatch, to_offset=1400, batch_rows=200)
        kill_steps.run(number, True, following.run)
        following.batches.clear()
        following.waits.clear()
        following.run()
        assert Counter(following.offsets()) == Counter(range(1000, 1400)), number
        if kill_steps.count == before:
            break
    assert kill_steps.count > 15


class Terminal(io.StringIO):
    def isatty(self):
        return True


def call(*arguments, err=None):
    out, err = io.StringIO(), err or io.StringIO()
    code = run_command(list(arguments), out, err, io.StringIO(), {})
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--min-batch-bytes", "1"), "--min-batch-bytes needs --follow"),
        (("--max-batch-age", "1"), "--max-batch-age needs --follow"),
        (("--follow", "--max-batch-age", "soon"), "--max-batch-age : soon"),
        (("--follow", "--min-batch-bytes", "-1"), "--min-batch-bytes : -1"),
    ],
)
def test_wrong_options_are_refused(tmp_path, arguments, words):
    code, _, err = call("export", "--queue", "tasks", "--to", str(tmp_path / "lake"), *arguments)
    assert (code, words in err) == (64, True), err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_says_what_waits(written, tmp_path, monkeypatch, is_terminal):
    from amqpd.cli import export

    monkeypatch.setattr(job_module, "POLL_S", 0.001)
    monkeypatch.setenv("COLUMNS", "200")
    stops = []

    class Stop(export.StopRequest):
        def __call__(self):
            stops.append(len(list(Path(tmp_path / "lake").glob("*.parquet"))))
            if stops[-1] == 1 and stops.count(1) == 1:
                written.append(b"." * 200)
                written.settled()
            return stops.count(1) == 5

    monkeypatch.setattr(export, "StopRequest", Stop)
    where = ("--data-dir", written.data_dir, "--to", str(tmp_path / "lake"), "--queue", "tasks")
    terminal = Terminal() if is_terminal else io.StringIO()
    code, out, err = call("--formatter", "json", "export", *where, "--follow", "--max-batch-age", "50", err=terminal)
    assert (code, json.loads(out)["records"], json.loads(out)["waiting"]) == (0, 4000, 1), err
    lines = [line for line in err.replace("\r\x1b[K", "\n").splitlines() if "next batch in at most" in line]
    assert len(lines) >= 2 if is_terminal else len(lines) == 1
    assert "1 wait, " in lines[0] and "bytes of log: next batch in at most 50 s" in lines[0]
