from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from megatron_rl.report.frame import frame, printable
from megatron_rl.report.live_run import LiveRun
from tests.report.run_folders import REAL, write_jsonl, write_run


def drawn(folder: Path, width: int) -> str:
    snapshot = LiveRun(folder).refresh()
    assert snapshot is not None
    console = Console(width=width, record=True, file=StringIO())
    console.print(frame(snapshot, width))
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 140])
def test_frame_fits_its_width(width: int) -> None:
    text = drawn(REAL, width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "step 13 of 13" in text and "update_actor" in text and "reward" in text


def test_frame_shows_gaps_and_warnings(tmp_path: Path) -> None:
    records = [{"step": step, "reward/mean": 0.1, "actor/grad_norm": None if step == 4 else 1.0} for step in range(1, 5)]
    text = drawn(write_run(tmp_path / "x", records), 100)
    assert "not finite" in text
    assert "warnings (1)" in text


def test_frame_shows_samples_as_text_not_as_terminal_commands(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1, "reward/mean": 0.1}])
    write_jsonl(folder / "samples.jsonl", [{"step": 1, "prompt": "a\nb", "response": "\x1b[2J[bold]x[/bold]", "reward": 1.0}])
    text = drawn(folder, 100)
    assert "\x1b" not in text
    assert "·[2J[bold]x[/bold]" in text


def test_printable_matches_hand_computed() -> None:
    assert printable("a\nb\x1b\u202e") == "a⏎b··"
