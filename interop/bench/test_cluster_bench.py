"""The benchmark of three nodes: the generator with several nodes, the tables, and (`make test-peer`) a short run of all
of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interop.bench import cluster, cluster_report, generator, rabbitmq
from interop.bench.brokers import Amqpd, StartFailed
from interop.bench.cluster_report import Found
from interop.bench.rounds import Run
from interop.bench.sides import Side, cpu_s

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler")


@pytest.mark.slow
@needs_compiler
def test_generator_measures_several_ports_and_processes(tmp_path: Path) -> None:
    """Connections rotate over the ports, CPU and memory are summed over the given processes, and confirms are timed."""
    program = generator.build(tmp_path)
    broker = Amqpd(tmp_path / "amqpd")
    broker.start()
    idle = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        side = Side("one")
        side.ports, side.pids, side.besides = [broker.port] * 3, [broker.pid, idle.pid], [idle.pid]
        timed = ["--time", "0.3", "--warm", "0.1", "--verify"]
        for scenario in ("S3", "S3x200", "S3r"):
            # CPU time is counted in ticks of 10 ms. On a busy machine a short run may have none, so a longer one
            # follows.
            for time_s in (0.3, 3, 30):
                measured = ["--time", f"{time_s}", "--warm", "0.1", "--verify"]
                result = generator.run(program, "127.0.0.1", 0, 0, ["-s", scenario, *measured, *side.options()])
                if result["cpu_us"] > 0:
                    break
            assert result["checked"] >= result["messages"] > 0 == result["wrong"]
            assert result["beside_cpu_us"] == 0.0 < result["beside_anon_peak_mb"] < result["anon_peak_mb"]
            assert result["cpu_us"] > 0
            assert ("confirm_p50_us" in result) == (scenario == "S3r")
        assert 0 < result["confirm_p50_us"] <= result["confirm_p99_us"] <= result["confirm_p999_us"]
        alone = generator.run(program, "127.0.0.1", broker.port, broker.pid, ["-s", "S3", *timed])
        assert "beside_cpu_us" not in alone
        side.pids = [idle.pid, idle.pid]  # a process whose memory does not change
        twice = generator.run(program, "127.0.0.1", 0, 0, ["-s", "S3", *timed, *side.options()])
        assert twice["anon_peak_mb"] == pytest.approx(2 * twice["beside_anon_peak_mb"], abs=0.2)
    finally:
        idle.kill()
        idle.communicate()
        broker.stop()


@needs_compiler
def test_generator_refuses_wrong_options(tmp_path: Path) -> None:
    program = generator.build(tmp_path)
    for options, said in (
        (["--ports", "1,x"], "usage"),
        (["--pid", "1," * 16 + "1"], "usage"),
        (["--quorum", "3"], "--quorum goes with --durable"),
        (["-s", "S3r", "--publishers", "2"], "--rate and --confirm go with one publisher"),
    ):
        done = subprocess.run([program, *options], capture_output=True, text=True, check=False)
        assert done.returncode and said in done.stdout + done.stderr, options


def test_cpu_s_measures_the_cpu_time_of_a_process() -> None:
    before, until = cpu_s(os.getpid()), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert 0.05 < cpu_s(os.getpid()) - before < 2


class FakeSide(Side):
    """A side with so many copies of every queue."""

    def __init__(self, copies: int) -> None:
        super().__init__("fake")
        self.ports, self.pids = [1, 2, 3], [4, 5, 6]
        self.kept = copies

    def copies(self, queue: str) -> int:
        assert queue == "proof.q0"
        return self.kept


def test_options_name_ports_and_processes() -> None:
    side = FakeSide(3)
    assert side.options() == ["--quorum", "3", "--ports", "1,2,3", "--pid", "4,5,6"]
    side.besides = [7]
    assert side.options(spread=False) == ["--quorum", "3", "--ports", "1", "--pid", "4,5,6", "--beside", "7"]


def test_queue_without_three_copies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []
    monkeypatch.setattr(generator, "run", lambda *given: runs.append(given[-1]))
    FakeSide(3).prove(Path("none"))
    assert [("--drain" in options, "--keep" in options) for options in runs] == [(False, True), (True, False)]
    with pytest.raises(StartFailed, match="a queue has 2 copies, not 3"):
        FakeSide(2).prove(Path("none"))


def runs_of(*rounds: tuple[str, float, float, float]) -> list[Run]:
    """Runs of (scenario, CPU per message of amqpd's nodes, of Kafka, of RabbitMQ's nodes). amqpd has twice the rate."""
    found = []
    for number, (scenario, ours, kafka, theirs) in enumerate(rounds, 1):
        for side, cpu, beside, rate in (("amqpd", ours, kafka, 2000.0), ("rabbitmq", theirs, 0.0, 1000.0)):
            result = {"rate": rate, "cpu_us": cpu, "anon_peak_mb": 90.0, "other_cores": 0.1}
            if beside:
                result |= {"beside_cpu_us": beside, "beside_anon_peak_mb": 900.0}
            found.append(Run(number, scenario, side, cluster_report.with_sums(result)))
    return found


def found_of(runs: list[Run]) -> Found:
    facts = {"cpu": "a processor", "system": "a system", "filesystem": "ext4"}
    return Found("2026-01-02", "command", facts, ["amqpd 1", "RabbitMQ 3"], {"S3": "one queue"}, runs)


def cells(table: str, name: str) -> list[str]:
    """Return the cells of the row with this name."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    (found,) = (row[1:] for row in rows if row[0] == name)
    return found


