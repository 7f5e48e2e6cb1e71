import json
import random
from collections import Counter
from pathlib import Path

import pytest

from megatron_rl.config.data import ReasoningGymConfig
from megatron_rl.data.demonstrations import TEMPLATE_TEXT, noisy_response, write_spell_backward_demonstrations
from megatron_rl.data.reasoning_gym_source import reasoning_gym_rows

_TASK = ReasoningGymConfig(
    task="spell_backward", task_kwargs={"min_word_len": 3, "max_word_len": 5}, train_size=200, val_size=40
)


def test_noisy_response_has_the_documented_mixture() -> None:
    rng = random.Random(0)
    counts = Counter(noisy_response("abcd", rng) for _ in range(4000))
    assert set(counts) == {"dcba", "abcd", "dcb"}
    for response, frac in (("dcba", 0.4), ("abcd", 0.3), ("dcb", 0.3)):
        assert abs(counts[response] / 4000 - frac) < 0.03


def test_write_demonstrations_uses_training_words_only(tmp_path: Path) -> None:
    file = write_spell_backward_demonstrations(tmp_path / "new" / "d.jsonl", _TASK, 500, seed=0)
    pairs = [json.loads(line) for line in file.read_text().splitlines()]
    prompts = {pair["prompt"] for pair in pairs}
    assert len(pairs) == 500
    assert prompts == {row.values["prompt"] for row in reasoning_gym_rows(_TASK, "train")}
    assert all(prompt.startswith(TEMPLATE_TEXT) and prompt.endswith("\n") for prompt in prompts)


def test_write_demonstrations_honours_the_seed(tmp_path: Path) -> None:
    texts = [
        write_spell_backward_demonstrations(tmp_path / f"{i}.jsonl", _TASK, 50, seed=seed).read_text()
        for i, seed in enumerate((0, 0, 1))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_write_demonstrations_rejects_other_tasks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.reasoning_gym\.task='chain_sum'"):
        write_spell_backward_demonstrations(tmp_path / "d.jsonl", ReasoningGymConfig(task="chain_sum"), 5, seed=0)
