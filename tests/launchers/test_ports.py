from __future__ import annotations

import socket

from launchers.ports import port_problem


def test_port_problem_rejects_port_in_use_naming_it() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"launcher.master_port={port}" in (port_problem(port) or "")


def test_port_problem_accepts_free_port() -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    assert port_problem(port) is None
