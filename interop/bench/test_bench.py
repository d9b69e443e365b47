"""The benchmark harness: a short run of all of it, and the arithmetic of its verdicts."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from interop.bench import __main__ as bench_main
from interop.bench import curves, generator, guard, picture, profiles, report, scenarios, starts
from interop.bench import rounds as bench_rounds
from interop.bench.brokers import Amqpd, Broker, Echo, StartFailed
from interop.bench.rounds import Plan, Run

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler")


def environment() -> dict[str, str]:
    """Return an environment in which the harness starts the amqpd that this test run imports."""
    spec = importlib.util.find_spec("amqpd")
    assert spec is not None and spec.origin is not None
    return os.environ | {"PYTHONPATH": str(Path(spec.origin).parent.parent)}


@pytest.mark.slow
@needs_compiler
def test_short_run_measures_all_scenarios_and_cleans_up(tmp_path: Path) -> None:
    names = ["S1", "S1v", "S1h", "S1c", "S3", "S3h", "S3c"]
    command = f"{sys.executable} -m interop.bench --alone --rounds 1 --time 0.3 --scenarios {','.join(names)}".split()
    done = subprocess.run(
        [*command, "--no-profile", "--no-start", "--out", tmp_path, "--directory", tmp_path],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (data,) = tmp_path.glob("report-*.json")
    runs = {run["scenario"]: run["result"] for run in json.loads(data.read_text())["runs"]}
    assert set(runs) == set(names)
    for result in runs.values():
        assert result["checked"] >= result["messages"] > 0 == result["wrong"]
    text = data.with_suffix(".md").read_text()
    assert "| S1 " in text and str(ROOT) not in text
    assert not list(tmp_path.glob("amqpd-bench-*")), "the brokers' directory was not removed"


class CorruptingProxy(threading.Thread):
    """A proxy between generator and broker that changes one byte from the broker, once, where `wanted` says."""

    def __init__(self, port: int, wanted: Callable[[bytes], int]) -> None:
        super().__init__(daemon=True)
        self._to = port
        self._wanted = wanted
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.has_corrupted = False

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._to))
            threading.Thread(target=self._between, args=(client, broker), daemon=True).start()

    def _between(self, client: socket.socket, broker: socket.socket) -> None:
        with client, broker:
            back = threading.Thread(target=self._carry, args=(broker, client, True), daemon=True)
            back.start()
            self._carry(client, broker, False)
            back.join()

    def _carry(self, source: socket.socket, sink: socket.socket, may_corrupt: bool) -> None:
        with contextlib.suppress(OSError):  # either side may have closed
            while data := source.recv(1 << 16):
                at = self._wanted(data) if may_corrupt and not self.has_corrupted else -1
                if at >= 0:
                    self.has_corrupted = True
                    data = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def after_mark(mark: bytes, offset: int) -> Callable[[bytes], int]:
    """Return a function that finds the position `offset` bytes after the first `mark`."""

    def find(data: bytes) -> int:
        at = data.find(mark)
        return at + len(mark) + offset if 0 <= at < len(data) - 200 else -1

    return find


CORRUPTIONS = {
    "the last digit of an id": ("S1h", after_mark(b"trace-idS\0\0\0\x24", 35)),
    "of the id by which the message is known": ("S1c", after_mark(b"\x02idS\0\0\0\x24", 35)),
    "of another one": ("S1c", after_mark(b"root_idS\0\0\0\x24", 35)),
    "a letter of a body": ("S1v", after_mark(b"efgh", 0)),
    "the size that a header announces": ("S1v", after_mark(b"\0\x3c\0\0" + bytes(7), 0)),
    "an offset": ("ST3", after_mark(b"x-stream-offsetl" + bytes(6), 1)),
    "the number in a body": ("ST3", after_mark(b"\3\0\1\0\0\4\0", 0)),
}


@pytest.mark.slow
@needs_compiler
def test_generator_detects_one_wrong_byte(tmp_path: Path) -> None:
    program = generator.build(tmp_path)
    broker = Amqpd(tmp_path / "amqpd")
    broker.start()
    try:
        for what, (scenario, wanted) in CORRUPTIONS.items():
            options = ["-s", scenario, "--warm", "0", "--count", "2000", "--verify"]
            proxy = CorruptingProxy(broker.port, wanted)
            proxy.start()
            with pytest.raises(generator.RunFailed, match="^[12] of 2000 deliveries were wrong"):
                generator.run(program, "127.0.0.1", proxy.port, broker.pid, options)
            proxy.close()
            assert proxy.has_corrupted, what
            result = generator.run(program, "127.0.0.1", broker.port, broker.pid, options)
            assert (result["checked"], result["wrong"]) == (2000, 0)
    finally:
        broker.stop()


@needs_compiler
@pytest.mark.slow
def test_echo_measures_the_latency_of_the_machine(tmp_path: Path) -> None:
    plan = Plan(generator.build(tmp_path), 0.1, 1, 1, True)
    result = bench_rounds.measure(plan, Echo(), "S7")["S7"]
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["p999_us"]
    assert result["rate"] == 1000


def test_report_shows_the_latency_added_by_each_broker() -> None:
    latencies = {"echo": (100, 250, 900), "amqpd": (130, 300, 1000), "rabbitmq": (290, 600, 5000)}
    runs = [
        Run(1, "S7", broker, dict(zip(("p50_us", "p99_us", "p999_us"), values, strict=True)))
        for broker, values in latencies.items()
    ]
    lines = report.echo_lines(outcome(runs))
    assert "100 / 250 / 900 us; amqpd adds 30 / 50 / 100; rabbitmq adds 190 / 350 / 4,100." in lines
    assert report.echo_lines(outcome(runs[1:])) == ""


@pytest.mark.parametrize("option", ["--out", "--directory"])
def test_missing_directory_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_main.main([option, "no/such/place"])
    assert f"{option}: there is no directory no/such/place" in capsys.readouterr().err


@needs_compiler
@pytest.mark.slow
def test_run_without_a_broker_fails(tmp_path: Path) -> None:
    program = generator.build(tmp_path)
    with pytest.raises(generator.RunFailed, match="connect"):
        generator.run(program, "127.0.0.1", 1, 0, ["-s", "S1", "--time", "0.1"])


def rounds(*pairs: tuple[float, float]) -> list[Run]:
    return [
        Run(number, "S3", broker, {"rate": value})
        for number, pair in enumerate(pairs, 1)
        for broker, value in zip(("amqpd", "rabbitmq"), pair, strict=True)
    ]


def test_ratio_is_the_median_of_the_rounds() -> None:
    runs = rounds((100, 10), (50, 1), (90, 10))
    assert report.ratio(runs, "S3", "amqpd", "rabbitmq", "rate") == 10
    assert report.ratio([*runs, Run(4, "S3", "amqpd", error="stalled")], "S3", "amqpd", "rabbitmq", "rate") == 10
    assert report.ratio(runs[::2], "S3", "amqpd", "rabbitmq", "rate") is None


@pytest.mark.parametrize(("reached", "word"), [(4.9, "SHORT"), (5, "must"), (11.9, "must"), (12, "aim")])
def test_verdict_of_a_rate(reached: float, word: str) -> None:
    assert report.verdict(scenarios.scenario("S3").targets[0], reached) == word


@pytest.mark.parametrize(("reached", "word"), [(0.6, "SHORT"), (0.5, "must"), (0.25, "aim")])
def test_verdict_of_a_latency(reached: float, word: str) -> None:
    assert report.verdict(scenarios.scenario("S7").targets[1], reached) == word


def outcome(runs: list[Run]) -> report.Outcome:
    settings = {"rounds": 1.0, "time": 1.0, "count": 1.0, "cold_count": 1.0}
    facts = {"cpu": "a processor", "system": "a system"}
    return report.Outcome(
        "2026-01-02", "command", facts, {"rabbitmq": "RabbitMQ 3"}, "rabbitmq", settings, runs, {}, []
    )


def test_summary_is_written_between_its_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for runs in (rounds((100, 10)), rounds((120, 10))):
        for run in runs:
            run.result["other_cores"] = 0.0
        report.write(outcome(runs), tmp_path, lambda _: "<svg/>")
    text = readme.read_text()
    assert text.startswith(f"before\n{report.BEGIN}") and text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text and "12.0x" in text and "10.0x" not in text
    assert "| S3: messages/s" in text and "report-2026-01-02.md" in text


def test_busy_machine_is_reported() -> None:
    runs = rounds((1, 1))
    for cores, is_reported in ((0.1, False), (1.2, True)):
        for run in runs:
            run.result["other_cores"] = cores
        assert ("busy with other work (1.2 cores)" in report.summary(outcome(runs), "report.md")) is is_reported


def test_failed_run_is_reported() -> None:
    text = report.markdown(
        outcome([*rounds((1, 1)), Run(2, "S3", "amqpd", error="3 of 9 deliveries were wrong")]), "x.svg"
    )
    assert "round 2, S3, amqpd: 3 of 9 deliveries were wrong" in text


def test_scenarios_are_selected_by_name() -> None:
    assert scenarios.select(["s4drain", "S1", "S4"]) == ["S1", "S4"]
    with pytest.raises(ValueError, match="no scenario S9"):
        scenarios.select(["S9"])


def test_perf_profile_is_summed_by_owner() -> None:
    text = """
    30.50%  _hot__mypyc.cpython-311-x86_64-linux-gnu.so  [.] CPyDef_amqpd___broker___queue___Queue___pump      -      -
    20.00%  [kernel.kallsyms]  [k] copy_user_generic
    10.00%  libpython3.11.so.1.0  [.] _PyEval_EvalFrameDefault
    """
    areas, functions = profiles.parse(text)
    assert areas == {"compiled amqpd": 30.5, "kernel": 20.0, "interpreter": 10.0}
    assert functions[0] == (30.5, "compiled amqpd", "broker.queue.Queue.pump")


def test_sampled_profile_is_summed_by_package() -> None:
    counts = {"amqpd.broker.queue.queue Queue.pump": 6, "asyncio.runners Runner.run": 3, "amqpd.server f": 1}
    found = profiles.of_samples(counts)
    assert found.areas == [("broker.queue", 60.0), ("libraries", 30.0), ("server", 10.0)]
    assert found.short().startswith("broker.queue 60 %, libraries 30 %, server 10 %; `queue.Queue.pump` 60.0,")
    with pytest.raises(generator.RunFailed):
        profiles.of_samples({})


def test_picture_has_a_bar_for_each_amqpd() -> None:
    found = outcome([*rounds((100, 10)), Run(1, "S3", "interpreted", {"rate": 40})])
    drawn = picture.draw(found)
    texts = [each.text for each in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"S3", "10x", "S3 interpreted", "4.0x"} <= set(texts)


def test_python_of_another_environment_is_made_absolute(tmp_path: Path) -> None:
    assert Amqpd(tmp_path, "some/bin/python").python == str(Path.cwd() / "some/bin/python")
    with pytest.raises(StartFailed, match="no/such/python"):
        Amqpd(tmp_path, "no/such/python").start()


class FakeBroker(Broker):
    """A broker that fails in the scenario `fails` and can be renewed only if `returns`."""

    def __init__(self, name: str, fails: str = "", returns: bool = True) -> None:
        super().__init__(name, "127.0.0.1", 1)
        self.fails, self.returns, self.renewed = fails, returns, 0

    def renew(self) -> None:
        self.renewed += 1
        if not self.returns:
            raise StartFailed("gone")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the generator: every run gives the same figures."""

    def measure(_plan: Plan, broker: FakeBroker, group: str) -> dict[str, dict[str, float]]:
        if broker.fails == group:
            raise generator.RunFailed("stalled")
        return {group: {"rate": 1.0, "other_cores": 0.0}}

    monkeypatch.setattr(bench_rounds, "measure", measure)
    monkeypatch.setattr(bench_rounds, "PAUSE_S", 0.0)


