"""Files and overrides of the command-line tests: a tiny policy, prompts with answers, prompt/response pairs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.end_to_end.policies import write_policy

NUM_ROWS = 8


def write_rows(file: Path, rows: list[dict[str, str]]) -> Path:
    """JSONL."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_assets(folder: Path) -> Path:
    """Everything the overrides below name."""
    write_policy(folder / "policy", "qwen2", vocab_size=260, num_layers=4)
    write_rows(folder / "prompts.jsonl", [{"prompt": f"number {i}", "answer": str(i)} for i in range(NUM_ROWS)])
    write_rows(folder / "pairs.jsonl", [{"prompt": f"number {i}", "response": f"is {i}"} for i in range(16)])
    return folder


def overrides(folder: Path, *more: str) -> list[str]:
    """A run of seconds: 4 prompts of 4 samples a step."""
    return [
        "experiment=tiny_cpu",
        f"model.path='{folder / 'policy'}'",
        "data.reasoning_gym=null",
        f"data.train_files=['{folder / 'prompts.jsonl'}']",
        "data.train_batch_size=4",
        "actor.parallel.tensor=1",
        "rollout.n=4",
        "rollout.max_num_seqs=16",
        "reward.function=tests.end_to_end.rewards:spread",
        "trainer.save_hf_at_end=false",
        "trainer.test_freq=-1",
        *more,
    ]
