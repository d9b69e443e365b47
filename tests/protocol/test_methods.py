"""Methods: compared with pamqp in both directions; exact bytes for names that pamqp rejects and methods it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import pamqp.commands
import pamqp.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpd.errors import REPLY_TEXT_SIZE_BYTES_MAX, FrameError
from amqpd.protocol import methods
from amqpd.protocol.field_table import CodecError
from amqpd.protocol.methods import (
    Command,
    MethodSyntaxError,
    UnknownMethod,
    decode,
    decode_arguments,
    encode,
    encode_arguments,
    frame,
    method_name,
)

COMMANDS = get_args(Command)
SIGNATURES = {kind: methods._BY_COMMAND[kind].signature for kind in COMMANDS}
RESERVED = "HNZB"
short_names = st.text("abcxyz019-_.:@#,/+ ", max_size=20)
tables = st.dictionaries(
    st.text(max_size=8),
    st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.booleans() | st.none() | st.lists(st.booleans()),
    max_size=3,
)
BY_LETTER = {
    "o": st.integers(0, 127),  # pamqp takes octets as signed
    "h": st.integers(0, 2**16 - 1),
    "i": st.integers(0, 2**32 - 1),
    "q": st.integers(0, 2**63 - 1),  # pamqp takes delivery tags as signed
    "b": st.booleans(),
    "n": short_names,
    "k": st.text(max_size=30),
    "L": st.text(max_size=30).map(str.encode),
    "M": st.text(max_size=30),
    "t": tables,
}


def commands_of(kind):
    letters = [letter for letter in SIGNATURES[kind] if letter not in RESERVED]
    return st.tuples(*(BY_LETTER[letter] for letter in letters)).map(kind._make)


any_command = st.sampled_from(COMMANDS).flatmap(commands_of)
KNOWN_TO_PAMQP = [kind for kind in COMMANDS if methods.method_id(kind()) in pamqp.commands.INDEX_MAPPING]
every_method_of_pamqp = pytest.mark.parametrize("kind", KNOWN_TO_PAMQP, ids=lambda kind: kind.__name__)
deprecated_too = pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")

PAMQP_NAMES = {"no_wait": "nowait", "type": "exchange_type"}


def with_pamqp_names(command) -> dict[str, object]:
    fields = command._asdict()
    renamed = {}
    for name, value in fields.items():
        if isinstance(command, methods.ExchangeDeclare) or name != "type":
            name = PAMQP_NAMES.get(name, name)
        renamed[name] = value.decode() if isinstance(value, bytes) else value
    return renamed


@given(any_command)
def test_round_trip(command):
    payload = encode(command)
    decoded = decode(payload)
    assert type(decoded) is type(command)
    assert decoded == command
    assert int.from_bytes(payload[:4], "big") == methods.method_id(command)


@deprecated_too
@every_method_of_pamqp
@settings(max_examples=15)
@given(data=st.data(), channel=st.integers(0, 65535))
def test_pamqp_decodes_our_encoding(kind, data, channel):
    command = data.draw(commands_of(kind))
    whole = frame(channel, command)
    consumed, found_channel, method = pamqp.frame.unmarshal(whole)
    assert (consumed, found_channel) == (len(whole), channel)
    assert method.index == methods.method_id(command)
    for name, value in with_pamqp_names(command).items():
        found = getattr(method, name)
        if isinstance(value, str) and isinstance(found, bytes):
            found = found.decode()
        assert found == value, name


@deprecated_too
@every_method_of_pamqp
@settings(max_examples=15)
@given(data=st.data())
def test_we_decode_the_encoding_of_pamqp(kind, data):
    command = data.draw(commands_of(kind))
    method = pamqp.commands.INDEX_MAPPING[methods.method_id(command)](**with_pamqp_names(command))
    whole = pamqp.frame.marshal(method, 7)
    decoded = decode(whole[7:-1])
    assert type(decoded) is type(command)
    assert decoded == command


def test_every_method_of_pamqp_exists_under_its_name():
    assert len(methods._METHODS) == len(COMMANDS)
    for number, method in pamqp.commands.INDEX_MAPPING.items():
        name = method_name(number)
        assert name.replace(".", "").replace("-", "") == method.name.replace(".", "").lower()
        assert getattr(methods, name.upper().replace(".", "_").replace("-", "_")) == number
    assert set(methods._METHODS) - set(pamqp.commands.INDEX_MAPPING) == {
        methods.ACCESS_REQUEST,
        methods.ACCESS_REQUEST_OK,
    }
    assert method_name(60 << 16 | 99) == "60.99"


AMQP_TYPES = {
    "o": "octet",
    "h": "short",
    "i": "long",
    "q": "longlong",
    "b": "bit",
    "t": "table",
    "n": "shortstr",
    "k": "shortstr",
    "L": "longstr",
    "M": "longstr",
    "H": "short",
    "N": "shortstr",
    "Z": "longstr",
    "B": "bit",
}
RESERVED_NAMES = {"ticket", "out_of_band", "channel_id", "capabilities", "insist", "known_hosts", "cluster_id"}


@every_method_of_pamqp
def test_fields_and_types_are_those_of_the_specification(kind):
    """pamqp's classes are generated from the specification: same names, same order, same types."""
    generated = pamqp.commands.INDEX_MAPPING[methods.method_id(kind())]
    names = {value: key for key, value in PAMQP_NAMES.items()}
    if kind is not methods.ExchangeDeclare:
        names.pop("exchange_type")
    assert [AMQP_TYPES[letter] for letter in SIGNATURES[kind]] == [
        generated.amqp_type(name) for name in generated.attributes()
    ]
    fields = zip(SIGNATURES[kind], generated.attributes(), strict=True)
    assert all((letter in RESERVED) == (name in RESERVED_NAMES) for letter, name in fields)
    assert list(kind._fields) == [
        names.get(name, name) for name in generated.attributes() if name not in RESERVED_NAMES
    ]


