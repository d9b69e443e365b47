"""SCRAM of a server: the vectors of the RFCs, and messages that end a login."""

from __future__ import annotations

import base64
import hashlib

import pytest

from amqpd.auth.scram import (
    InvalidCredentials,
    ScramError,
    ScramLogin,
    credentials_of,
    make_credentials,
    parse_credentials,
    unknown_user,
)

SHA256 = "SCRAM-SHA-256"
SHA512 = "SCRAM-SHA-512"

# RFC 7677 section 3
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
WITHOUT_PROOF = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE}".encode()
LAST = WITHOUT_PROOF + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def pencil(mechanism: str = SHA256) -> object:
    """Return the credentials of the RFC's user, whose password is `pencil`."""
    digest = "sha256" if mechanism == SHA256 else "sha512"
    return credentials_of(mechanism, hashlib.pbkdf2_hmac(digest, b"pencil", SALT, 4096), SALT, 4096)


def begun(first: bytes = FIRST) -> ScramLogin:
    login = ScramLogin(SHA256, first)
    login.begin(pencil(), NONCE)  # type: ignore[arg-type]
    return login


def test_messages_of_rfc_7677() -> None:
    login = ScramLogin(SHA256, FIRST)
    assert login.user_name == "user"
    assert login.begin(pencil(), NONCE) == SERVER_FIRST  # type: ignore[arg-type]
    assert login.finish(LAST) == SERVER_LAST


def test_sha_512_vector() -> None:
    """The values were computed with OpenSSL's PBKDF2 and HMAC, outside this module."""
    import hmac

    login = ScramLogin(SHA512, FIRST)
    first = login.begin(pencil(SHA512), NONCE)  # type: ignore[arg-type]
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    client_key = hmac.new(salted, b"Client Key", "sha512").digest()
    signed = FIRST[3:] + b"," + first + b"," + WITHOUT_PROOF
    signature = hmac.new(hashlib.sha512(client_key).digest(), signed, "sha512").digest()
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    expected = hmac.new(hmac.new(salted, b"Server Key", "sha512").digest(), signed, "sha512").digest()
    assert login.finish(WITHOUT_PROOF + b",p=" + base64.b64encode(proof)) == b"v=" + base64.b64encode(expected)


def test_escaped_user_name() -> None:
    assert ScramLogin(SHA256, b"n,,n=a=2Cb=3Dc,r=x").user_name == "a,b=c"


def test_same_user_as_authorization_id() -> None:
    assert ScramLogin(SHA256, b"n,a=user,n=user,r=x").user_name == "user"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"n,,r=x,n=user",
        b"n,,m=ext,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=us=2cer,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=a\0b,r=x",
        b"n,,n=user,r=" + b"x" * 5000,
    ],
)
def test_wrong_first_message(first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramLogin(SHA256, first)


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"c=biws",
        WITHOUT_PROOF,
        WITHOUT_PROOF + b",p=",
        WITHOUT_PROOF + b",p=!!!!",
        WITHOUT_PROOF + b",p=" + base64.b64encode(bytes(32)),
        WITHOUT_PROOF + b",p=" + base64.b64encode(bytes(64)),
        LAST.replace(b"biws", b"eSws"),
        LAST.replace(b"r=rO", b"r=rX"),
        LAST.replace(NONCE.encode(), b""),
        b"\xff" + LAST,
    ],
)
def test_wrong_last_message(last: bytes) -> None:
    with pytest.raises(ScramError):
        begun().finish(last)


def test_last_message_is_accepted_once() -> None:
    login = begun()
    login.finish(LAST)
    with pytest.raises(ScramError):
        login.finish(LAST)


def test_last_message_of_another_login_is_a_replay() -> None:
    login = ScramLogin(SHA256, FIRST)
    login.begin(pencil())  # type: ignore[arg-type]
    with pytest.raises(ScramError, match="nonce"):
        login.finish(LAST)


def test_last_message_without_a_first_one() -> None:
    with pytest.raises(ScramError):
        ScramLogin(SHA256, FIRST).finish(LAST)


@pytest.mark.parametrize("mechanism", [SHA256, SHA512])
def test_credentials_as_text(mechanism: str) -> None:
    made = make_credentials(mechanism, b"secret", 4096)
    assert parse_credentials(mechanism, str(made)) == made
    assert make_credentials(mechanism, b"secret", 4096).salt != made.salt


@pytest.mark.parametrize(
    "text",
    ["", "4096", "4096:a:b", "x:c2FsdA==:a2V5:a2V5", "4096:c2FsdA==:a2V5:a2V5", "1:c2FsdA==:a2V5:a2V5", "4096:é:é:é"],
)
def test_text_that_is_no_credential(text: str) -> None:
    with pytest.raises(InvalidCredentials):
        parse_credentials(SHA256, text)


def test_unknown_user_has_the_same_salt_each_time() -> None:
    one, two = (unknown_user(SHA256, "nobody", b"secret") for _ in range(2))
    real = make_credentials(SHA256, b"secret")
    assert (one.salt, one.iterations) == (two.salt, two.iterations)
    assert one.stored_key != two.stored_key
    assert (len(one.salt), one.iterations) == (len(real.salt), real.iterations)
    assert unknown_user(SHA256, "somebody", b"secret").salt != one.salt
    assert unknown_user(SHA256, "nobody", b"other").salt != one.salt
