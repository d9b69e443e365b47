"""Histograms of the fsync thread's commit groups."""

from __future__ import annotations

from amqpd.storage.fsync_thread import BOUNDS_BYTES, BOUNDS_LOGS, BOUNDS_S, SyncTimes


def test_value_on_a_bound_counts_in_the_bucket_below() -> None:
    times = SyncTimes()
    times.add(BOUNDS_S[2], BOUNDS_BYTES[0], BOUNDS_LOGS[-1])
    times.add(BOUNDS_S[2] + 1e-6, 0, 1)
    times.add(60.0, 1 << 40, 10**6)
    assert [index for index, count in enumerate(times.by_time) if count] == [2, 3, len(BOUNDS_S)]
    assert (times.by_bytes[0], times.by_bytes[-1]) == (2, 1)
    assert (times.by_logs[0], times.by_logs[-2], times.by_logs[-1]) == (1, 1, 1)
    assert (times.count, times.total_logs, times.total_bytes) == (3, BOUNDS_LOGS[-1] + 1 + 10**6, 1024 + (1 << 40))
    assert abs(times.total_s - 60.005001) < 1e-9
