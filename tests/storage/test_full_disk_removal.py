"""A disk with no room for a checkpoint still loses the segments that are to go: that is what makes room."""

from __future__ import annotations

import errno

from amqpd.storage.committer import run_job
from amqpd.storage.group import JobPart, SyncJob
from amqpd.storage.simulation import SimulatedFileSystem


class FullUntilFreed(SimulatedFileSystem):
    """Takes no small file while `log` is there."""

    log = "/data/0.log"

    def replace_file(self, path: str, data: bytes, *, sync: bool) -> None:
        if self.exists(self.log):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().replace_file(path, data, sync=sync)


def test_what_is_settled_goes_before_a_checkpoint_that_has_no_room() -> None:
    filesystem = FullUntilFreed()
    filesystem.mkdir("/data")
    for name in ("0.log", "0.index", "9.settled"):
        SimulatedFileSystem.replace_file(filesystem, f"/data/{name}", b"x", sync=False)
    part = JobPart(None, "tasks")
    part.checkpoints = [("/data/log-start", b"1")]
    part.unlinks = ["/data/9.settled", "/data/0.log", "/data/0.index"]
    job = SyncJob(1)
    job.parts = [part]
    run_job(filesystem, job, -1)
    assert sorted(filesystem.listdir("/data")) == ["log-start"]
    assert not part.failed
