"""Runs the programs of Kafka's clients: one process does all steps of a client, and a step is a cell of the matrix."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from .brokers import PEERS, Certificates
from .kafka_brokers import CROSSING, KafkaSide
from .programs import SHARE_PROGRAMS
from .runner import Cell, Run, Verdict, installed, missing_cells, run
from .scenarios import KAFKA_SCENARIOS, Scenario
from .tables import Table

RECORDS: Final = os.environ.get("TEST_KAFKA_RECORDS", "10000")
"""Records of the step `many`."""


def steps_of(output: str) -> dict[str, dict[str, Any]]:
    """Return the steps that a program has printed, by name. Other lines are left out."""
    found = {}
    for line in output.splitlines():
        if line.startswith("{"):
            step = json.loads(line)
            found[str(step["step"])] = step
    return found


class KafkaRunner:
    """Runs all cells of one side. Its arguments and attributes are those of `Runner`."""

    def __init__(self, side: KafkaSide, files: Certificates, table: Table, jobs: int) -> None:
        self._side = side
        self._files = files
        self._jobs = jobs
        self.commands, self.missing = installed(table.clients)

    def cells(self, scenarios: Iterable[Scenario]) -> list[Cell]:
        """Run the programs and return the cells. Cost: some 8 s of a core for each client and listener."""
        chosen = list(scenarios)
        cells = missing_cells(self.missing, chosen, self._side.name)
        with ThreadPoolExecutor(self._jobs) as pool:
            for found in pool.map(lambda client: self._client(client, chosen), self.commands):
                cells += found
        return cells

    def _client(self, client: str, scenarios: list[Scenario]) -> list[Cell]:
        names = {each.name for each in scenarios}
        cells = self._steps(client, [each for each in scenarios if each.name != "tls"]) if names - {"tls"} else []
        if "tls" in names:
            cells.append(self._tls(client))
        return cells

    def _steps(self, client: str, scenarios: list[Scenario]) -> list[Cell]:
        began = time.monotonic()
        ended, crossed = self._run(client, tls=False)
        steps, took = steps_of(ended.out), time.monotonic() - began
        if ended.code and not self._failed(steps):  # it crashed at its end
            crash = {"ok": False, "detail": f"exit code {ended.code} without a failed step: {ended.error}"}
            steps = {name: step if step["ok"] is None else crash for name, step in steps.items()}
        if client in SHARE_PROGRAMS and "share" in {each.name for each in scenarios}:
            steps["share"] = self._share(client)
        if not crossed and steps.get("to-amqp", {}).get("ok"):
            steps["to-amqp"] |= {"ok": False, "detail": "an AMQP consumer did not get the records"}
        cells = []
        for each in scenarios:
            if each.not_in_peer and self._side.name in PEERS:
                cells.append(Cell(client, each.name, self._side.name, "missing", each.not_in_peer))
                continue
            step = steps.get(each.name, {"ok": False, "detail": f"the program did not come to it: {ended.error}"})
            verdicts: dict[bool | None, Verdict] = {True: "pass", False: "fail", None: "not offered"}
            verdict = verdicts[step["ok"]]
            text, output = ("", "") if verdict == "pass" else (str(step["detail"])[:300], ended.out + ended.err)
            cells.append(Cell(client, each.name, self._side.name, verdict, text, output, took))
        return cells

    def _share(self, client: str) -> dict[str, Any]:
        topic = f"{client}-share"
        self._side.create_topic(topic)
        ended = run([*SHARE_PROGRAMS[client](), self._side.plain, topic, "100"], dict(os.environ))
        return {"ok": ended.last_line.startswith("seen 100 again 1 "), "detail": f"{ended.last_line} {ended.err}"}

    def _tls(self, client: str) -> Cell:
        began = time.monotonic()
        ended, crossed = self._run(client, tls=True)
        steps, took = steps_of(ended.out), time.monotonic() - began
        failed = self._failed(steps)
        if not crossed:
            failed.append("to-amqp")
        if ended.code == 0 and not failed:
            return Cell(client, "tls", self._side.name, "pass", seconds=took)
        text = f"failed: {', '.join(failed) or ended.error}"
        return Cell(client, "tls", self._side.name, "fail", text, ended.out + ended.err, took)

    def _failed(self, steps: dict[str, dict[str, Any]]) -> list[str]:
        """Return the names of the steps that failed or are missing. `share` may have a program of its own."""
        names = {each.name for each in KAFKA_SCENARIOS if self._side.amqp or not each.not_in_peer}
        missing = sorted(names - {"share", "tls"} - set(steps))
        failed = [name for name, step in steps.items() if step["ok"] is False]
        return failed + [f"{name} is missing" for name in missing]

    def _run(self, client: str, tls: bool) -> tuple[Run, bool]:
        """Run the steps of a client. Return the end, and whether AMQP and Kafka read each other's messages."""
        variables = dict(os.environ)
        if tls:
            variables |= {"STEPS_CA": str(self._files.ca), "STEPS_USER": self._side.user}
            variables |= {"STEPS_PASSWORD": self._side.password}
        topic = f"{client}-{'tls' if tls else 'plain'}"
        self._side.create_topic(topic)
        variables["STEPS_TOPIC"] = topic  # for kcat, which creates none
        crossing = f"{topic}-crossing" if self._side.amqp else ""
        if crossing:
            self._side.publish(crossing)
            variables |= {"STEPS_CROSSING": crossing}
        address = self._side.tls if tls else self._side.plain
        ended = run([*self.commands[client], address, "--records", RECORDS], variables)
        is_sent = bool(crossing) and steps_of(ended.out).get("to-amqp", {}).get("ok") is True
        expected = [b"from kafka %d" % number for number in range(CROSSING)]
        return ended, not is_sent or self._side.consumed(crossing) == expected
