"""The benchmark of the Kafka listener: its tables, the outputs of Kafka's tools, and a short run of amqpd alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interop.bench import kafka, kafka_load, kafka_report
from interop.bench.brokers import StartFailed
from interop.bench.generator import RunFailed
from interop.bench.kafka_load import Records
from interop.bench.kafka_report import Found
from interop.bench.kafka_sides import AmqpdListener, jars
from interop.bench.rounds import Run

ROOT = Path(__file__).resolve().parents[2]
PRODUCED = (
    "100 records sent, 50.0 records/sec (0.05 MB/sec), 1.0 ms avg latency, 2.0 ms max latency.\n"
    "400 records sent, 1000.5 records/sec (1 MB/sec), 6 ms avg latency, 9 ms max latency, 6 ms 50th, 9 ms 99.9th.\n"
    "300 steady state records sent, 2000.5 records/sec (1 MB/sec), 7 ms avg latency, 9 ms max latency, 6 ms 50th.\n"
)


def found(*rounds: tuple[str, str, dict[str, float]]) -> Found:
    """A run of one round with these figures."""
    where = {"cpu": "a cpu", "system": "a system", "filesystem": "ext4"}
    runs = [Run(1, scenario, column, result) for scenario, column, result in rounds]
    return Found("2026-11-28", "a command", where, ["amqpd", "Kafka"], {"produce": "what"}, runs)


def test_report_has_ratios_and_verdicts() -> None:
    whole = kafka_report.markdown(
        found(
            ("produce 100 B", "amqpd", {"rate": 300.0, "cpu_us": 1.0, "other_cores": 0.0}),
            ("produce 100 B", "kafka", {"rate": 200.0, "cpu_us": 1.25, "other_cores": 0.0}),
            ("produce 100 B", "kafka, synced", {"rate": 100.0, "cpu_us": 4.0, "other_cores": 0.0}),
            ("start", "amqpd", {"start_ms": 100.0}),
            ("start", "kafka", {"start_ms": 2000.0}),
        )
    )
    text = " ".join(whole.split())
    assert "| produce 100 B | 300 | 200 | 1.50x | 100 | 3.00x |" in text
    assert "| produce 100 B: records/s | 1.50x | at least 1x | reached |" in text
    assert "| produce 100 B: CPU per record | 0.80x | at most 0.7x | SHORT |" in text
    assert "| start: time to an answer | 0.05x | at most 0.1x | reached |" in text
    assert "busy with other work" not in text


def test_report_says_what_failed_and_that_the_machine_was_busy() -> None:
    one = found(("fetch 100 B", "amqpd", {"rate": 1.0, "cpu_us": 1.0, "other_cores": 1.5}))
    one.runs.append(Run(2, "fetch 100 B", "kafka", error="no\nfigures"))
    text = kafka_report.markdown(one)
    assert "- The machine was busy with other work (1.5 cores, 1.5 at most)" in text
    assert "- Failed: round 2, fetch 100 B, kafka: no figures" in text


def test_report_replaces_the_part_between_its_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{kafka_report.BEGIN}\nold\n{kafka_report.END}\nafter\n", "utf-8")
    kafka_report.write(found(), readme)
    text = readme.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text and "Command: `a command`" in text
    readme.write_text("no markers", "utf-8")
    with pytest.raises(ValueError, match="bench-kafka:begin"):
        kafka_report.write(found(), readme)


def test_rate_of_a_tool_is_read_from_its_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = PRODUCED
    monkeypatch.setattr(kafka_load, "java", lambda *_: [])
    monkeypatch.setattr(kafka_load, "measured", lambda *_: (output, {}))
    side: Any = type("AnySide", (AmqpdListener,), {"bootstrap": "host:1"})(tmp_path)
    assert kafka_load.produce(side, "t", Records(100, "none"), 400, tmp_path)["rate"] == 2000.5
    with pytest.raises(RunFailed, match="not all of 500 records"):
        kafka_load.produce(side, "t", Records(100, "none"), 500, tmp_path)
    output = "WARN\n2026-11-28 23:36:11:303, 2026-11-28 23:36:19:608, 38.1, 4.5, 400, 48.7, 5025, 3280, 11.6, 1219.5\n"
    assert kafka_load.fetch(side, "t", 400)["rate"] == 1219.5
    with pytest.raises(RunFailed, match="400 of 500 records were read"):
        kafka_load.fetch(side, "t", 500)
    output = "2026-11-28 23:36:27:545, 2026-11-28 23:36:43:186, 9.5, 0.6, 6396.2, 403, 15641\n"
    assert kafka_load.share(side, "t", 400)["rate"] == 6396.2
    output = "p50 812.5 p99 2000.25\n"
    assert kafka_load.latency(side, "t", 1, 1) == {"p50_us": 812.5, "p99_us": 2000.25}
    output = "nothing"
    for load in (kafka_load.fetch, kafka_load.share):
        with pytest.raises(RunFailed, match="no figures"):
            load(side, "t", 400)


def test_payloads_have_the_size_and_differ(tmp_path: Path) -> None:
    lines = kafka_load.payload_file(tmp_path, 100).read_text("ascii").splitlines()
    assert {len(line) for line in lines} == {100}
    assert len(set(lines)) == len(lines)


def test_unknown_records_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kafka.main(["--records", "5 B"])
    assert "--records: there is no 5 B; there are 100 B, 100 B lz4" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.external
def test_short_run_of_amqpd_alone(tmp_path: Path) -> None:
    try:
        jars()
    except StartFailed as error:
        if os.environ.get("TEST_REQUIRE_KAFKA_CLIENTS"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    command = [sys.executable, "-m", "interop.bench.kafka", "--alone", "--rounds", "1", "--time", "0.1"]
    done = subprocess.run(
        [*command, "--records", "100 B lz4", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(
        f"[round 1 of 1] {scenario}, amqpd: " in done.stderr
        for scenario in ("produce 100 B lz4", "fetch 100 B lz4", "share 100 B lz4", "latency", "memory")
    ), done.stderr
    assert not list(tmp_path.iterdir())
