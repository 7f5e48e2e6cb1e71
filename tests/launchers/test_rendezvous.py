from __future__ import annotations

import socket

import pytest

from launchers.rendezvous import FIRST_PORT, head_address, port_of_job


def unknown(name: str) -> list[str]:
    raise OSError("Name or service not known")


def test_head_address_skips_loopback() -> None:
    assert head_address("n1", is_this_machine=False, resolver=lambda name: ["127.0.1.1", "::1", "10.0.0.5"]) == "10.0.0.5"


@pytest.mark.parametrize("resolver", [unknown, lambda name: ["127.0.1.1"]], ids=["no_dns", "loopback_name"])
def test_head_address_asks_the_routing_table_on_the_node_itself(resolver) -> None:
    assert head_address("n1", is_this_machine=True, resolver=resolver, own_address=lambda: "10.0.0.7") == "10.0.0.7"


@pytest.mark.parametrize("resolver", [unknown, lambda name: ["127.0.1.1"]], ids=["no_dns", "loopback_name"])
@pytest.mark.parametrize("own", [None, "127.0.0.1"])
def test_head_address_rejects_unreachable_naming_key_and_node(resolver, own) -> None:
    with pytest.raises(ValueError, match=r"launcher\.master_addr=null: the first node, n1"):
        head_address("n1", is_this_machine=own is not None, resolver=resolver, own_address=lambda: own)


def test_port_of_job_differs_between_neighbouring_jobs() -> None:
    ports = [port_of_job(job, is_taken=lambda port: False) for job in range(1000, 1010)]
    assert len(set(ports)) == 10
    assert all(FIRST_PORT <= port < 32768 for port in ports)


def test_port_of_job_passes_over_a_port_in_use() -> None:
    wanted = port_of_job(123456)
    with socket.socket() as taken:
        taken.bind(("", wanted))
        taken.listen()
        assert port_of_job(123456) not in (wanted, None)


def test_port_of_job_rejects_a_machine_without_ports() -> None:
    with pytest.raises(ValueError, match=r"launcher\.master_port"):
        port_of_job(1, is_taken=lambda port: True)
