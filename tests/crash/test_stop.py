"""SIGTERM under load, and the effect of a restart on transient messages and on transient and exclusive queues."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Final

import pytest
from ledger import Ledger, properties_of
from loadrun import MARKED_UNSEEN_MAX, PUBLISHERS, QUEUES, Crowd, drain, end_broker, prepare
from quickclient import Gone, connect

from amqpd.testing import BrokerProcess

STOP_S: Final = 5.0
START_S: Final = 3.0  # after a clean stop


def logs_and_marks(data_dir: Path) -> tuple[set[Path], set[Path]]:
    """Return the queue directories with a segment, and the directories with a clean-shutdown file."""
    logs = {path.parent for path in data_dir.rglob("*.log") if "queues" in path.parts}
    return logs, {path.parent for path in data_dir.rglob("*clean-shutdown*")}


@pytest.mark.slow
async def test_sigterm_under_load_stops_cleanly_and_loses_nothing(tmp_path: Path) -> None:
    """Clients get 320; stop and next start are fast; each log has its clean-shutdown file; no message is lost."""
    await stops(tmp_path, 10.0)


@pytest.mark.on_demand
async def test_sigterm_under_load_stops_in_time(tmp_path: Path) -> None:
    """The promised time without a factor; run it on a machine that is otherwise idle."""
    await stops(tmp_path, 1.0)


async def stops(tmp_path: Path, times: float) -> None:
    """Stop the broker three times under load. times: a factor for machines that run other work."""
    ledger = Ledger(QUEUES, PUBLISHERS)
    data = tmp_path / "data"
    broker = BrokerProcess(data, settings={"log.level": "info"})
    try:
        for cycle in range(3):
            start_s = time.monotonic()
            await asyncio.to_thread(broker.start)
            started_s = time.monotonic() - start_s
            if cycle:
                assert started_s < times * START_S, f"the start after a clean stop took {started_s:.2f} s"
                assert "recover" not in broker.stderr.lower(), broker.stderr
            else:
                await prepare(broker.amqp_port)
            crowd = Crowd(broker.amqp_port, ledger)
            await crowd.start()
            await asyncio.sleep(1.0)
            start_s = time.monotonic()
            await end_broker(broker, crowd, ledger, kill=False)
            stopped_s = time.monotonic() - start_s
            assert stopped_s < times * STOP_S, f"stopping took {stopped_s:.2f} s"
            codes = [link.close_code for link in crowd.links]
            assert codes == [320] * len(codes), codes
            logs, marks = logs_and_marks(data)
            assert logs, "no queue has a log"
            assert logs <= marks, f"logs without a clean mark: {sorted(map(str, logs - marks))}"
            assert "Traceback" not in broker.stderr, broker.stderr
        await asyncio.to_thread(broker.start)
        await drain(broker.amqp_port, ledger)
    finally:
        await asyncio.to_thread(broker.kill)
    ledger.judge(MARKED_UNSEEN_MAX)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
@pytest.mark.slow
async def test_restart_removes_transient_messages_and_transient_queues(tmp_path: Path, number: signal.Signals) -> None:
    """Exclusive durable queues are removed, too. Persistent messages stay, in order."""
    broker = BrokerProcess(tmp_path / "data")
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await link.declare_queue("durable")
        await link.declare_queue("transient", durable=False)
        await link.declare_queue("exclusive", exclusive=True)
        await link.confirm_select()
        all_confirmed = asyncio.Event()

        def confirmed(tag: int, _multiple: bool, acked: bool) -> None:
            assert acked
            if tag == 202:
                all_confirmed.set()

        link.on_confirm = confirmed
        for sequence in range(200):  # every second message transient
            link.publish("", "durable", properties_of(0, sequence, mode=2 - sequence % 2), b"%d" % sequence)
        link.publish("", "transient", properties_of(0, 0), b"in a transient queue")
        link.publish("", "exclusive", properties_of(0, 0), b"in an exclusive queue")
        await asyncio.wait_for(all_confirmed.wait(), 60)
        _, count, _ = await link.declare_queue("durable", passive=True)
        assert count == 200  # transient messages are there until the broker ends
        await asyncio.to_thread(broker.kill if number == signal.SIGKILL else broker.stop)
        await link.gone.wait()

        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        _, count, _ = await link.declare_queue("durable", passive=True)
        assert count == 100
        bodies = []
        while (message := await link.get("durable", no_ack=True)) is not None:
            assert not message.redelivered
            bodies.append(int(message.body))
        assert bodies == list(range(0, 200, 2))
        link.close()
        for queue in ("transient", "exclusive"):
            link = await connect(broker.amqp_port)
            with pytest.raises(Gone, match="404"):
                await link.declare_queue(queue, passive=True)
            await link.gone.wait()
        assert "Traceback" not in broker.stderr, broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