def test_kafka_is_counted_separately_and_in_the_sum() -> None:
    runs = runs_of(("S3", 10, 90, 200), ("S3", 10, 90, 50), ("S3", 20, 80, 80))
    assert cluster_report.gain(runs, "S3", "cpu_us") == 5
    assert cluster_report.gain(runs, "S3", "whole_cpu_us") == 0.8
    assert cluster_report.gain(runs, "S3", "rate") == 2
    row = cells(cluster_report.throughput(runs), "S3")
    assert row == ["2,000", "1,000", "2.0x", "10.0", "80.0", "5.0x", "100.0", "0.8x"]
    assert cells(cluster_report.memory(runs), "S3") == ["90 MB", "90 MB", "900 MB"]


@pytest.mark.parametrize(("theirs", "word"), [(29.9, "SHORT"), (30.0, "reached")])
def test_verdict_needs_three_times_the_messages_per_cpu_second(theirs: float, word: str) -> None:
    verdict = cluster_report.verdicts(runs_of(("S3", 10, 90, theirs)))
    assert verdict == f"- S3: 3.0x in messages per CPU second without Kafka; must 3x: {word}"
    assert cluster_report.verdicts(runs_of(("S3 one node", 10, 90, theirs))) == ""


def test_failed_side_has_no_figure() -> None:
    runs = [*runs_of(("S3", 10, 90, 50)), Run(2, "S3x200", "amqpd", error="nothing moved")]
    text = cluster_report.markdown(found_of(runs))
    assert "- Failed: round 2, S3x200, amqpd: nothing moved" in text
    assert "| S3x200" not in text
    runs.append(Run(2, "S3x200", "rabbitmq", runs[1].result))
    assert cells(cluster_report.throughput(runs), "S3x200") == ["-", "1,000", "-", "-", "50.0", "-", "-", "-"]


def test_latencies_are_in_milliseconds() -> None:
    runs = runs_of(("S3r", 10, 90, 50))
    for run in runs:
        for kind in ("", "confirm_"):
            run.result |= {f"{kind}p50_us": 1500.0, f"{kind}p99_us": 25000.0, f"{kind}p999_us": 30000.0}
    (_, _, ours, theirs) = cluster_report.times(runs).splitlines()
    assert "1.5 / 25.0 / 30.0" in ours and ours.startswith("| S3r amqpd ")
    assert theirs.startswith("| S3r rabbitmq ")
    assert cluster_report.throughput(runs) == ""