EXACT = [
    (
        methods.QueueDeclare("sales[eu]", durable=True, no_wait=True, arguments={"x-max-length": 5}),
        b"\x00\x32\x00\x0a\x00\x00\x09sales[eu]\x12\x00\x00\x00\x12\x0cx-max-lengthI\x00\x00\x00\x05",
    ),
    (methods.QueueDeclareOk("sales[eu]", 2, 1), b"\x00\x32\x00\x0b\x09sales[eu]\x00\x00\x00\x02\x00\x00\x00\x01"),
    (
        methods.ExchangeDeclare("e" * 128, "topic", internal=True),
        b"\x00\x28\x00\x0a\x00\x00\x80" + b"e" * 128 + b"\x05topic\x08\x00\x00\x00\x00",
    ),
    (
        methods.ExchangeDelete("é", if_unused=True, no_wait=True),
        b"\x00\x28\x00\x14\x00\x00\x02\xc3\xa9\x03",
    ),
    (
        methods.BasicPublish("x" * 255, "k\udcff", mandatory=True),
        b"\x00\x3c\x00\x28\x00\x00\xff" + b"x" * 255 + b"\x02k\xff\x01",
    ),
    (
        methods.BasicDeliver("[tag]", 2**64 - 1, True, "x[1]", "k"),
        b"\x00\x3c\x00\x3c\x05[tag]\xff\xff\xff\xff\xff\xff\xff\xff\x01\x04x[1]\x01k",
    ),
    (methods.BasicAck(2**64 - 1, True), b"\x00\x3c\x00\x50\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    (methods.BasicNack(1, False, True), b"\x00\x3c\x00\x78\x00\x00\x00\x00\x00\x00\x00\x01\x02"),
    (methods.BasicGetEmpty(), b"\x00\x3c\x00\x48\x00"),
    (methods.ChannelOpenOk(), b"\x00\x14\x00\x0b\x00\x00\x00\x00"),
    (methods.ConnectionOpen("/"), b"\x00\x0a\x00\x28\x01/\x00\x00"),
    (
        methods.ConnectionStartOk({}, "PLAIN", b"\x00guest\x00\xff", "en_US"),
        b"\x00\x0a\x00\x0b\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x08\x00guest\x00\xff\x05en_US",
    ),
    (methods.AccessRequest("/data", False, True, True, True, True), b"\x00\x1e\x00\x0a\x05/data\x1e"),
    (methods.AccessRequestOk(101), b"\x00\x1e\x00\x0b\x00\x65"),
    (methods.TxSelect(), b"\x00\x5a\x00\x0a"),
]


@pytest.mark.parametrize(("command", "payload"), EXACT, ids=[type(command).__name__ for command, _ in EXACT])
def test_exact_bytes(command, payload):
    assert encode(command) == payload
    decoded = decode(payload)
    assert decoded == command
    assert type(decoded) is type(command)


def test_method_frame():
    assert frame(0x0102, methods.BasicAck(3)) == (
        b"\x01\x01\x02\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x00\x03\x00\xce"
    )


def test_reserved_arguments_are_ignored():
    assert decode(b"\x00\x32\x00\x1e\xff\xff\x01q\x01") == methods.QueuePurge("q", True)
    assert decode(b"\x00\x0a\x00\x28\x01/\x02\xff\xfe\x01") == methods.ConnectionOpen("/")
    assert decode(b"\x00\x14\x00\x0a\x01\xff") == methods.ChannelOpen()


def test_unused_bits_are_ignored():
    assert decode(b"\x00\x3c\x00\x5a\x00\x00\x00\x00\x00\x00\x00\x01\xfe") == methods.BasicReject(1, False)


def test_more_than_eight_bits_use_a_second_octet():
    bits = [True, False, False, False, False, False, False, True, True]
    assert encode_arguments("b" * 9 + "h" + "bb", [*bits, 5, False, True], b"") == b"\x81\x01\x00\x05\x02"
    assert decode_arguments("b" * 9 + "h" + "bb", b"\x81\x01\x00\x05\x02", 0) == [*bits, 5, False, True]
    assert encode_arguments("b" * 8, bits[:8], b"") == b"\x81"
    assert decode_arguments("b" * 8, b"\x81", 0) == bits[:8]


def sample(kind):
    """A command of this kind with something in every field."""
    values = {
        **dict.fromkeys("ohiq", 1),
        "b": True,
        **dict.fromkeys("nkM", "text"),
        "L": b"raw",
        "t": {"a": {"b": [1, "c"]}},
    }
    return kind(*(values[letter] for letter in SIGNATURES[kind] if letter not in RESERVED))


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_truncated_and_too_long_methods_are_rejected(kind):
    payload = encode(sample(kind))
    assert decode(payload) == sample(kind)
    for wrong in [payload[:size] for size in range(4, len(payload))] + [payload + b"\x00"]:
        with pytest.raises(MethodSyntaxError) as caught:
            decode(wrong)
        octets = list(wrong[4:])
        if len(octets) <= 32:
            assert caught.value.text == f"cannot decode <<{','.join(map(str, octets))}>>"


def test_texts_for_methods_that_cannot_be_decoded():
    with pytest.raises(MethodSyntaxError) as caught:
        decode(b"\x00\x3c\x00\x0a\x01")
    assert FrameError(caught.value.text).reply_text == "FRAME_ERROR - cannot decode <<1>>"
    assert "basic.qos" in str(caught.value)
    with pytest.raises(MethodSyntaxError) as caught:
        decode(b"\x00\x3c\x00\x0a" + b"\xff" * 100_000)
    whole = FrameError(caught.value.text).reply_text
    assert whole.endswith(",255,...>>")
    assert len(whole) < REPLY_TEXT_SIZE_BYTES_MAX


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x3c\x00", b"\x5a\x00\x0a"])
def test_a_payload_without_method_id_is_rejected(payload):
    with pytest.raises(MethodSyntaxError, match="no class and method id"):
        decode(payload)


@pytest.mark.parametrize("number", [0, 50 << 16 | 99, 999 << 16 | 1, 10 << 16 | 99, 0xFFFFFFFF])
def test_unknown_methods_are_rejected(number):
    with pytest.raises(UnknownMethod, match=f"unknown method {number >> 16}.{number & 0xFFFF}"):
        decode(number.to_bytes(4, "big") + b"rest")


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00\x32\x00\x0a\x00\x00\x02\xff\xfe\x00\x00\x00\x00\x00",  # queue name
        b"\x00\x28\x00\x14\x00\x00\x01\x80\x00",  # exchange name
        b"\x00\x3c\x00\x1e\x01\xc3\x00",  # consumer tag
        b"\x00\x32\x00\x0a\x00\x00\x03\xed\xa0\x80\x00\x00\x00\x00\x00",  # a surrogate encoded as UTF-8
        b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x03\x01aZ",  # argument of unknown type
        b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\xff\x01aV",  # arguments longer than the frame
    ],
)
def test_invalid_names_and_tables_are_rejected(payload):
    with pytest.raises(MethodSyntaxError):
        decode(payload)


