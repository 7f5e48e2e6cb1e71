"""Running every benchmark and joining what they leave."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.suite import Part, cpu_parts, demoted, device_slug, gpu_parts, run_part

WRITES = """-c "open('{out}/x.json', 'w').write('[1]'); open('{out}/x.md', 'w').write('# Table')" """


def part(*commands: str) -> Part:
    return Part(name="rates", title="Rates", commands=commands, stem="x")


def test_part_leaves_its_data_and_a_section(tmp_path: Path) -> None:
    text, failures = run_part(part(WRITES), tmp_path / "new", "2026-01-02_h200")
    assert failures == 0
    assert json.loads((tmp_path / "new" / "2026-01-02_h200_rates.json").read_text()) == [1]
    assert text.splitlines()[0] == "# Rates" and text.splitlines()[-1] == "## Table"
    assert "[2026-01-02_h200_rates.json](2026-01-02_h200_rates.json)" in text


def test_failed_command_is_named_and_the_others_count(tmp_path: Path) -> None:
    text, failures = run_part(part('-c "raise SystemExit(3)"', WRITES), tmp_path, "prefix")
    assert failures == 1
    assert "failed: exit code 3" in text and "## Table" in text


@pytest.mark.parametrize("parts", [cpu_parts(), gpu_parts(1), gpu_parts(2)], ids=["cpu", "one-gpu", "two-gpus"])
def test_parts_run_modules_that_exist(parts: list[Part]) -> None:
    for command in (shlex.split(command) for part in parts for command in part.commands):
        assert find_spec(command[1]) is not None
    across = [command for part in parts for command in part.commands if "torch.distributed.run" in command]
    assert len(across) == (2 if parts == gpu_parts(2) else 0)


@pytest.mark.parametrize(
    ("device", "slug"),
    [("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100sxm480gb"), ("", "cpu")],
    ids=["h200", "a100", "none"],
)
def test_device_slug_matches_hand_computed(device: str, slug: str) -> None:
    assert device_slug(device) == slug


def test_demoted_moves_every_heading_down() -> None:
    assert demoted("# a\ntext #\n## b") == "## a\ntext #\n### b"