def run_fake_rounds(brokers: list[FakeBroker], until: float) -> tuple[list[Run], list[str]]:
    plan, runs, notes = Plan(Path("none"), 1.0, 1, 1, True), list[Run](), list[str]()
    bench_rounds.run_rounds(plan, brokers, ["S1", "S3"], 2, {}, until, runs, notes, lambda: None)
    return runs, notes


@pytest.mark.usefixtures("measured")
def test_failed_run_is_recorded_and_its_broker_renewed() -> None:
    peer = FakeBroker("rabbitmq", fails="S1")
    runs, notes = run_fake_rounds([FakeBroker("amqpd"), peer], math.inf)
    assert [(run.round, run.scenario) for run in runs if run.error] == [(1, "S1"), (2, "S1")]
    assert (len(runs), peer.renewed, notes) == (8, 2, [])


@pytest.mark.usefixtures("measured")
def test_peer_that_cannot_be_renewed_is_left_out() -> None:
    runs, notes = run_fake_rounds([FakeBroker("amqpd"), FakeBroker("rabbitmq", fails="S1", returns=False)], math.inf)
    assert [run.broker for run in runs] == ["amqpd", "rabbitmq", "amqpd", "amqpd", "amqpd"]
    assert notes == ["rabbitmq failed and did not come back, so it is missing from there on: gone"]


