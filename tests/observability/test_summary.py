"""The final table."""

from __future__ import annotations

import io

from rich.console import Console

from megatron_rl.observability.sinks import JsonlSink, read_metrics
from megatron_rl.observability.summary import print_summary, summary_table


def lines_of(tmp_path, records):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for step, values in records:
        sink.write(step, values)
    output = io.StringIO()
    Console(file=output, width=100).print(summary_table(read_metrics(tmp_path / "metrics.jsonl"), title="run"))
    return [" ".join(line.split()) for line in output.getvalue().splitlines()[1:]]


def test_summary_names_the_folder_of_the_run(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    output = io.StringIO()
    print_summary(tmp_path / "metrics.jsonl", Console(file=output, width=100))
    assert "".join(output.getvalue().split()) == str(tmp_path)


def test_summary_matches_hand_computed(tmp_path):
    records = [(0, {"val/accuracy/mean": 0.125, "timing_s/testing": 9.0})]
    for step in range(1, 11):
        values = {
            "reward/mean": step / 10,
            "timing_s/gen": 3.0,
            "timing_s/update_actor": 0.5,
            "timing_s/other": 0.5,
            "timing_s/step": 4.0,
            "perf/tokens_per_second": 1000.0 * step,
            "sync/bytes_received": 3.0 * 2**20,
            "sync/bound_ratio": 1.0,
        }
        records.append((step, values))
    records[-1][1]["val/accuracy/mean"] = 0.75
    assert lines_of(tmp_path, records) == [
        "reward, first 5 steps 0.300",
        "reward, last 5 steps 0.800 +0.500",
        "held-out accuracy, step 0 0.125",
        "held-out accuracy, step 10 0.750 +0.625",
        "step time 4.00 s mean of 10 steps",
        "gen 3.00 s 75%",
        "update_actor 0.50 s 12%",
        "other 0.50 s 12%",
        "tokens/s 5,500 prompt + response, whole job",
        "weights received per sync 3.00 MiB 1.00x the lower bound",
    ]


def test_summary_of_an_empty_run_is_empty(tmp_path):
    assert lines_of(tmp_path, [(0, {})]) == []
