"""Output formats as measured with rabbitmqctl 3.10.8."""

from __future__ import annotations

import csv as library
import io
import json

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli import erlang, formatters, terminal

COLUMNS = ("name", "arguments", "messages", "durable", "tags")
ROWS = [
    ["q1", {"x-max-length": 10, "x-dead-letter-exchange": "dlx é"}, 3, True, ["administrator", "monitoring"]],
    ['a"b\\', {}, 0, False, []],
]


def test_table_is_separated_by_tabs() -> None:
    assert formatters.table(COLUMNS, ROWS, True) == (
        "name\targuments\tmessages\tdurable\ttags\n"
        'q1\t[{"x-max-length",10},{"x-dead-letter-exchange","dlx é"}]\t3\ttrue\t[administrator, monitoring]\n'
        'a"b\\\t[]\t0\tfalse\t[]\n'
    )


def test_table_without_headers() -> None:
    assert formatters.table(("name",), [["q"]], False) == "q\n"


@pytest.mark.parametrize("name", ["table", "pretty_table", "csv"])
def test_empty_list_has_no_header(name: str) -> None:
    assert formatters.BY_NAME[name](COLUMNS, [], True) == ""


def test_json_has_one_object_per_line() -> None:
    text = formatters.json_rows(
        ("name", "owner_pid", "arguments"), [["q", None, {"n": 1}], ["é\t", "<a.1.0>", {}]], True
    )
    assert text == (
        '[\n{"name":"q","owner_pid":"","arguments":{"n":1}}\n,{"name":"é\\t","owner_pid":"<a.1.0>","arguments":{}}\n]\n'
    )
    assert json.loads(text)[1]["name"] == "é\t"
    assert formatters.json_rows(("name",), [], True) == "[\n]\n"


def test_csv_quotes_everything_and_keeps_its_header() -> None:
    text = formatters.csv(COLUMNS, ROWS, False)
    assert text.splitlines()[0] == '"name","arguments","messages","durable","tags"'
    assert '"[{""x-max-length"",10},' in text
    rows = list(library.reader(io.StringIO(text)))
    assert rows[2] == ['a"b\\', "[]", "0", "false", "[]"]


def test_pretty_table_is_a_box() -> None:
    assert formatters.pretty_table(("user", "tags"), [["u1", []], ["guest", ["administrator"]]], True) == (
        "┌───────┬─────────────────┐\n"
        "│ user  │ tags            │\n"
        "├───────┼─────────────────┤\n"
        "│ u1    │ []              │\n"
        "├───────┼─────────────────┤\n"
        "│ guest │ [administrator] │\n"
        "└───────┴─────────────────┘\n"
    )


def test_wide_and_combining_characters_keep_the_box_aligned() -> None:
    text = formatters.pretty_table(("name",), [["注文"], ["e\u0301"], ["plain"]], True)
    assert {terminal.width(line) for line in text.splitlines()} == {9}
    assert terminal.width("注文") == 4
    assert terminal.width("e\u0301") == 1


@pytest.mark.parametrize(
    ("value", "term"),
    [
        ({"connection_name": 'my"conn'}, '[{"connection_name","my\\"conn"}]'),
        ({"a": {"b": True, "c": [1, "x", None]}}, '[{"a",[{"b",true},{"c",[1,"x",undefined]}]}]'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\nbreak", '"line\\nbreak"'),
        (1.5, "1.5"),
        (False, "false"),
    ],
)
def test_value_is_printed_as_erlang_term(value: object, term: str) -> None:
    assert erlang.erlang(value) == term


def test_control_characters_are_escaped() -> None:
    control_text = "q\tx\n\x1b[2J\x9b"
    for name in ("table", "pretty_table"):
        text = formatters.BY_NAME[name](("name",), [[control_text]], False)
        assert "q\\tx\\n\\x1b[2J\\x9b" in text
        assert not set(text) & {"\t", "\x1b", "\x9b"}
    assert json.loads(formatters.json_rows(("name",), [[control_text]], True)) == [{"name": control_text}]


def test_missing_value_is_an_empty_cell() -> None:
    assert formatters.cell("arguments", None) == ""
    assert formatters.cell("arguments", []) == "[]"
    assert formatters.cell("policy", None) == ""
    assert formatters.cell("cluster_state", {"n@h": "running"}) == "[{n@h, running}]"


def test_erlang_formatter_prints_property_lists() -> None:
    """RabbitMQ: names are binaries, words such as a queue's type are atoms."""
    columns = ("name", "messages", "type", "durable", "arguments", "policy", "tags")
    row = ['q"x', 3, "quorum", True, {"x-max-length": 5, "a": [1, "b"], "f": 1.5, "n": None}, None, ["management", "X"]]
    assert formatters.erlang_rows(columns, [row, row[:1] + row[1:]], True).splitlines()[0] == (
        '[[{name,<<"q\\"x">>},{messages,3},{type,quorum},{durable,true},{arguments,[{<<"x-max-length">>,long,5},'
        '{<<"a">>,array,[{long,1},{longstr,<<"b">>}]},{<<"f">>,double,1.5},{<<"n">>,void,undefined}]},'
        "{policy,undefined},{tags,[management,'X']}],"
    )
    assert formatters.erlang_rows(columns, [], True) == "[]\n"


@pytest.mark.parametrize(
    ("value", "term"),
    [
        ({"a": 1, "B c": [True, None]}, "[{a,1},{'B c',[true,undefined]}]"),
        ("é", '<<"é"/utf8>>'),
        ([1.5, "x"], '[1.5,<<"x">>]'),
    ],
)
def test_erlang_formatter_prints_values(value: object, term: str) -> None:
    assert erlang.term(value) == term


def test_columns_are_aligned_by_display_width() -> None:
    rows = [["a", 5, None], ["longer", 10, "x"], ["注文", 100, ""]]
    text = formatters.aligned(("name", "messages", "policy"), rows, True, lambda line: f"<{line}>")
    assert text == "<name    messages  policy>\na              5\nlonger        10  x\n注文         100\n"
    assert formatters.aligned(("name",), [["a"]], False, str.upper) == "a\n"
    assert formatters.aligned(("name",), [], True, str.upper) == ""


def test_json_stream_has_one_object_per_line(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/users"] = (200, [{"name": "a", "tags": []}, {"name": "b", "tags": ["x"]}])
    output = ctl("list_users", "--formatter", "json_stream")
    assert output == (0, '{"user":"a","tags":[]}\n{"user":"b","tags":["x"]}\n', "")
    broker.answers["GET", "/api/users"] = (200, [])
    assert ctl("list_users", "--formatter", "json_stream") == (0, "", "")
    assert json.loads(ctl("version", "--formatter", "json_stream").out)["result"] == "ok"