def test_names_with_nul_are_accepted():
    assert decode(b"\x00\x32\x00\x1e\x00\x00\x03a\x00b\x00") == methods.QueuePurge("a\x00b")


def test_arguments_nested_too_deep_are_rejected():
    table = b"\x00\x00\x00\x00"
    for _ in range(3000):
        table = (len(table) + 3).to_bytes(4, "big") + b"\x01aF" + table
    with pytest.raises(MethodSyntaxError):
        decode(b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + table)


@given(st.sampled_from(sorted(methods._METHODS)), st.binary(max_size=60))
def test_any_arguments_are_decoded_or_rejected(number, arguments):
    try:
        command = decode(number.to_bytes(4, "big") + arguments)
    except MethodSyntaxError:
        return
    assert methods.method_id(command) == number
    assert decode(encode(command)) == command


@given(any_command, st.data())
def test_damaged_methods_are_decoded_or_rejected(command, draw):
    damaged = bytearray(encode(command))
    damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(damaged))
    except (MethodSyntaxError, UnknownMethod):
        return
    encode(decoded)


@pytest.mark.parametrize(
    "command",
    [
        methods.QueueDeclare("q" * 256),
        methods.QueueDeclareOk("q", 2**32, 0),
        methods.BasicAck(-1),
        methods.ConnectionClose(2**16),
        methods.ConnectionStart(256),
        methods.ConnectionStart(server_properties={"a": object()}),
        methods.QueueDeclare(5),
        methods.QueuePurgeOk("5"),
    ],
    ids=lambda command: f"{command!r:.50}",
)
def test_values_that_do_not_fit_are_rejected(command):
    with pytest.raises(CodecError):
        encode(command)


def test_defaults_are_empty_values():
    for kind in COMMANDS:
        command = kind()
        assert decode(encode(command)) == command
        assert not any(command)
        assert all(isinstance(value, (int, str, bytes, Mapping)) for value in command)
