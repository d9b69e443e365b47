"""Every command of RabbitMQ 3.13's tools works, is answered as on a single node, or says what there is instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_broker import Ctl

from amqpd.cli.help import ELSEWHERE
from amqpd.cli.main import TOOLS
from interop.compare.commands_3_13 import NAMES

HEARD = Path(__file__).parents[1] / "samples" / "rabbitmq-3.10.8-commands.txt"
LATER = {"decrypt_conf_value", "encrypt_conf_value", "message_size_stats", "reconcile_vhosts"}
"""Names of 4.x, of which it is said that they are."""
GONE = [("rabbitmqctl", "hipe_compile")]
"""Of 3.10.8, which 3.13 does not have; amqpctl does."""


@pytest.mark.parametrize("tool", NAMES)
def test_each_is_known(tool: str) -> None:
    here = TOOLS[tool].commands.keys()
    assert [name for name in NAMES[tool] if name not in here and name not in ELSEWHERE] == []
    assert [name for name in NAMES[tool] if name in here and name in ELSEWHERE] == []


def test_none_is_in_the_list_for_nothing() -> None:
    assert ELSEWHERE.keys() == {name for names in NAMES.values() for name in names if name in ELSEWHERE} | LATER


def test_those_of_3_10_8_were_heard_from_its_tools() -> None:
    heard = [line.split() for line in HEARD.read_text("ascii").splitlines() if not line.startswith("#")]
    assert len(heard) > 150
    assert [(tool, name) for tool, name in heard if name not in NAMES[tool]] == GONE


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_what_is_not_there_says_why(ctl: Ctl, name: str) -> None:
    result = ctl(name, "a", "b")
    assert (result.code, result.out) == (64, "")
    assert f"Command '{name}' of RabbitMQ is not part of this version" in result.err
    assert ELSEWHERE[name] in result.err
