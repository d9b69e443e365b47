"""What is known of a vhost: what is sent, and rabbitmqctl's texts and exit codes."""

from __future__ import annotations

from fake_broker import Ctl, FakeBroker

SHOP = "/api/vhosts/s%2Fhop"
GONE = (65, "", "Virtual host 's/hop' does not exist\n")


def test_metadata(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", SHOP] = (204, None)
    given = ("--description", "d", "--tags", "a,b", "--default-queue-type", "quorum")
    assert ctl("update_vhost_metadata", "s/hop", *given) == (0, 'Updating metadata of vhost "s/hop" ...\n', "")
    assert broker.asked[0].body == {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}
    assert broker.asked[0].headers["If-Match"] == "*"
    assert ctl("update_vhost_metadata", "s/hop", "--description", "").code == 0
    assert broker.asked[1].body == {"description": ""}
    assert ctl("update_vhost_metadata", "s/hop").code == 64
    assert ctl("update_vhost_metadata", "", "--tags", "a").code == 65
    broker.answers["PUT", SHOP] = (412, {"error": "precondition_failed", "reason": "vhost 's/hop' does not exist"})
    assert ctl("-q", "update_vhost_metadata", "s/hop", "--tags", "a") == GONE


def test_tags(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", SHOP] = (204, None)
    said = 'Setting tags for virtual host "s/hop" to [x, y] ...\n'
    assert ctl("set_vhost_tags", "s/hop", "x", "y") == (0, said, "")
    assert broker.asked[0].body == {"tags": ["x", "y"]}
    assert ctl("-q", "set_vhost_tags", "s/hop") == (0, "", "")
    assert broker.asked[1].body == {"tags": []}


def test_protection(broker: FakeBroker, ctl: Ctl) -> None:
    path = f"{SHOP}/deletion/protection"
    for command, method in (("enable", "POST"), ("disable", "DELETE")):
        broker.answers[method, path] = (204, None)
        assert ctl("-q", f"{command}_vhost_deletion_protection", "s/hop") == (0, "", "")
        assert (broker.asked[-1].method, broker.asked[-1].path) == (method, path)
        broker.answers[method, path] = (404, {"error": "Object Not Found", "reason": "vhost 's/hop' does not exist"})
        assert ctl("-q", f"{command}_vhost_deletion_protection", "s/hop") == GONE


def test_the_clusters_name(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/cluster-name"] = (204, None)
    assert ctl("set_cluster_name", "shop") == (0, "Setting cluster name to shop ...\n", "")
    assert broker.asked[0].body == {"name": "shop"}
