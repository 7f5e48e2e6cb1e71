"""Segment names and their removal."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from megatron_rl.rollout.shared_memory import named_segments, new_identity, sweep_leftovers, unlink_segments


def _identity_of_a_dead_process() -> str:
    code = "from megatron_rl.rollout.shared_memory import new_identity; print(new_identity())"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_new_identity_is_unique() -> None:
    assert new_identity() != new_identity()


def test_sweep_leftovers_removes_only_own_dead_segments(tmp_path: Path) -> None:
    dead = _identity_of_a_dead_process()
    user, namespace, pid, started = dead.removeprefix("megatron_rl_").split("_")[:4]
    kept = {
        f"{new_identity()}-tp:0_0": "of a living process",
        f"megatron_rl_{int(user) + 1}_{namespace}_{pid}_{started}_ab-tp:0_0": "of another user",
        f"megatron_rl_{user}_{int(namespace) + 1}_{pid}_{started}_ab-tp:0_0": "of another process namespace",
        "psm_1234": "of another program",
    }
    swept = {f"{dead}-tp:0-[0-1]-cpushm_0", f"{dead}-tp:0-[0-1]-cpushm_1"}
    # A process id that lives again under another start time belongs to someone else now.
    swept.add(f"megatron_rl_{user}_{namespace}_{os.getpid()}_1_ab-tp:0_0")
    for name in (*kept, *swept):
        (tmp_path / name).touch()
    assert set(sweep_leftovers(tmp_path)) == swept
    assert {path.name for path in tmp_path.iterdir()} == set(kept)


def test_unlink_segments_removes_only_the_identity(tmp_path: Path) -> None:
    mine, other = new_identity(), new_identity()
    for name in (f"{mine}-tp:0_0", f"{mine}-tp:0_1", f"{other}-tp:0_0"):
        (tmp_path / name).touch()
    assert unlink_segments(mine, tmp_path) == [f"{mine}-tp:0_0", f"{mine}-tp:0_1"]
    assert [path.name for path in tmp_path.iterdir()] == [f"{other}-tp:0_0"]


def test_named_segments_carry_the_identity() -> None:
    identity = new_identity()
    with named_segments(identity):
        ours = SharedMemory(create=True, size=8)
    other = SharedMemory(create=True, size=8)
    for segment in (ours, other):
        segment.close()
        segment.unlink()
    assert ours.name.startswith(f"{identity}-")
    assert not other.name.startswith("megatron_rl")


def test_sweep_leftovers_accepts_a_host_without_the_folder(tmp_path: Path) -> None:
    assert sweep_leftovers(tmp_path / "absent") == unlink_segments("x", tmp_path / "absent") == []
