"""The benchmark harness: rows, failures, deadlines and the table."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from benchmarks.harness import Bench, OutOfTimeError, Row, Work, stopped_after, table, write_json


def make_bench(seconds: float = 60.0) -> Bench:
    return Bench(torch.device("cpu"), time.monotonic() + seconds, ceilings={"copy": 1e9})


def test_measure_prepares_before_each_run() -> None:
    log: list[str] = []
    row = make_bench().measure(
        "case", "mine", lambda: log.append("run"), Work("copy", 1e6), repeats=3, prepare=lambda: log.append("prepare")
    )
    assert row.ms is not None and row.low_ms <= row.ms <= row.high_ms
    assert row.ceiling_frac == pytest.approx(1e6 / (row.ms * 1e-3) / 1e9)
    assert all(log[i - 1] == "prepare" for i, entry in enumerate(log) if entry == "run")


def test_measure_keeps_a_failure_as_note() -> None:
    def broken() -> None:
        raise RuntimeError("no such kernel")

    bench = make_bench()
    bench.measure("case", "broken", broken)
    bench.measure("case", "fine", lambda: None, repeats=1)
    assert bench.rows[0].note == "RuntimeError: no such kernel"
    assert bench.rows[1].ms is not None


def test_measure_stops_at_the_deadline() -> None:
    with pytest.raises(OutOfTimeError):
        make_bench(-1.0).measure("case", "late", lambda: None)


def test_stopped_after_interrupts_a_long_call() -> None:
    started = time.monotonic()
    with pytest.raises(OutOfTimeError), stopped_after(1):
        time.sleep(20)
    assert time.monotonic() - started < 10


def test_table_and_json_match_hand_computed(tmp_path: Path) -> None:
    rows = [
        Row(case="a", variant="mine", ms=1.5, low_ms=1.0, high_ms=2.0, peak_gib=0.25, ceiling_frac=0.5),
        Row(case="a", variant="peer", note="not available"),
    ]
    assert table(rows).splitlines()[2:] == [
        "| a | mine | 1.500 | 1.000 - 2.000 | 0.25 | 50% |",
        "| a | peer | not available | | | |",
    ]
    write_json(tmp_path / "new" / "rows.json", rows, {"commit": "abc"})
    found = json.loads((tmp_path / "new" / "rows.json").read_text())
    assert (found["commit"], found["rows"][0]["ms"]) == ("abc", 1.5)
