"""SASL's messages, by the examples of the RFCs; and servers that prove nothing."""

from __future__ import annotations

import base64

import pytest

from amqpd.kafka.sasl import NotProved, Scram, make_mechanism

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def rfc7677() -> Scram:
    talk = Scram("sha256", "user", "pencil", NONCE)
    assert talk.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    return talk


def test_plain() -> None:
    talk = make_mechanism("PLAIN", "me", "pass")
    assert talk.first() == b"\0me\0pass"
    assert talk.done
    assert talk.reply(b"") is None
    with pytest.raises(ValueError, match="NUL"):
        make_mechanism("PLAIN", "me", "a\0b")


def test_scram() -> None:
    """RFC 7677, section 3."""
    talk = rfc7677()
    assert talk.reply(FIRST.encode()) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert not talk.done
    assert talk.reply(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    assert talk.done


def test_names_with_the_characters_that_scram_needs() -> None:
    assert Scram("sha512", "a=b,c", "x", NONCE).first() == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


def test_a_server_that_does_not_know_the_password() -> None:
    talk = rfc7677()
    talk.reply(FIRST.encode())
    with pytest.raises(NotProved, match="does not know"):
        talk.reply(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"e=other-error",
        FIRST.replace("rOpr", "xOpr").encode(),
        f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
        FIRST.replace("i=4096", "i=1").encode(),
        FIRST.replace("i=4096", "i=100000000").encode(),
        FIRST.replace("i=4096", "i=x").encode(),
        FIRST.replace("s=W22", "s=**").encode(),
        FIRST.replace("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=").encode(),
    ],
)
def test_what_no_server_says(data: bytes) -> None:
    with pytest.raises(NotProved):
        rfc7677().reply(data)


def test_other_mechanisms() -> None:
    with pytest.raises(ValueError, match="GSSAPI"):
        make_mechanism("GSSAPI", "a", "b")
