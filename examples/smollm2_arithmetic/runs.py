"""The runs of the comparison, one after the other on one machine.

    python -m examples.smollm2_arithmetic.runs MODEL_FOLDER OUT_FOLDER [RUN ...]

Without names, all of them. After each run ``OUT_FOLDER/records.json`` holds what there is;
``write_page`` makes the page from it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_EXPLORING = (
    # With the peer's setting 90 % of the groups soon earn one reward and have no gradient; so 75 % do.
    "rollout.temperature=1.3",
    "reward.function=megatron_rl.rewards.math_answer:last_number_digits",
    # 8,192 questions are passed once in 128 steps.
    "data.reasoning_gym.train_size=65536",
)
_LONG = (*_EXPLORING, "trainer.total_training_steps=1500")
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run. Example: ``PlannedRun("megatron_rl, gcd", ("data=gcd",))``."""

    title: str
    overrides: tuple[str, ...] = ()
    """On top of ``experiment=smollm2_arithmetic``; TRL reads the same ones."""
    framework: Literal["megatron_rl", "trl"] = "megatron_rl"


RUNS = {
    "grpo": PlannedRun("megatron_rl, the peer's setting"),
    "trl": PlannedRun("TRL GRPOTrainer, the same setting", framework="trl"),
    "fast_seed0": PlannedRun("megatron_rl, exploring setting with partial credit, seed 0", _LONG),
    "fast_seed1": PlannedRun("megatron_rl, exploring setting with partial credit, seed 1", (*_LONG, "trainer.seed=1")),
    "ppo": PlannedRun("megatron_rl, PPO with a critic", ("algorithm=ppo", "trainer.total_training_steps=300")),
    "gcd": PlannedRun("megatron_rl, gcd", ("data=gcd", "trainer.total_training_steps=300")),
    "letter_counting": PlannedRun("megatron_rl, letter_counting", ("data=letter_counting", "trainer.total_training_steps=300")),
    "correction_token": PlannedRun("megatron_rl, mismatch correction per token", ("rollout.correction.mode=token",)),
    "float32": PlannedRun("megatron_rl, float32 weights", ("trainer.dtype=float32", "rollout.kv_cache_gib=8")),
}
"""Name in the records -> run, in the order of the tables."""


def command(name: str, model: Path, out: Path) -> list[str]:
    """What starts a run; its answer is a run folder, or a file where TRL runs."""
    run = RUNS[name]
    if run.framework == "trl":
        return [sys.executable, str(_HERE / "run_trl.py"), str(model), str(out / f"{name}.json"), *run.overrides]
    own = (
        "experiment=smollm2_arithmetic",
        f"model.path='{model}'",
        f"trainer.output_dir='{out}'",
        f"trainer.experiment_name={name}",
        "trainer.save_hf_at_end=false",
        f"trainer.callbacks=['{_HERE / 'wall_clock.py'}:WallClock']",
    )
    return [sys.executable, "-m", "megatron_rl.cli.main", "train", *own, *run.overrides]


def places(out: Path) -> list[str]:
    """``NAME=PLACE`` of every run that has left something."""
    found = {
        name: out / f"{name}.json" if run.framework == "trl" else out / "megatron_rl" / name / "latest"
        for name, run in RUNS.items()
    }
    return [f"{name}={place}" for name, place in found.items() if place.exists()]


def main(model: Path, out: Path, names: list[str]) -> int:
    """Run, and join the records after each; a run that fails does not stop the others. Returns how many failed."""
    unknown = sorted(set(names) - RUNS.keys())
    if unknown:
        sys.exit(f"{', '.join(unknown)}: no such run; runs are {', '.join(RUNS)}")
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        print(f"{name}: {RUNS[name].title}", flush=True)
        failed += subprocess.run(command(name, model, out)).returncode != 0
        if places(out):
            join = [sys.executable, "-m", "examples.smollm2_arithmetic.records", str(out / "records.json"), *places(out)]
            subprocess.run(join, check=True)
    return failed


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:] or list(RUNS)))
