"""Thousands of random programs, each said to a whole broker in memory and to its naive twin: 0 differences.

A program declares exchanges of every type (alternates, bindings among them, some that delay), queues of all kinds with
limits, time to live, priorities, dead letters, retries and groups, sets and clears policies, publishes, gets, consumes,
acks, rejects, requeues and commits, numbers what it sends, reads streams from any place, moves, copies, deletes and
redrives messages and has them once more, restarts the broker, cleanly or not, and lets time pass.
Every answer is compared when it comes, every count after every step, and at the end what is in each queue: bodies,
order, routing, redelivered, and the whole story that the headers of dead letters tell.

`-m on_demand` runs 10,000 (TEST_PROGRAMS sets another count), TEST_PROGRAMS_SEED says where they begin. What fails is
said again with ever less, and what is left is printed.

    timeout 1800 python -P -m pytest tests/model/test_programs.py -m on_demand -s

That they see (the broker broken by hand on 2026-11-23, one way at a time; the first program that was red): a delay that
arrives as it was said (30); delayed messages 100 ms late (32); the wrong level of a retry (170); a length that drops
what is ready before what waits (269); a group that is free after its first ack (118), or does not wait behind its retry
(39); an older epoch that is stored (4); a history of one more (569); what a queue has refused remembered as seen (569);
a rewind of what is over (360); a move that keeps a producer's numbers (387); a transaction that displaces nothing (16);
a limit of one more (89).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from profiles import examples
from program_choices import watching
from program_parts import Anyhow, Different
from program_player import Player
from programs import Op, program, shrunk

SIZE = 45
COUNT = examples(300)
SEED = int(os.environ.get("TEST_PROGRAMS_SEED", "1"))


@pytest.fixture(autouse=True)
def choices_are_seen() -> Iterator[None]:
    with watching():
        yield


def outcome(ops: list[Op]) -> str:
    """What is different; empty: nothing, or nothing that anybody is owed."""
    player = Player()
    try:
        player.play(ops)
    except Anyhow:
        return ""
    except Different as error:
        return f"{error}"
    return ""


def run(seeds: range) -> None:
    whole = steps = 0
    for seed in seeds:
        ops = program(seed, SIZE)
        player = Player()
        try:
            player.play(ops)
            whole += 1
        except Anyhow:
            pass
        except Different as error:
            less = shrunk(ops, lambda part: bool(outcome(part)))
            lines = "\n".join(f"    {op!r}," for op in less)
            pytest.fail(f"seed {seed}: {error}\nand with less: {outcome(less)}\n{lines}")
        steps += player.steps
    print(f"{len(seeds)} programs, {whole} of them to their end, {steps} steps, 0 differences")
    assert whole > len(seeds) // 2


def test_programs() -> None:
    run(range(SEED, SEED + COUNT))


@pytest.mark.on_demand
@pytest.mark.timeout(3600)
def test_ten_thousand_programs() -> None:
    run(range(SEED, SEED + int(os.environ.get("TEST_PROGRAMS", "10000"))))
