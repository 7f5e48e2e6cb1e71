"""Where ranks meet: an address that other nodes can reach, and a port nobody else has."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LookupTimeoutError

from launchers.ports import port_problem

FIRST_PORT = 20000
NUM_PORTS = 10000
"""Below Linux's own range for outgoing connections, which starts at 32768."""
PORT_TRIES = 64
LOOKUP_TIMEOUT_S = 8.0

Resolve = Callable[[str], list[str]]
"""Host name -> its addresses; raises OSError where there is none."""


def resolve(name: str) -> list[str]:
    """Addresses of a host by the system's resolver, IPv4 first. Raises OSError, also after ``LOOKUP_TIMEOUT_S``."""
    pool = ThreadPoolExecutor(1)
    try:
        found = pool.submit(socket.getaddrinfo, name, None, 0, socket.SOCK_STREAM).result(LOOKUP_TIMEOUT_S)
    except LookupTimeoutError:
        raise OSError(f"no answer from the resolver within {LOOKUP_TIMEOUT_S:.0f} s") from None
    finally:
        pool.shutdown(wait=False)
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in ordered))


def outgoing_address() -> str | None:
    """Address this machine would use to talk to others; asks the routing table, sends nothing. None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def head_address(
    node: str,
    *,
    is_this_machine: bool,
    resolver: Resolve = resolve,
    own_address: Callable[[], str | None] = outgoing_address,
) -> str:
    """An address of ``node`` that the other nodes can reach.

    Many systems map their own name to 127.0.1.1; on the node itself the routing table then knows better.

    Raises ValueError naming ``launcher.master_addr`` where there is none.
    """
    try:
        addresses, reason = resolver(node), ""
    except OSError as failure:
        addresses, reason = [], f" ({failure})"
    reachable = [address for address in addresses if is_reachable(address)]
    if reachable:
        return reachable[0]
    own = own_address() if is_this_machine else None
    if own is not None and is_reachable(own):
        return own
    found = f"has only {', '.join(addresses)}, which other nodes cannot reach" if addresses else f"has no address{reason}"
    raise ValueError(f"launcher.master_addr=null: the first node, {node}, {found}; set launcher.master_addr")


def is_reachable(address: str) -> bool:
    """Whether other machines can connect to an address: not loopback, link-local or unspecified."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def port_of_job(job_id: int, is_taken: Callable[[int], bool] = lambda port: port_problem(port) is not None) -> int:
    """A free port of this machine: the job's own, else the next ones, so that two jobs rarely try the same.

    Raises ValueError where ``PORT_TRIES`` ports in a row are taken.
    """
    wanted = [FIRST_PORT + (job_id * 7 + attempt) % NUM_PORTS for attempt in range(PORT_TRIES)]
    for port in wanted:
        if not is_taken(port):
            return port
    raise ValueError(f"launcher.master_port=null: ports {wanted[0]} to {wanted[-1]} are all in use; set launcher.master_port")
