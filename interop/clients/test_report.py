"""The matrix's verdicts and their forms, without a broker."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Self, cast

import pytest

from . import report
from .__main__ import main
from .brokers import KAFKA, RABBITMQ, Certificates, Side
from .kafka_brokers import KafkaSide
from .kafka_runner import KafkaRunner, steps_of
from .programs import BY_NAME, CLIENTS, HERE, Client, Missing, full_command
from .programs import KAFKA as KAFKA_PROGRAMS
from .runner import Cell, Runner, Verdict, differences, errors, run
from .scenarios import BY_NAME as SCENARIO
from .scenarios import KAFKA_SCENARIOS, SCENARIOS, TASK_SCENARIOS
from .tables import AMQP, KAFKA_PROTOCOL, TABLES

PROGRAMS: Final = (".c", ".go", ".h", ".java", ".mjs", ".php", ".pl", ".py", ".rb", ".rs", ".sh")
LINES_MAX: Final = 150


def cell(side: str, verdict: Verdict, scenario: str = "tx", text: str = "") -> Cell:
    return Cell("pika", scenario, side, verdict, text, "Traceback\nSomeError")


def matrix(*cells: Cell) -> report.Matrix:
    client = Client("pika", "Python", lambda: ["pika"])
    scenarios = tuple(each for each in SCENARIOS if each.name in {each.scenario for each in cells})
    table = AMQP._replace(clients=(client,), scenarios=scenarios)
    return report.Matrix(table, {"amqpd": "1", RABBITMQ: "3.10.8"}, {"pika": "1.4"}, cells)


def test_failure_with_amqpd_alone_is_a_difference() -> None:
    failed = cell("amqpd", "fail")
    assert differences([failed, cell(RABBITMQ, "pass")]) == [failed]
    assert differences([failed, cell(RABBITMQ, "missing")]) == [failed]
    assert differences([failed]) == [failed]


def test_failure_with_both_or_with_rabbitmq_alone_is_no_difference() -> None:
    assert differences([cell("amqpd", "fail"), cell(RABBITMQ, "fail")]) == []
    assert differences([cell("amqpd", "pass"), cell(RABBITMQ, "fail")]) == []


def test_failure_with_both_is_an_error_of_the_program() -> None:
    failed, silent = cell("amqpd", "fail"), cell("compat", "not offered")
    assert errors([failed, cell(RABBITMQ, "fail")]) == [failed]
    assert errors([failed, silent, cell(RABBITMQ, "pass")]) == [failed, silent]
    assert errors([cell("amqpd", "pass"), silent, cell(RABBITMQ, "fail")]) == []


def test_client_that_offers_it_only_with_rabbitmq_is_a_difference() -> None:
    silent = cell("amqpd", "not offered")
    assert differences([silent, cell(RABBITMQ, "pass")]) == [silent]
    assert differences([silent, cell(RABBITMQ, "not offered")]) == []


def test_failure_with_amqpd_and_not_with_kafka_is_a_difference() -> None:
    failed = cell("amqpd", "fail", "seek")
    assert differences([failed, cell(KAFKA, "pass", "seek")]) == [failed]
    assert differences([failed, cell(KAFKA, "fail", "seek")]) == []


def test_names_are_unique_in_all_tables() -> None:
    names = [client.name for table in TABLES for client in table.clients]
    assert sorted(set(names)) == sorted(names)
    for table in TABLES:
        assert len({each.name for each in table.scenarios}) == len(table.scenarios)


def test_part_of_a_table_has_the_chosen_names_alone() -> None:
    part = AMQP.part(["pika"], ["tx", "nosuch"], [])
    assert ([each.name for each in part.clients], [each.name for each in part.scenarios]) == (["pika"], ["tx"])
    assert part.sides == AMQP.sides


def test_steps_are_read_from_the_lines_that_are_json() -> None:
    lines = 'a warning\n{"step": "seek", "ok": true, "detail": "777"}\n{"step": "share", "ok": null, "detail": "no"}\n'
    assert {name: step["ok"] for name, step in steps_of(lines).items()} == {"seek": True, "share": None}


def test_program_that_says_nothing_or_exits_with_an_error_did_not_pass() -> None:
    code = "import sys; print('pass'); sys.exit(3)"
    assert run([sys.executable, "-c", code], dict(os.environ)).code == 3
    assert run([sys.executable, "-c", ""], dict(os.environ)).last_line == ""


@pytest.mark.parametrize(("name", "interpreter"), [("bunny", "ruby"), ("php-amqplib", "php")])
def test_client_whose_interpreter_lacks_the_library_is_missing(
    name: str, interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / interpreter
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Missing, match="make clients"):
        BY_NAME[name].command()


def test_ready_is_no_line_of_the_output() -> None:
    assert run([sys.executable, "-c", "print('low on memory\\nready\\nunblocked')"], dict(os.environ)).lines == [
        "low on memory",
        "unblocked",
    ]


def test_ready_is_reported_at_the_line_and_at_the_end() -> None:
    told: list[None] = []
    run([sys.executable, "-c", "print('ready')"], dict(os.environ), lambda: told.append(None))
    assert len(told) == 2


def test_forms_of_the_matrix_have_each_verdict_and_reason() -> None:
    found = matrix(cell("amqpd", "not offered", text="no tx"), cell(RABBITMQ, "not offered", text="no tx"))
    assert "| tx | – |" in report.markdown([found])
    assert "not offered: pika: every scenario: no tx" in report.text([found])
    found = matrix(cell("amqpd", "fail", text="broken <b>"), cell(RABBITMQ, "pass"))
    assert "| tx | FAIL pass |" in report.markdown([found])
    assert "broken &lt;b&gt;" in report.page([found])
    assert "SomeError" in report.text([found])
    assert "1 cells are worse with amqpd than with RabbitMQ" in report.text([found])
    assert "1 cells fail with amqpd; RabbitMQ was not tried" in report.text([found._replace(sides={"amqpd": "1"})])
    assert json.loads(report.document([found]))["tables"]["amqp"]["differences"] == [["pika", "tx", "amqpd"]]


def test_tables_of_the_page_have_few_columns_and_one_language_or_several_whole_ones() -> None:
    clients = tuple(
        Client(f"c{n}", language, list) for language, size in [("A", 11), ("B", 3), ("C", 4)] for n in range(size)
    )
    found = [[each.language for each in group] for group in report.groups(clients)]
    assert found == [["A"] * 8, ["A"] * 3 + ["B"] * 3, ["C"] * 4]
    assert "### A, B\n\n| scenario | c8 | c9 | c10 | c0 |" in report.markdown(
        [matrix()._replace(table=AMQP._replace(clients=clients, scenarios=()))]
    )


@pytest.mark.parametrize(
    ("scenario", "lines", "accepted"),
    [
        ("routing", ["warning", "error"], True),
        ("routing", ["error", "warning"], False),
        ("routing", ["warning"], False),
        ("routing", [], False),
        ("routing", ["what else it printed", "pass"], True),
        ("inequivalent", ["Exception (406): inequivalent arg 'durable' for queue"], True),
        ("inequivalent", ["Exception (404): inequivalent arg 'durable' for queue"], False),
        ("headers", [], False),
    ],
)
def test_program_passes_by_its_own_check_or_by_all_lines_of_the_catalogue(
    scenario: str, lines: list[str], accepted: bool
) -> None:
    assert SCENARIO[scenario].accepts(lines) is accepted


def test_programs_are_as_short_as_a_tutorial() -> None:
    files = (each for each in HERE.glob("*/**/*") if each.suffix in PROGRAMS)
    long = [str(each.relative_to(HERE)) for each in files if len(each.read_text("utf-8").splitlines()) > LINES_MAX]
    assert long == []


@pytest.mark.parametrize("folder", [HERE, KAFKA_PROGRAMS / "kafkajs"], ids=["clients", "kafkajs"])
def test_lock_file_has_the_pinned_versions_and_names_no_registry(folder: Path) -> None:
    wanted = json.loads((folder / "package.json").read_text("utf-8"))["dependencies"]
    text = (folder / "package-lock.json").read_text("utf-8")
    locked = json.loads(text)["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert '"resolved"' not in text


def test_command_names_the_program_of_the_group_and_then_the_scenario() -> None:
    assert full_command(["python3", "pika/{group}.py"], "publish", "tx") == ["python3", "pika/publish.py", "tx"]
    assert full_command(["rabbitmq-c"], "publish", "tx") == ["rabbitmq-c", "tx"]


def test_every_scenario_whose_program_may_be_one_of_several_has_a_group() -> None:
    assert [each.name for each in (*SCENARIOS, *TASK_SCENARIOS) if not each.group] == []


def test_every_wrapper_is_over_a_client_of_the_matrix() -> None:
    assert {each.over for each in CLIENTS if each.over} <= {each.name for each in CLIENTS if not each.over}


def test_unknown_names_are_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--clients", "nosuch"])
    assert "unknown: nosuch; known: pika" in capsys.readouterr().err


def test_choice_without_a_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--clients", "pika", "--scenarios", "rebalance"])
    assert "no table has the chosen clients, scenarios and sides together" in capsys.readouterr().err


class Fake(KafkaSide):
    """A side without a broker."""

    name, version, user, plain, tls = "amqpd", "1", "guest", "localhost:1", "localhost:2"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def create_topic(self, topic: str) -> None:
        """Do nothing."""


def kafka_cells(tmp_path: Path, steps: Sequence[str], code: int = 0) -> dict[str, str]:
    lines = "\n".join(json.dumps({"step": name, "ok": True, "detail": ""}) for name in steps)
    program = [sys.executable, "-c", f"import sys; print({lines!r}); sys.exit({code})"]
    table = KAFKA_PROTOCOL._replace(clients=(Client("made", "Python", lambda: program),))
    files = Certificates(*[tmp_path] * 3)
    found = KafkaRunner(Fake(), files, table, 1).cells([each for each in KAFKA_SCENARIOS if not each.not_in_peer])
    return {each.scenario: each.verdict for each in found}


KAFKA_STEPS = [each.name for each in KAFKA_SCENARIOS if not each.not_in_peer and each.name != "tls"]


def test_program_of_kafka_that_does_all_steps_passes(tmp_path: Path) -> None:
    assert set(kafka_cells(tmp_path, KAFKA_STEPS).values()) == {"pass"}


def test_step_that_a_program_of_kafka_leaves_out_fails_and_tls_too(tmp_path: Path) -> None:
    found = kafka_cells(tmp_path, [each for each in KAFKA_STEPS if each != "seek"])
    assert {name for name, verdict in found.items() if verdict == "fail"} == {"seek", "tls"}


def test_program_of_kafka_that_crashes_after_its_last_step_fails(tmp_path: Path) -> None:
    assert set(kafka_cells(tmp_path, KAFKA_STEPS, code=139).values()) == {"fail"}


def test_program_that_does_not_start_does_not_hold_up_the_others(tmp_path: Path) -> None:
    table = AMQP._replace(clients=(Client("made", "Python", lambda: [str(tmp_path / "nosuch")]),))
    node = SimpleNamespace(
        amqp_port=1, tls_port=2, http_port=3, metrics_port=4, set_memory_limit=str, add_vhost=str, kill_and_start=str
    )
    side = cast("Side", SimpleNamespace(name="amqpd", node=node, second=node))
    with pytest.raises(FileNotFoundError):
        Runner(side, Certificates(*[tmp_path] * 3), table, 1).cells([SCENARIO["blocked"]])
