"""SASL messages compared with the examples of the RFCs, and servers that do not prove the password."""

from __future__ import annotations

import base64

import pytest

from amqpd.kafka.sasl import NotProved, Scram, make_mechanism

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def rfc7677_client() -> Scram:
    scram = Scram("sha256", "user", "pencil", NONCE)
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    return scram


def test_plain() -> None:
    plain = make_mechanism("PLAIN", "me", "pass")
    assert plain.first() == b"\0me\0pass"
    assert plain.done
    assert plain.reply(b"") is None
    with pytest.raises(ValueError, match="NUL"):
        make_mechanism("PLAIN", "me", "a\0b")


def test_scram() -> None:
    """The exchange of RFC 7677, section 3."""
    scram = rfc7677_client()
    assert scram.reply(FIRST.encode()) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert not scram.done
    assert scram.reply(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    assert scram.done


def test_user_name_with_reserved_characters_is_escaped() -> None:
    assert Scram("sha512", "a=b,c", "x", NONCE).first() == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


def test_server_that_does_not_know_the_password_is_refused() -> None:
    scram = rfc7677_client()
    scram.reply(FIRST.encode())
    with pytest.raises(NotProved, match="does not know"):
        scram.reply(b"v=" + base64.b64encode(bytes(32)))


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
def test_invalid_server_message_is_refused(data: bytes) -> None:
    with pytest.raises(NotProved):
        rfc7677_client().reply(data)


def test_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="GSSAPI"):
        make_mechanism("GSSAPI", "a", "b")
