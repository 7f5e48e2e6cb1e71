"""Whether a rendezvous port can be had."""

from __future__ import annotations

import socket


def port_problem(port: int, host: str = "") -> str | None:
    """Message about a port of this machine that is taken or not allowed; None where it is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as failure:
            return f"launcher.master_port={port}: {failure.strerror}; use another port, or null for a free one"
    return None
