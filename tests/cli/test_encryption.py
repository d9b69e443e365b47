"""Values in RabbitMQ's encryption format, and the Erlang terms in them."""

from __future__ import annotations

import contextlib
import json
import sys

import pytest
from fake_broker import Ctl
from hypothesis import given
from hypothesis import strategies as st

from amqpd.cli.encryption import CIPHERS, HASHES, Undecipherable, decrypt, encrypt
from amqpd.cli.erlang import NotATerm, Term, TermAtom, packed, parse, printed, unpacked

TERMS = st.recursive(
    st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=40)
    | st.from_regex("[a-z][A-Za-z0-9_@]{0,20}", fullmatch=True).map(TermAtom)
    | st.text(st.characters(min_codepoint=1, max_codepoint=255), min_size=1, max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=10,
)


@given(TERMS)
def test_packed_term_is_unpacked(term: Term) -> None:
    assert unpacked(packed(term)) == term


@pytest.mark.parametrize(
    ("text", "term", "data"),
    [
        # Erlang 25: io:format("~p", [term_to_binary(T)]).
        ("1", 1, b"\x83a\x01"),
        ("-1", -1, b"\x83b\xff\xff\xff\xff"),
        ("1.5", 1.5, b"\x83F?\xf8\x00\x00\x00\x00\x00\x00"),
        ('"ab"', "ab", b"\x83k\x00\x02ab"),
        ('<<"ab">>', b"ab", b"\x83m\x00\x00\x00\x02ab"),
        ("<<>>", b"", b"\x83m\x00\x00\x00\x00"),
        ("<< 1, 255 >>", b"\x01\xff", b"\x83m\x00\x00\x00\x02\x01\xff"),
        ("[]", [], b"\x83j"),
        ('""', "", b"\x83j"),
        ("{}", (), b"\x83h\x00"),
        ('{"a",[1,<<"b">>]}.', ("a", [1, b"b"]), b"\x83h\x02k\x00\x01al\x00\x00\x00\x02a\x01m\x00\x00\x00\x01bj"),
        (str(1 << 40), 1 << 40, b"\x83n\x06\x00\x00\x00\x00\x00\x00\x01"),
    ],
)
def test_terms_are_packed_like_erlang(text: str, term: Term, data: bytes) -> None:
    assert parse(text) == term
    assert packed(term) == data
    assert packed(unpacked(data)) == data


def test_atoms_are_parsed_unpacked_and_printed() -> None:
    assert parse("secret") == TermAtom("secret") and isinstance(parse("secret"), TermAtom)
    assert parse("'a b'") == TermAtom("a b")
    # Atom formats of older Erlang versions.
    for data in (b"\x83d\x00\x02ab", b"\x83s\x02ab", b"\x83w\x02ab", b"\x83v\x00\x02ab"):
        assert unpacked(data) == TermAtom("ab")
    assert printed(TermAtom("ab")) == "ab" and printed(TermAtom("a b")) == "'a b'"
    assert printed((b"a", ["b", 1, 1.5, b"\xff"])) == '{<<"a">>,["b",1,1.5,<<255>>]}'
    assert printed('a"b') == '"a\\"b"' and parse('"a\\"b"') == 'a"b'


