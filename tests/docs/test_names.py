"""Names in the manuals exist: commands of amqpctl, paths of the admin API, settings."""

from __future__ import annotations

import re

import pages
import pytest

from amqpd.cli.commands import COMMANDS
from amqpd.cli.help import ELSEWHERE
from amqpd.config import rows
from amqpd.management.request import ApiError
from amqpd.management.router import Router
from amqpd.management.routes import ROUTES

NAMES = [name for name in pages.names() if not name.endswith(("compatibility.md", "moving.md"))]
"""These two are about RabbitMQ's names and have other tests."""

TOOLS = re.compile(r"rabbitmq[\w-]+")
COMMAND = re.compile(r"`amqpctl (?:-\w+ )*(?P<name>[a-z]\w+)[^`]*`")
REQUEST = re.compile(r"`?\b(?P<method>GET|PUT|POST|DELETE)`? `?(?P<path>/(?:api|health|metrics)[\w/{}%.-]*)")
SECTIONS = {row.name.rpartition(".")[0] for row in rows()}
FIRST_SECTIONS = "|".join(sorted({name.partition(".")[0] for name in SECTIONS} - {""}))
SETTING = re.compile(rf"`(?P<name>(?:{FIRST_SECTIONS})(?:\.\w+)+)\b")
OTHERS = {"audit.lost", "definitions.imported", "kafka.refused", "metadata.recovery.strategy"}
"""Events, fields of the API and settings of clients that look like settings."""


@pytest.mark.parametrize("name", NAMES)
def test_named_commands_exist(name: str) -> None:
    named = {found["name"] for found in COMMAND.finditer(pages.read(name).text)}
    assert {each for each in named - COMMANDS.keys() - ELSEWHERE.keys() if not TOOLS.match(each)} == set()


@pytest.mark.parametrize("name", NAMES)
def test_named_paths_are_served(name: str) -> None:
    router = Router(ROUTES)
    missing = []
    for found in REQUEST.finditer(pages.read(name).text):
        try:
            if found["path"] != "/api/...":
                router.find(found["method"], found["path"].rstrip("/."))
        except ApiError:
            missing.append(found.group())
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_named_settings_exist(name: str) -> None:
    known = {row.name for row in rows()} | SECTIONS
    named = {found["name"] for found in SETTING.finditer(pages.read(name).text)}
    assert {each for each in named - known - OTHERS if not each.endswith((".toml", ".conf", ".md", ".file"))} == set()
