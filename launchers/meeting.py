"""How the machines of one job agree on its run folder without a batch system: node 0 tells each of the others once."""

from __future__ import annotations

import socket
import time

_RETRY_S = 0.2


def hand_out(port: int, text: str, num_nodes: int, timeout_s: float) -> None:
    """Wait on ``port`` until every other node has come for ``text``.

    Raises ValueError naming the nodes that did not come, or a port that is taken.
    """
    missing = set(range(1, num_nodes))
    deadline = time.monotonic() + timeout_s
    try:
        server = socket.create_server(("", port))
    except OSError as failure:
        raise ValueError(f"launcher.master_port={port}: {failure.strerror}; use another port on all nodes") from None
    with server:
        while missing:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                visitor, _ = server.accept()
            except TimeoutError:
                names = ", ".join(str(node) for node in sorted(missing))
                raise ValueError(
                    f"launcher.node_rank: of {num_nodes} nodes, {names} did not come within {timeout_s:.0f} s "
                    "(launcher.rendezvous_timeout_s)"
                ) from None
            with visitor:
                missing.discard(_serve(visitor, text))


def _serve(visitor: socket.socket, text: str) -> int:
    """Give one visitor the text; returns its node number, -1 for a stranger."""
    visitor.settimeout(5.0)
    try:
        number = visitor.recv(64).decode().strip()
        visitor.sendall(text.encode())
    except (OSError, UnicodeDecodeError):
        return -1
    return int(number) if number.isdigit() else -1


def receive(host: str, port: int, node_rank: int, timeout_s: float) -> str:
    """Ask node 0 for its text. Raises ValueError where it does not answer in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=5.0) as connection:
                connection.sendall(f"{node_rank}\n".encode())
                text = b"".join(iter(lambda: connection.recv(4096), b""))
            if text:
                return text.decode()
        except OSError as failure:
            reason = failure.strerror or str(failure)
        else:
            reason = "no answer"
        if time.monotonic() > deadline:
            raise ValueError(
                f"launcher.master_addr={host}: node {node_rank} could not reach node 0 at port {port} within "
                f"{timeout_s:.0f} s: {reason}"
            )
        time.sleep(_RETRY_S)
