"""amqpctl over HTTPS, to a real broker: whom it believes, what it shows, and what it says where that does not fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from fake_broker import Ctl

from amqpd.testing import BrokerProcess


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem and other.pem of two authorities, server.pem and anna.pem by the first, anna.key for the latter."""
    folder = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    anna = authority.issue_cert(common_name="anna")
    anna.private_key_and_cert_chain_pem.write_to_path(folder / "anna.pem")
    anna.private_key_pem.write_to_path(folder / "anna.key")
    anna.cert_chain_pems[0].write_to_path(folder / "anna.crt")
    return folder


@pytest.fixture(scope="module")
def broker(papers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings: dict[str, object] = {
        "http.port": "off",
        "http.tls.port": 0,
        "http.tls.certificate": papers / "server.pem",
        "http.tls.key": papers / "server.pem",
        "http.tls.ca": papers / "ca.pem",
        "http.tls.verify_peer": True,
        "auth.mechanisms": "PLAIN,EXTERNAL",
        "auth.ssl_cert_login_from": "common_name",
    }
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=settings) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def uri(broker: BrokerProcess, user: str = "guest:guest@") -> str:
    assert broker.ready is not None
    return f"https://{user}localhost:{broker.ready.listeners['https'][1]}"


def test_an_authority_of_ones_own(broker: BrokerProcess, ctl: Ctl, papers: Path) -> None:
    listed = ctl("list_users", "-q", "--uri", uri(broker), "--tls-ca-cert-file", str(papers / "ca.pem"))
    assert (listed.code, "guest" in listed.out, listed.err) == (0, True, "")
    known = {"AMQPCTL_URI": uri(broker), "AMQPCTL_TLS_CA_CERT_FILE": str(papers / "ca.pem")}
    assert ctl("list_users", environment=known).code == 0
    listeners = ctl("listeners", "--formatter", "json", environment=known)
    assert '"https"' in listeners.out


@pytest.mark.parametrize("more", [(), ("--tls-ca-cert-file", "other.pem")])
def test_nobody_else_is_believed(broker: BrokerProcess, ctl: Ctl, papers: Path, more: tuple[str, ...]) -> None:
    refused = ctl("list_users", "--uri", uri(broker), *[each.replace("other", f"{papers}/other") for each in more])
    assert refused.code == 69
    assert "CERTIFICATE_VERIFY_FAILED" in refused.err
    assert "--tls-ca-cert-file FILE" in refused.err
    assert "guest:guest" not in refused.err


def test_the_last_resort_warns(broker: BrokerProcess, ctl: Ctl) -> None:
    listed = ctl("list_users", "-q", "--uri", uri(broker), "--insecure")
    assert (listed.code, "guest" in listed.out) == (0, True)
    assert listed.err.startswith("Warning: --insecure: the broker's certificate is not checked.")
    exported = ctl("export", "--queue", "q", "--to", "/nowhere", "--uri", uri(broker), "--insecure")
    assert exported.code != 0
    assert "an export does not go without checking" in exported.err or "pip install" in exported.err


def test_a_certificate_is_a_login(broker: BrokerProcess, ctl: Ctl, papers: Path) -> None:
    ca = ("--tls-ca-cert-file", str(papers / "ca.pem"), "--uri", uri(broker, ""))
    alone = (*ca, "--tls-cert-file", str(papers / "anna.pem"))
    nobody = ctl("list_vhosts", *alone)
    assert nobody.code == 77
    assert "auth.ssl_cert_login_from" in nobody.err
    local = {"AMQPD_DATA_DIR": str(broker.data_dir)}
    assert ctl("add_user", "anna", "never used", environment=local).code == 0
    assert ctl("clear_password", "anna", environment=local).code == 0
    assert ctl("set_user_tags", "anna", "administrator", environment=local).code == 0
    assert ctl("list_vhosts", *alone).code == 0
    apart = (*ca, "--tls-cert-file", str(papers / "anna.crt"), "--tls-key-file", str(papers / "anna.key"))
    assert ctl("list_vhosts", *apart).code == 0
    nothing = ctl("list_vhosts", *ca)
    assert nothing.code == 77
    assert "put credentials into the URI" in nothing.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--insecure",), "--insecure goes with --uri https://HOST:15671"),
        (("--uri", "http://u:p@h", "--tls-cert-file", "f"), "--tls-cert-file goes with --uri https://"),
        (("--uri", "https://u:p@h", "--tls-key-file", "f"), "--tls-key-file goes with --tls-cert-file"),
        (("--uri", "https://u:p@h", "--tls-ca-cert-file", "/nowhere.pem"), "/nowhere.pem: No such file"),
        (("--uri", "https://u:p@h", "--tls-cert-file", os.devnull), f"{os.devnull}: "),
    ],
)
def test_what_does_not_go_together(ctl: Ctl, arguments: tuple[str, ...], words: str) -> None:
    wrong = ctl("list_users", *arguments)
    assert wrong.code == 64
    assert words in wrong.err
    assert quote("u:p@") not in wrong.err
    assert "u:p@" not in wrong.err