@pytest.mark.usefixtures("measured")
def test_failure_of_amqpd_ends_the_benchmark() -> None:
    with pytest.raises(StartFailed, match="amqpd failed and did not come back"):
        run_fake_rounds([FakeBroker("amqpd", fails="S3", returns=False), FakeBroker("rabbitmq")], math.inf)


@pytest.mark.usefixtures("measured")
def test_no_run_begins_after_the_time_limit() -> None:
    runs, notes = run_fake_rounds([FakeBroker("amqpd")], time.monotonic())
    assert (runs, notes) == ([], ["Time was up in round 1, at S1: what comes after it is missing."])


def test_guard_allows_fifteen_percent() -> None:
    assert guard.too_dear({"S1": 0.2, "S3": 3.0}, {"S1": 0.229, "S3": 3.46}) == ["S3"]


def test_guard_scales_cpu_time_by_the_reference() -> None:
    costs = guard.Costs(guard.CPU_TIME, {"S1": [0.5, 0.4, 0.9], "S3": [6.0, 7.0]}, [75.0, 60.0, 90.0])
    assert costs.scaled_to(30.0) == {"S1": 0.2, "S3": 3.0}
    counted = guard.Costs(guard.INSTRUCTIONS, {"S1": [900.0]})
    assert counted.scaled_to(0.0) == {"S1": 900.0}
    assert guard.reference_ms() > 0