@pytest.mark.parametrize(
    "text", ["", "<<256>>", "<<1,>>", "{", "[1", "{1 2}", "1 2", "<<", "A", '"a', "}", "{1,}", "[" * 200]
)
def test_bad_term_is_refused(text: str) -> None:
    with pytest.raises(NotATerm):
        parse(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_term_or_refused(data: bytes) -> None:
    for given_bytes in (data, b"\x83" + data):
        with contextlib.suppress(NotATerm):
            unpacked(given_bytes)


# Encoded by rabbitmqctl 3.10.8 with these options; the first one is the passphrase.
RABBITMQ_VALUES = [
    ("Jw7RNZUXKcqfbTifwqt+UskBlvloEYB9jSfP5OSy0tmXpIDwH8APZqAXniRwva/c", ("secret",), '<<"guest">>'),
    ("fj/tR9Ku11vL3+MiyuO9zqSLb/Tm9O2aWPTq/DVvzGn1CB3l598h00Oh3lleUr3C", ("secret",), '"guest"'),
    ("wnvRBGtCUfCQdVlkdy23qARJvSlCDDRJzH/ZJ+bX9ULKEi+Bmw9b8fkKCLxH+sqJ", ("secret",), "secret"),
    ("+YHPwUtWKaB6piQI4iNH8E48kW652VUVOw4a4PV78loN6M1BHHUWwtKkcpIFehzm", ("secret",), "42"),
    (
        "x8lIsiaYdMLQ/oUP+DKagouztUsNtm4V/2vzPITUhbkLkL3e9KjBhuWmFIb28ivP",
        ("p", "--cipher", "aes_128_cbc", "--hash", "sha3_256", "--iterations", "7"),
        '"x"',
    ),
]


@pytest.mark.parametrize(("text", "how", "value"), RABBITMQ_VALUES)
def test_value_of_rabbitmqctl_is_decoded(ctl: Ctl, text: str, how: tuple[str, ...], value: str) -> None:
    assert ctl("-q", "decode", f'{{encrypted,<<"{text}">>}}', *how) == (0, value + "\n", "")
    assert ctl("-q", "decode", f'<<"{text}">>', *how).out == value + "\n"
    assert ctl("-q", "decode", f"encrypted:{text}", *how).out == value + "\n"


def test_encoded_value_is_decoded(ctl: Ctl) -> None:
    for value, shown in (('"guest"', '"guest"'), ('<<"guest">>', '<<"guest">>'), ("42", "42"), ("secret", "secret")):
        encoded = ctl("-q", "encode", value, "pass phrase")
        assert encoded.code == 0 and encoded.out.startswith("{encrypted,<<")
        assert ctl("-q", "decode", encoded.out.strip(), "pass phrase") == (0, shown + "\n", "")
        wrong = ctl("-q", "decode", encoded.out.strip(), "another")
        assert (wrong.code, wrong.out) == (69, "")
        assert "is the passphrase correct?" in wrong.err
    encoded = ctl("encode", '"x"', "p", "--cipher", "aes_cbc128", "--hash", "sha3_256", "--iterations", "7")
    value = encoded.out.splitlines()[-1]
    options = ("--cipher", "aes_128_cbc", "--hash", "sha3_256", "--iterations", "7")
    assert ctl("-q", "decode", value, "p", *options).out == '"x"\n'
    assert ctl("-q", "decode", value, "p").code == 69


def test_passphrase_is_read_from_stdin(ctl: Ctl) -> None:
    """A passphrase on stdin is not in the process list."""
    encoded = ctl("-q", "encode", "1", stdin="pass phrase\n").out.strip()
    assert ctl("-q", "decode", encoded, "pass phrase") == (0, "1\n", "")
    assert ctl("-q", "decode", encoded, stdin="pass phrase\n") == (0, "1\n", "")


def test_encode_and_decode_as_json(ctl: Ctl) -> None:
    encoded = json.loads(ctl("encode", '<<"x">>', "p", "--formatter", "json").out)["value"]
    assert encoded.startswith("encrypted:")
    assert json.loads(ctl("decode", encoded, "p", "--formatter", "json").out)["value"] == "x"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("encode",), 64, "not enough arguments"),
        (("encode", "1"), 69, "Passphrase is not provided"),
        (("encode", "1", "p", "--cipher", "rot13"), 65, "cipher is not supported"),
        (("encode", "1", "p", "--hash", "crc32"), 65, "hash is not supported"),
        (("encode", "1", "p", "--iterations", "0"), 65, "number of iterations"),
        (("encode", "1", "p", "--iterations", "x"), 64, "--iterations"),
        (("encode", "{", "p"), 69, "without its end"),
        (("decode", "{encrypted,1}", "p"), 69, "is the passphrase correct?"),
        (("decode", "encrypted:%%", "p"), 69, "is the passphrase correct?"),
        (("decode", "encrypted:YWJj", "p"), 69, "is the passphrase correct?"),
    ],
)
def test_bad_arguments_are_errors(ctl: Ctl, words: tuple[str, ...], code: int, text: str) -> None:
    result = ctl(*words)
    assert result.code == code
    assert text in result.err


def test_missing_package_is_reported(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    result = ctl("encode", "1", "p")
    assert (result.code, "pip install cryptography" in result.err) == (69, True)


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("algorithm", HASHES)
def test_every_cipher_and_hash_decrypts(cipher: str, algorithm: str) -> None:
    text = encrypt(b"x" * 31, "p", cipher, algorithm, 3)
    assert decrypt(text, "p", cipher, algorithm, 3) == b"x" * 31
    with pytest.raises(Undecipherable):
        decrypt(text[:-24], "p", cipher, algorithm, 3)


def test_list_ciphers_prints_aes_ciphers(ctl: Ctl) -> None:
    assert ctl("-q", "list_ciphers") == (0, "[aes_128_cbc,aes_192_cbc,aes_256_cbc]\n", "")
