"""The page and the curves of the comparison, from joined records.

    python -m examples.smollm2_arithmetic.write_page RECORDS.json benchmarks/results/DATE_GPU_smollm2

writes ``<stem>.md``, ``<stem>_curves.png`` and a copy of the records as ``<stem>.json``. A run that is absent is named as
not measured.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.smollm2_arithmetic.figure import draw_curves
from examples.smollm2_arithmetic.records import ACCURACY, RunRecord, read_records, write_records
from examples.smollm2_arithmetic.runs import RUNS

_SETTING = (
    "512 samples a step (64 prompts x 8), at most 64 new tokens, temperature 1, no KL term, AdamW, constant learning rate "
    "after 5 warm-up steps, reward 1 if the last number of the answer is right. Held-out accuracy: greedy, 512 draws "
    "of questions that are never trained on. Seconds count training alone, for both frameworks: start-up and validation are "
    "left out. "
    "[How to repeat it](../../examples/smollm2_arithmetic/README.md)."
)
_REWARD_LEVELS = (0.5, 0.6, 0.7, 0.75)
_TIMES_S = (15, 30, 60, 90, 120, 180)
_PHASES = (
    "gen",
    "reward",
    "old_log_prob",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "score_and_update",
    "update_weights",
)


def _cell(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed_table(runs: Mapping[str, RunRecord]) -> str:
    """Seconds per step and throughput, steps after the first five."""
    rows = []
    for name, run in runs.items():
        seconds = sorted(run.step_seconds())
        low, high = seconds[len(seconds) // 10], seconds[-1 - len(seconds) // 10]
        cells = [f"{statistics.median(seconds):.3f} ({low:.3f}-{high:.3f})", f"{run.tokens_per_second():,.0f}"]
        rows.append([RUNS[name].title, str(len(run.steps)), *cells, f"{run.peak_allocated_gib:.1f}"])
    return table(["run", "steps", "s/step, median (10th-90th percentile)", "tokens/s", "peak GiB"], rows)


def phase_table(runs: Mapping[str, RunRecord]) -> str:
    """Median seconds of each phase."""
    present = [phase for phase in _PHASES if any((run.median(f"timing_s/{phase}") or 0) > 5e-4 for run in runs.values())]
    rows = [
        [RUNS[name].title, *(_cell(run.median(f"timing_s/{phase}"), ".3f") for phase in present)] for name, run in runs.items()
    ]
    return table(["run", *present], rows)


def learning_table(runs: Mapping[str, RunRecord]) -> str:
    """Training time to a mean reward (five steps), and held-out accuracy after so much training time."""
    rows = []
    for name, run in runs.items():
        reached = [_cell(run.seconds_to_reward(level), ".0f") for level in _REWARD_LEVELS]
        accuracies = [_cell(run.accuracy_at(seconds), ".3f") for seconds in _TIMES_S]
        first, last = run.validations[0][ACCURACY], run.validations[-1]
        end = f"{last[ACCURACY]:.3f} at {last['wall_s']:.0f} s"
        rows.append([RUNS[name].title, *reached, _cell(run.seconds_to_accuracy(0.9), ".0f"), f"{first:.3f}", *accuracies, end])
    headings = ["run", *(f"s to reward {level}" for level in _REWARD_LEVELS), "s to held-out 0.90", "held-out at 0 s"]
    return table([*headings, *(f"{seconds} s" for seconds in _TIMES_S), "end"], rows)


def agreement_table(runs: Mapping[str, RunRecord]) -> str:
    """Trainer against engine, log-probs of the same sampled tokens, in nats."""
    names = ("logprob_diff_mean", "logprob_diff_max", "kl", "k3_kl", "rollout_is_mean")
    rows = [
        [
            RUNS[name].title,
            str(run.settings["trainer"]["dtype"]),
            str(run.settings["rollout"]["correction"]["mode"]),
            *(_cell(run.median(f"rollout_corr/{metric}"), ".2e") for metric in names),
        ]
        for name, run in runs.items()
        if run.framework == "megatron_rl"
    ]
    return table(["run", "dtype", "correction", *names], rows)


def sample_list(run: RunRecord) -> str:
    """Some answers of the first and of the last step."""
    lines = []
    for sample in run.samples:
        question = sample["prompt"].split("user\n")[-1].split("<|im_end|>")[0].replace("\n", " ")
        answer = " ".join(sample["response"].split())
        lines.append(f"- step {sample['step']}, reward {sample['reward']:g}. *{question}* `{answer}`")
    return "\n".join(lines)


def comparison(ours: RunRecord, peer: RunRecord) -> str:
    """The two figures a reader looks for first."""
    ratio = statistics.median(peer.step_seconds()) / statistics.median(ours.step_seconds())
    end = min(ours.steps[-1]["wall_s"], peer.steps[-1]["wall_s"])
    return (
        f"megatron_rl takes {ratio:.2f} times as many steps per second as TRL in the same setting. After {end:.0f} s of "
        f"training, held-out accuracy is {ours.accuracy_at(end):.3f} against {peer.accuracy_at(end):.3f}."
    )


def page(runs: Mapping[str, RunRecord], stem: Path, commit: str) -> str:
    """The Markdown page."""
    ours = [run for run in runs.values() if run.framework == "megatron_rl"]
    hardware = ours[0].environment["hardware"]["device"]
    versions = ", ".join(f"{name} {version}" for name, version in ours[0].environment["versions"].items())
    peer = next((run for run in runs.values() if run.framework == "trl"), None)
    absent = [run.title for name, run in RUNS.items() if name not in runs]
    parts = [
        f"# SmolLM2-135M-Instruct learns arithmetic, {stem.name[:10]}",
        f"Hardware: one {hardware}. Commit {commit}. {versions}" + ("." if peer is None else f", TRL {peer.settings['trl']}."),
        _SETTING,
        f"![Reward and held-out accuracy against training time]({stem.name}_curves.png)",
    ]
    if "grpo" in runs and "trl" in runs:
        parts.append(comparison(runs["grpo"], runs["trl"]))
    parts += ["## Learning", learning_table(runs), "## Speed", speed_table(runs), "Median seconds by phase:", phase_table(runs)]
    parts += ["## Trainer against engine", "Medians over steps, nats, of the sampled tokens.", agreement_table(runs)]
    shown = next((name for name in ("fast_seed0", "grpo") if name in runs), None)
    if shown is not None:
        parts += ["## Samples", f"{RUNS[shown].title}, temperature 1.", sample_list(runs[shown])]
    absent.append("verl: it starts its workers through Ray, which the machine did not have")
    parts += ["## Not measured", "\n".join(f"- {title}" for title in absent)]
    return "\n\n".join(parts) + "\n"


def main(records: Path, stem: Path) -> None:
    """Write page, curves and records."""
    found = read_records(records)
    runs = {name: found[name] for name in RUNS if name in found}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_records(runs, stem.with_name(f"{stem.name}.json"))
    draw_curves({RUNS[name].title: run for name, run in runs.items()}, stem.with_name(f"{stem.name}_curves.png"))
    stem.with_name(f"{stem.name}.md").write_text(page(runs, stem, commit))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