@pytest.mark.parametrize(
    ("cost", "busy", "code", "text"), [(0.9, 1.5, 0, "good"), (1.3, 0, 1, "DEARER"), (1.3, 1.5, 2, "CANNOT TELL")]
)
def test_guard_verdict_and_exit_code(
    cost: float, busy: float, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record: guard.Record = {"recorded": "2026-01-02", "costs": {"S1": 1.0, "S3": 1.0}, "reference_ms": 10.0}
    assert guard.judge(record, guard.Costs(guard.CPU_TIME, {"S1": [1.0], "S3": [cost]}, [10.0], [busy])) == code
    assert text in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
def test_start_with_queues_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool) -> None:
    """The first point of the curve of `python -m interop.bench.starts`."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    took_ms, rss, cpu_s = starts.measure(tmp_path / "data", "queues", 5, clean)
    assert took_ms > 0 and rss > 10 and cpu_s > 0
    assert not (tmp_path / "data" / "lost+found").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topic", "readers", "backlog", "size", "policies", "declares"])
def test_first_point_of_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(curves, "MESSAGES", 1000)
    point = curves.CURVES[name].measure(100, tmp_path / "data")
    assert point.count == 100 and point.cpu_us > 0 and point.memory_bytes > 10_000_000


def test_growth_is_the_largest_factor_to_a_later_point() -> None:
    points = [curves.Point(count, cost, 0) for count, cost in ((1, 4.0), (10, 2.0), (100, 3.0), (1000, 2.5))]
    assert curves.growth(points) == 1.5
    assert curves.growth(points[:2]) == 1.0


def test_curves_are_drawn() -> None:
    text = picture.draw_curves({"queues": [(1, 0.2), (100_000, 0.3)], "size": [(1024, 1.0)]}, "CPU us")
    panels = ET.fromstring(text).findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [len(str(panel.get("points")).split()) for panel in panels] == [2, 1]
    assert "100k" in text
