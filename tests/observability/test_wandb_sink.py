"""wandb without a network never delays or stops training."""

from __future__ import annotations

import socket
import time

import pytest

from megatron_rl.observability.wandb_process import unreachable
from megatron_rl.observability.wandb_sink import WandbSink

pytest.importorskip("wandb")


@pytest.fixture
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def silent_server():
    """Accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def use_server(monkeypatch, port):
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)


def test_unreachable_server_falls_back_to_offline(tmp_path, monkeypatch, caplog, closed_port):
    use_server(monkeypatch, closed_port)
    start = time.monotonic()
    sink = WandbSink("project", "name", tmp_path, {"seed": 1})
    for step in range(100):
        sink.write(step, {"reward/mean": 0.5, "bad": float("nan")})
    assert time.monotonic() - start < 2.0
    sink.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb")), (tmp_path / "wandb.log").read_text()
    (record,) = caplog.records
    assert "offline" in record.getMessage() and str(closed_port) in record.getMessage()


def test_server_that_never_answers_does_not_delay_the_steps(tmp_path, monkeypatch, caplog, silent_server):
    use_server(monkeypatch, silent_server)
    start = time.monotonic()
    sink = WandbSink("project", "name", tmp_path, {}, close_timeout_s=0.5)
    sink.write(1, {"reward/mean": 0.5})
    assert time.monotonic() - start < 2.0
    sink.close()
    assert time.monotonic() - start < 5.0
    assert len(caplog.records) == 1


def test_killed_child_gives_one_warning(tmp_path, monkeypatch, caplog, closed_port):
    use_server(monkeypatch, closed_port)
    sink = WandbSink("project", "name", tmp_path, {})
    sink._child.kill()
    sink._child.wait()
    for step in range(50):
        sink.write(step, {"reward/mean": 0.5})
    sink._feeder.join(timeout=5.0)
    sink.close()
    assert len(caplog.records) == 1


def test_unreachable_names_the_address(closed_port):
    reason = unreachable(f"http://127.0.0.1:{closed_port}", timeout_s=1.0)
    assert reason is not None and str(closed_port) in reason
