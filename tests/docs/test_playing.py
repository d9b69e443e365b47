"""The page player finds blocks that fail, or whose output or answer differs from the page."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from playing import Player, WrongBlock, agrees, differs


def play_page(text: str, folder: Path) -> Player:
    with Player(pages.parse("page.md", text), folder) as player:
        player.play()
    return player


def fence(language: str, text: str, mark: str = "") -> str:
    return (f"<!-- {mark} -->\n" if mark else "") + f"```{language}\n{text}\n```\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        fence("python", "raise SystemExit(1)"),
        fence("sh", "amqpctl list_nothing"),
        fence("sh", "false; true"),
        fence("sh", "true", "exit: 64"),
        fence("python", "print(1)") + fence("text", "2", "prints"),
        fence("toml", "[amqp]\nporrt = 1"),
        fence("ini", "no.such.key = 1"),
        fence("http", "GET /api/nothing"),
        fence("http", "GET /api/overview") + fence("json", '{"product_name": "RabbitMQ"}', "answers"),
        fence("sql", "SELECT nothing FROM nowhere"),
        fence("json", "{"),
    ],
)
def test_wrong_blocks_are_found(text: str, tmp_path: Path) -> None:
    with pytest.raises((WrongBlock, ValueError)):
        play_page(text, tmp_path)


def test_correct_blocks_are_run(tmp_path: Path) -> None:
    player = play_page(
        "".join(
            [
                fence("sh", "amqpctl -q add_vhost shop; amqpctl -q set_permissions -p shop guest '.*' '.*' '.*'"),
                fence("sh", "amqpctl -qs list_vhosts | sort"),
                fence("text", "/\nshop", "prints"),
                fence("http", 'PUT /api/queues/shop/orders\n\n{"durable": true}'),
                fence("http", "GET /api/queues/shop/orders"),
                fence("json", '{"name": "orders", "arguments": "..."}', "answers"),
                fence("python", "X = 4", "file: kept.py"),
                fence("python", "import kept, os\nprint('x is', kept.X, 'at', os.environ['AMQP_URL'])"),
                fence("text", "x is 3 at ...", "prints, numbers at least"),
                fence("sh", "reboot", "not run: it would"),
                fence("sql", "SELECT 1 + 1"),
                fence("text", "2", "prints"),
                fence("sh", "touch beside", "background"),
                fence("sh", "until [ -e beside ]; do sleep 0.01; done"),
                fence("toml", "[amqp]\nport = 5673"),
                fence("ini", "listeners.tcp.default = 5673"),
            ]
        ),
        tmp_path,
    )
    assert [(block.text, reason) for block, reason in player.skipped] == [("reboot\n", "it would")]


def test_unused_files_are_found(tmp_path: Path) -> None:
    player = play_page(
        "".join(
            [
                fence("python", "X = 4", "file: imported.py"),
                fence("python", "X = 4", "file: named.py"),
                fence("toml", "[amqp]", "file: read.toml"),
                fence("python", "X = 4", "file: unused.py"),
                fence("toml", "[amqp]", "file: unread.toml"),
                fence("python", "import imported"),
                fence("sh", "python named.py; amqpd --check-config --config read.toml"),
            ]
        ),
        tmp_path,
    )
    assert [each.split()[1] for each in player.unused()] == ["unused.py", "unread.toml"]


def test_output_with_dots_and_numbers() -> None:
    assert agrees("a ... c\n", "a b c\n")
    assert agrees("a\n...\nz\n", "a\nb\nc\nz\n")
    assert agrees("...\nz\n", "z\n")
    assert not agrees("a\n", "a\nb\n")
    assert not agrees("a\nb\n", "a\n")
    assert agrees("after 3 s: bad", "after 12 s: bad", numbers=True)
    assert not agrees("after 3 s: bad", "after 2 s: bad", numbers=True)


def test_json_answers() -> None:
    assert differs({"a": [1, "..."]}, {"a": [1, 2], "b": 3}) == ""
    assert differs({"a": 1}, {}) == "$.a is missing"
    assert differs({"a": [{"b": 1}]}, {"a": [{"b": 2}]}) == "$.a[0].b is 2, not 1"


def test_missing_language_and_indented_code_are_found() -> None:
    text = "# A\n\n```\nx\n```\n\n    amqpctl status\n\n- one\n\n    more of one\n\n" + fence("sh", "x", "nott run: y")
    faults = pages.faults(pages.parse("a.md", text))
    assert [fault.split(":")[1] for fault in faults] == ["3", "14", "7", "11"]
