from __future__ import annotations

import pytest

from amqpd.cli.errors import UsageError
from amqpd.cli.options import FORMATTERS, check_options, parse, where


@pytest.mark.parametrize(
    "line",
    [
        "-q -p shop list_queues name messages --formatter json",
        "list_queues -q name -p shop messages --formatter=json",
        "list_queues name messages --vhost=shop --formatter JSON --quiet",
        "--vhost shop list_queues --quiet name --formatter json messages",
    ],
)
def test_options_are_accepted_anywhere(line: str) -> None:
    parsed = parse(line.split())
    assert parsed.command == "list_queues"
    assert parsed.operands == ["name", "messages"]
    assert (parsed.vhost, parsed.formatter, parsed.quiet) == ("shop", "json", True)
    assert parsed.wrong == []


def test_default_options() -> None:
    parsed = parse(["list_queues"])
    assert (parsed.vhost, parsed.formatter, parsed.quiet, parsed.headers, parsed.timeout_s) == (
        "/", "table", False, True, None,
    )  # fmt: skip


def test_silent_is_quiet_without_headers() -> None:
    assert parse(["-s", "list_queues"]).quiet
    assert not parse(["-s", "list_queues"]).headers
    assert not parse(["list_queues", "--no-table-headers"]).headers
    assert not parse(["list_queues", "--no-table-headers"]).quiet


def test_words_after_two_dashes_are_operands() -> None:
    parsed = parse(["add_user", "--", "-u", "-p8"])
    assert parsed.operands == ["-u", "-p8"]
    assert parsed.given == {}


def test_empty_operands_are_kept() -> None:
    assert parse(["set_permissions", "u", "", ".*", ""]).operands == ["u", "", ".*", ""]


def test_delete_queue_accepts_u_and_e() -> None:
    assert set(parse(["delete_queue", "q", "-u", "-e"]).given) == {"if-unused", "if-empty"}


@pytest.mark.parametrize("option", ["-?", "-h", "--help"])
def test_help_has_three_spellings(option: str) -> None:
    assert "help" in parse(["list_queues", option]).given


@pytest.mark.parametrize(
    ("line", "command", "wrong"),
    [
        ("list_queues --bogus", "list_queues", "--bogus : "),
        ("list_queues --formater json", "list_queues", "--formater : did you mean --formatter?"),
        ("list_queues --formatter", "list_queues", "--formatter : needs a value"),
        ("list_queues -p", "list_queues", "-p : needs a value"),
        ("list_queues --quiet=yes", "list_queues", "--quiet : takes no value"),
        ("-n a@b -q join_cluster --ram a", "join_cluster", "--ram : "),
        ("--vhost v list_queues -x", "list_queues", "-x : "),
        ("--vhost=v list_queues -x", "list_queues", "-x : "),
        ("list_queues -t x", "list_queues", "-t : x"),
        ("list_queues -t -1", "list_queues", "-t : -1"),
        ("list_queues --formatter nope", "list_queues", f"--formatter : nope (known: {', '.join(FORMATTERS)})"),
    ],
)
def test_wrong_option_is_reported_and_command_is_found(line: str, command: str, wrong: str) -> None:
    parsed = parse(line.split())
    assert parsed.command == command
    assert parsed.wrong == [wrong]
    with pytest.raises(UsageError, match="Invalid options for this command"):
        check_options(parsed, ())


def test_option_of_another_command_is_refused() -> None:
    parsed = parse(["list_users", "--if-empty"])
    with pytest.raises(UsageError, match="--if-empty"):
        check_options(parsed, ("no-table-headers",))
    check_options(parsed, ("if-empty",))


def test_no_table_headers_needs_table_formatter() -> None:
    with pytest.raises(UsageError, match="--no-table-headers"):
        check_options(parse(["list_users", "--no-table-headers", "--formatter", "json"]), ("no-table-headers",))
    check_options(parse(["list_users", "--no-table-headers"]), ("no-table-headers",))


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        parse(["add_vhost", "\udcff"])


@pytest.mark.parametrize(
    ("line", "environment", "expected"),
    [
        ([], {}, ("", "./amqpd-data")),
        ([], {"AMQPD_DATA_DIR": "/d"}, ("", "/d")),
        ([], {"AMQPD_DATA_DIR": ""}, ("", "./amqpd-data")),
        ([], {"AMQPD_DATA_DIR": "/d", "AMQPCTL_URI": "http://h"}, ("http://h", "")),
        (["--data-dir", "/e"], {"AMQPD_DATA_DIR": "/d", "AMQPCTL_URI": "http://h"}, ("", "/e")),
        (["--uri", "http://i"], {"AMQPD_DATA_DIR": "/d", "AMQPCTL_URI": "http://h"}, ("http://i", "")),
    ],
)
def test_address_of_the_broker(line: list[str], environment: dict[str, str], expected: tuple[str, str]) -> None:
    assert where(parse(["ping", *line]), environment) == expected


def test_uri_and_data_dir_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="not through both"):
        check_options(parse(["ping", "--uri", "http://h", "--data-dir", "d"]), ())


@pytest.mark.parametrize("text", ["-1", "x", "", "1.5", "²"])
def test_numbers_are_non_negative_integers(text: str) -> None:
    parsed = parse(["close_all_connections", f"--limit={text}", "why"])
    with pytest.raises(UsageError, match="--limit"):
        parsed.number("limit")
