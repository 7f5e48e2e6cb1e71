"""The benchmark's prompts and its tokenizer, as the product reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.step_workload import Workload, engine_overrides, eos_ids, random_texts, write_workload
from megatron_rl.config.loading import compose
from megatron_rl.data.prompts import load_prompts
from megatron_rl.data.tokenizer import load_tokenizer

WORKLOAD = Workload(prompts=2, samples=3, prompt_tokens=12, response_tokens=20, mean_response_tokens=26)


@pytest.mark.parametrize(
    ("vocab_size", "mean", "ids"),
    [(300, 100, [1, 100, 200]), (300, None, [1]), (300, 1000, [1])],
    ids=["spread", "full_length", "rarer_than_one"],
)
def test_eos_ids_match_hand_computed(vocab_size: int, mean: int | None, ids: list[int]) -> None:
    assert eos_ids(vocab_size, mean) == ids


def test_written_workload_has_the_promised_lengths_and_stop_ids(tmp_path: Path) -> None:
    model = compose(["model=tiny"]).model
    config = compose(["model=tiny", *write_workload(tmp_path, model, WORKLOAD, steps=2)])
    assert config.model.tokenizer_path is not None
    tokenizer = load_tokenizer(config.model.tokenizer_path)
    prompts = load_prompts(config.data, tokenizer, "train").prompts
    assert [len(prompt.token_ids) for prompt in prompts] == [12] * 4
    assert len({prompt.text for prompt in prompts}) == 4
    assert tokenizer.vocab_size == model.vocab_size
    assert len(tokenizer.eos_token_ids) == 10
    assert (config.rollout.n, config.data.train_batch_size, config.rollout.ignore_eos) == (3, 2, False)


def test_full_length_workload_ignores_the_end_of_sequence(tmp_path: Path) -> None:
    workload = Workload(prompts=2, samples=3, prompt_tokens=12, response_tokens=20, mean_response_tokens=None)
    overrides = write_workload(tmp_path, compose(["model=tiny"]).model, workload, steps=1)
    assert compose(["model=tiny", *overrides]).rollout.ignore_eos


def test_engine_overrides_match_hand_computed() -> None:
    config = compose(["model=tiny"])
    sized = compose(["model=tiny", *engine_overrides(config, WORKLOAD, num_engines=2, element_bytes=4)]).rollout
    assert sized.max_num_seqs == 3
    token_bytes = 4 * 2 * 2 * 32 * 4
    assert sized.kv_cache_gib == pytest.approx(3 * (12 + 20 + 32) * token_bytes / 2**30, abs=1e-4)


def test_random_texts_are_reproducible_letters() -> None:
    texts = random_texts(2, 5)
    assert texts == random_texts(2, 5)
    assert all(len(text) == 5 and text.isascii() and text.isalpha() for text in texts)
