"""`make cluster-run` as docs/cluster.md shows it: a node is killed, its clients continue, no confirmed message
is lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import kafka_rig
import pytest

PROGRAM = Path(__file__).with_name("run.py")


@pytest.mark.ci_long
def test_clients_continue_after_a_node_is_killed(tmp_path: Path) -> None:
    kafka_rig.need(kafka_rig.missing())
    log = tmp_path / "log"
    command = [sys.executable, "-P", str(PROGRAM), "--directory", str(tmp_path / "cluster"), "--vhosts", "orders"]
    with log.open("wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        owner = _wait(running, log, r"orders: (amqpd-\d)\n")[1]
        pid = re.search(rf"^{owner} .*pid (\d+)", log.read_text(), re.MULTILINE)
        assert pid is not None
        os.kill(int(pid[1]), signal.SIGKILL)
        _wait(running, log, rf"{owner} has ended; it is started again in 20 s\n")
        _wait(running, log, rf"orders: (?!{owner})amqpd-\d\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(180) == 0, log.read_text()[-3000:]
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
            running.wait(180)
    assert "0 missing, 0 violations" in log.read_text()


def _wait(running: subprocess.Popen[bytes], log: Path, pattern: str, timeout_s: float = 300) -> re.Match[str]:
    deadline = time.monotonic() + timeout_s
    while True:
        text = log.read_text()
        found = re.search(pattern, text)
        if found is not None:
            return found
        assert running.poll() is None and time.monotonic() < deadline, f"{pattern}: not said:\n{text[-3000:]}"
        time.sleep(0.2)