@pytest.mark.parametrize(("other", "is_reported"), [(0.35, False), (0.6, True)])
def test_other_work_excludes_the_idle_cost_of_both_sides(other: float, is_reported: bool) -> None:
    found = found_of(runs_of(("S3", 10, 90, 50)))
    found.idle_cores = {"amqpd": 0.1, "rabbitmq": 0.04}
    for run in found.runs:
        run.result["other_cores"] = other
    text = cluster_report.markdown(found)
    assert "(amqpd's with Kafka's): amqpd 0.10, rabbitmq 0.04." in text
    assert ("busy with other work (0.6 cores at most)" in text) is is_reported


def test_result_is_written_between_its_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    with pytest.raises(FileNotFoundError):
        cluster_report.write(found_of([]), readme)
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="bench-cluster:begin"):
        cluster_report.write(found_of([]), readme)
    readme.write_text(f"before\n{cluster_report.BEGIN}\nold\n{cluster_report.END}\nafter\n")
    for _ in range(2):
        cluster_report.write(found_of(runs_of(("S3", 10, 90, 50))), readme)
    text = readme.read_text()
    assert text.startswith(f"before\n{cluster_report.BEGIN}\n") and text.endswith(f"\n{cluster_report.END}\nafter\n")
    assert "old" not in text and text.count("| S3 ") == 2 and "`command`" in text


def test_readme_has_the_markers() -> None:
    text = (Path(cluster_report.__file__).with_name("README.md")).read_text("utf-8")
    assert text.count(cluster_report.BEGIN) == text.count(cluster_report.END) == 1


def test_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cluster.main(["--scenarios", "S3,S9"])
    assert "--scenarios: there is no S9; there are S3, S3 one node, S3x200, S3r" in capsys.readouterr().err


def test_rounds_alternate_which_side_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given = cluster._arguments(["--scenarios", "S3,S3r", "--rounds", "2"])
    runs: list[str] = []

    def run_once(_program: Path, side: Side, scenario: cluster.Scenario, _seconds: float) -> generator.Result:
        runs.append(f"{scenario.name} {side.name}")
        if len(runs) == 2:
            raise generator.RunFailed("stalled")
        return runs_of(("S3", 10, 90, 50))[0].result

    monkeypatch.setattr(cluster, "_once", run_once)
    monkeypatch.setattr(cluster, "PAUSE_S", 0.0)
    ours, theirs = Side("amqpd"), Side("rabbitmq")
    found = found_of([])
    cluster._rounds(given, Path("none"), [ours, theirs], found)
    first = ["S3 amqpd", "S3 rabbitmq", "S3r amqpd", "S3r rabbitmq"]
    assert runs == [*first, "S3 rabbitmq", "S3 amqpd", "S3r rabbitmq", "S3r amqpd"]
    assert [run.error for run in found.runs] == ["", "stalled", *[""] * 6]


@needs_compiler
@pytest.mark.on_demand
def test_short_run_of_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Needs RabbitMQ, Kafka's jars and a Java; otherwise it is skipped with the reason."""
    kafka_rig = pytest.importorskip("kafka_rig")
    kafka_rig.need(kafka_rig.missing())
    if not rabbitmq.is_installed():
        pytest.skip(f"needs RabbitMQ: apt install {rabbitmq.PACKAGE}")
    given = {"rounds": 1, "warm-up": 2, "scenarios": "S3r", "directory": tmp_path}
    # On a busy machine a run of one second may move no message, which is an error: a longer run follows.
    command = [f"--{name}={value}" for name, value in given.items()]
    assert any(cluster.main([*command, f"--time={time_s}"]) == 0 for time_s in (1, 10, 60))
    out = capsys.readouterr().out
    assert "| S3r rabbitmq " in out and "with Kafka" in out and str(ROOT) not in out
    assert not list(tmp_path.glob("amqpd-bench-*")), "the nodes' directories were not removed"
