"""Vhost metadata: requests, and the texts and exit codes of rabbitmqctl."""

from __future__ import annotations

from fake_broker import Ctl, FakeBroker

SHOP = "/api/vhosts/s%2Fhop"
NO_VHOST = (65, "", "Virtual host 's/hop' does not exist\n")


def test_update_vhost_metadata_sends_only_given_fields(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", SHOP] = (204, None)
    options = ("--description", "d", "--tags", "a,b", "--default-queue-type", "quorum")
    assert ctl("update_vhost_metadata", "s/hop", *options) == (0, 'Updating metadata of vhost "s/hop" ...\n', "")
    assert broker.requests[0].body == {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}
    assert broker.requests[0].headers["If-Match"] == "*"
    assert ctl("update_vhost_metadata", "s/hop", "--description", "").code == 0
    assert broker.requests[1].body == {"description": ""}
    assert ctl("update_vhost_metadata", "s/hop").code == 64
    assert ctl("update_vhost_metadata", "", "--tags", "a").code == 65
    broker.answers["PUT", SHOP] = (412, {"error": "precondition_failed", "reason": "vhost 's/hop' does not exist"})
    assert ctl("-q", "update_vhost_metadata", "s/hop", "--tags", "a") == NO_VHOST


def test_set_vhost_tags(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", SHOP] = (204, None)
    output = 'Setting tags for virtual host "s/hop" to [x, y] ...\n'
    assert ctl("set_vhost_tags", "s/hop", "x", "y") == (0, output, "")
    assert broker.requests[0].body == {"tags": ["x", "y"]}
    assert ctl("-q", "set_vhost_tags", "s/hop") == (0, "", "")
    assert broker.requests[1].body == {"tags": []}


def test_deletion_protection_is_enabled_and_disabled(broker: FakeBroker, ctl: Ctl) -> None:
    path = f"{SHOP}/deletion/protection"
    for command, method in (("enable", "POST"), ("disable", "DELETE")):
        broker.answers[method, path] = (204, None)
        assert ctl("-q", f"{command}_vhost_deletion_protection", "s/hop") == (0, "", "")
        assert (broker.requests[-1].method, broker.requests[-1].path) == (method, path)
        broker.answers[method, path] = (404, {"error": "Object Not Found", "reason": "vhost 's/hop' does not exist"})
        assert ctl("-q", f"{command}_vhost_deletion_protection", "s/hop") == NO_VHOST


def test_set_cluster_name(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/cluster-name"] = (204, None)
    assert ctl("set_cluster_name", "shop") == (0, "Setting cluster name to shop ...\n", "")
    assert broker.requests[0].body == {"name": "shop"}
