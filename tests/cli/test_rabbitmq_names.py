"""Every command of RabbitMQ 3.13's tools exists, or its error names the replacement."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_broker import Ctl

from amqpd.cli.help import ELSEWHERE
from amqpd.cli.main import TOOLS
from interop.compare.commands_3_13 import NAMES

COMMANDS_FILE = Path(__file__).parents[1] / "samples" / "rabbitmq-3.10.8-commands.txt"
LATER = {"decrypt_conf_value", "encrypt_conf_value", "message_size_stats", "reconcile_vhosts"}
"""Commands of RabbitMQ 4.x in the table of missing commands."""
REMOVED = [("rabbitmqctl", "hipe_compile")]
"""Commands of 3.10.8 that 3.13 removed; amqpctl has them."""


@pytest.mark.parametrize("tool", NAMES)
def test_each_command_exists_or_is_listed_as_missing(tool: str) -> None:
    own_commands = TOOLS[tool].commands.keys()
    assert [name for name in NAMES[tool] if name not in own_commands and name not in ELSEWHERE] == []
    assert [name for name in NAMES[tool] if name in own_commands and name in ELSEWHERE] == []


def test_list_of_missing_commands_has_no_other_names() -> None:
    assert ELSEWHERE.keys() == {name for names in NAMES.values() for name in names if name in ELSEWHERE} | LATER


def test_recorded_commands_of_3_10_8_are_in_3_13() -> None:
    recorded = [line.split() for line in COMMANDS_FILE.read_text("ascii").splitlines() if not line.startswith("#")]
    assert len(recorded) > 150
    assert [(tool, name) for tool, name in recorded if name not in NAMES[tool]] == REMOVED


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_missing_command_prints_reason(ctl: Ctl, name: str) -> None:
    result = ctl(name, "a", "b")
    assert (result.code, result.out) == (64, "")
    assert f"Command '{name}' of RabbitMQ is not part of this version" in result.err
    assert ELSEWHERE[name] in result.err
