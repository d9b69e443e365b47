"""The runner reads the output of suites and compares it. No suite, broker or network is needed."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from interop.clients.brokers import RABBITMQ

from . import __main__ as program
from . import runner
from .__main__ import main
from .recipes import (
    RECIPES,
    UNAVAILABLE,
    NotPrepared,
    Recipe,
    Results,
    do,
    ginkgo_results,
    go_results,
    junit_results,
    rust_results,
)
from .runner import Outcome, compare, document, prepare, run_suite, text

JUNIT = """<testsuites><testsuite>
<testcase classname="t.test_a" name="good"/>
<testcase classname="t.test_a" name="bad"><failure message="no"/></testcase>
<testcase classname="t.test_a" name="broken"><error message="no"/></testcase>
<testcase classname="t.test_a" name="later"><skipped/></testcase>
<testcase name="panics" status="panicked"/>
</testsuite></testsuites>"""

GO = """=== RUN   TestOpen
--- PASS: TestOpen (0.01s)
    --- SKIP: TestOpen/tls (0.00s)
--- FAIL: TestClose (0.00s)
FAIL
"""

RUST = """     Running tests/connection.rs (target/debug/deps/connection-1a2b)
running 2 tests
test opens ... ok
test closes - should panic ... FAILED
     Running unittests src/lib.rs (target/debug/deps/lapin-3c4d)
test opens ... ignored
"""


GINKGO = """Will run 3 of 3 specs

Users
  lists them
  /work/users_test.go:10
•
------------------------------
Users
  deletes them
  /work/users_test.go:20

• Failure [0.013 seconds]
Users
/work/users_test.go:5
  deletes them [It]
  /work/users_test.go:20
------------------------------
Users
  takes its time
  /work/users_test.go:30

• [SLOW TEST:8.840 seconds]
Users
/work/users_test.go:5
------------------------------
P [PENDING]
Users
  is not written
  /work/users_test.go:40
------------------------------
Users
  hangs
  /work/users_test.go:50
"""


def recipe(command: list[str], results: Results) -> Recipe:
    return Recipe("made 1", lambda folder: (folder / "source").mkdir(), lambda _: command, lambda *_: results)


def outcome(ours: Results, theirs: Results) -> Outcome:
    made = recipe([], {})
    return Outcome("made", made, {RABBITMQ: "3.10.8", "amqpd": "1"}, {RABBITMQ: theirs, "amqpd": ours})


def test_junit_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert junit_results(report) == {}, "a suite that crashed has no report"
    report.write_text(JUNIT, "utf-8")
    found = {name.removeprefix("t.test_a::"): verdict for name, verdict in junit_results(report).items()}
    assert found == {"good": "passed", "bad": "failed", "broken": "failed", "later": "skipped", "panics": "failed"}


def test_output_of_go_and_rust_is_read(tmp_path: Path) -> None:
    assert go_results(GO, tmp_path) == {"TestOpen": "passed", "TestOpen/tls": "skipped", "TestClose": "failed"}
    assert rust_results(RUST, tmp_path) == {
        "connection::opens": "passed",
        "connection::closes": "failed",
        "lib::opens": "skipped",
    }


def test_output_of_ginkgo_is_read(tmp_path: Path) -> None:
    assert ginkgo_results(GINKGO, tmp_path) == {
        "Users: lists them": "passed",
        "Users: deletes them": "failed",
        "Users: takes its time": "passed",
        "Users: is not written": "skipped",
    }


@pytest.mark.parametrize("ours", [{"a": "failed"}, {"a": "skipped"}, {}])
def test_difference_is_a_test_that_passes_with_rabbitmq_alone(ours: Results) -> None:
    found = outcome(ours, {"a": "passed", "b": "failed"})
    assert found.differences() == ["a"]
    assert "1 tests pass with RabbitMQ and not with amqpd" in text(found)
    assert f"a: RabbitMQ passed, amqpd {ours.get('a', 'not run')}" in text(found)
    assert json.loads(document(found))["differences"] == ["a"]


def test_failure_with_both_or_with_rabbitmq_alone_is_no_difference() -> None:
    assert outcome({"a": "failed", "b": "passed"}, {"a": "failed", "b": "failed"}).differences() == []


def test_suite_runs_in_its_sources_with_the_addresses(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ['AMQP_URL'])"
    made = recipe([sys.executable, "-c", code], {"a": "passed"})
    prepare(made, tmp_path / "suite")
    log = tmp_path / "log"
    assert run_suite(made, tmp_path / "suite", log) == {"a": "passed"}
    assert log.read_text("utf-8").split() == [str(tmp_path / "suite" / "source"), "amqp://guest:guest@127.0.0.1:5672/"]


def test_suite_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "TIMEOUT_S", 0.1)
    (tmp_path / "source").mkdir()
    run_suite(recipe([sys.executable, "-c", "import time; time.sleep(600)"], {}), tmp_path, tmp_path / "log")
    assert "killed after 0.1 s" in (tmp_path / "log").read_text("utf-8")


def test_suite_is_prepared_once_for_a_version(tmp_path: Path) -> None:
    made = recipe([], {})
    prepare(made, tmp_path / "suite")
    (tmp_path / "suite" / "source" / "built").touch()
    prepare(made, tmp_path / "suite")
    assert (tmp_path / "suite" / "source" / "built").exists()
    prepare(made._replace(origin="made 2"), tmp_path / "suite")
    assert not (tmp_path / "suite" / "source" / "built").exists()


def test_failed_step_is_reported_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(NotPrepared, match="no such package"):
        do([sys.executable, "-c", "import sys; sys.exit('no such package')"], tmp_path)
    with pytest.raises(NotPrepared, match="the program nosuch-program is not installed"):
        do(["nosuch-program"], tmp_path)


def test_late_test_may_pass_in_a_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([{"a": "passed", "b": "passed"}, {"a": "failed", "b": "passed"}, {"a": "passed", "b": "failed"}])
    monkeypatch.setattr(runner, "rabbitmq", lambda folder: nullcontext("3.10.8"))
    monkeypatch.setattr(runner, "amqpd", lambda folder, compat: nullcontext("1"))
    monkeypatch.setattr(runner, "run_suite", lambda *_: next(runs))
    found = compare("made", recipe([], {}), tmp_path, tmp_path, "", beside=True)
    assert (found.differences(), found.results["amqpd"]) == ([], {"a": "passed", "b": "passed"})


def test_suite_that_no_registry_has_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for name, why in (("bunny", UNAVAILABLE["bunny"]), ("nosuch", ", ".join(RECIPES))):
        with pytest.raises(SystemExit):
            main([name])
        assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("results", [{}, {"a": "failed", "b": "skipped"}])
def test_suite_of_which_nothing_passes_is_an_error(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Outcome("py-amqp", recipe([], {}), {"amqpd": "1"}, {"amqpd": results})
    monkeypatch.setattr(program, "prepare", lambda *_: tmp_path.joinpath("py-amqp").mkdir())
    monkeypatch.setattr(program, "enter_namespace", lambda: True)
    monkeypatch.setattr(program, "compare", lambda *_: found)
    assert main(["py-amqp", "--out", str(tmp_path)]) == 2
    assert "no test of py-amqp passed with amqpd" in capsys.readouterr().err
