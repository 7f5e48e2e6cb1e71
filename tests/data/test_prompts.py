import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.config.data import DataConfig
from megatron_rl.config.model import ModelConfig
from megatron_rl.data.byte_tokenizer import write_byte_tokenizer
from megatron_rl.data.prompts import load_prompts, source_rows, tokenizer_of
from megatron_rl.data.tokenizer import Tokenizer

_SHARD = """
import sys
from types import SimpleNamespace
from megatron_rl.config.data import DataConfig
from megatron_rl.config.model import ModelConfig
from megatron_rl.data.prompts import render_one_shard
model, data = sys.argv[1:]
config = SimpleNamespace(model=ModelConfig.model_validate_json(model), data=DataConfig.model_validate_json(data))
try:
    print(render_one_shard(config).summary)
finally:
    print("torch imported:", "torch" in sys.modules)
"""


def _model(tokenizer_path: Path | None, vocab_size: int = 259) -> ModelConfig:
    return ModelConfig(
        name="tiny",
        architecture="qwen2",
        tokenizer_path=None if tokenizer_path is None else str(tokenizer_path),
        num_layers=1,
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=vocab_size,
    )


def _three_rows(path: Path, longest: int) -> str:
    rows = [{"prompt": "a"}, {"prompt": "ab"}, {"prompt": "a" * longest}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _render_in_a_fresh_process(tmp_path: Path, **data: Any) -> subprocess.CompletedProcess[str]:
    model = _model(write_byte_tokenizer(tmp_path / "tokenizer")).model_dump_json()
    arguments = [model, DataConfig(**data).model_dump_json()]
    return subprocess.run([sys.executable, "-c", _SHARD, *arguments], capture_output=True, text=True, timeout=60)


def test_render_one_shard_needs_no_torch(tmp_path: Path) -> None:
    done = _render_in_a_fresh_process(
        tmp_path, train_files=[_three_rows(tmp_path / "p.jsonl", 4)], max_prompt_length=4, train_batch_size=3
    )
    assert done.stdout == "3 prompts of 1 to 4 tokens, 0 over-long dropped, 0 truncated\ntorch imported: False\n", done.stderr


def test_render_one_shard_rejects_overlong_row(tmp_path: Path) -> None:
    done = _render_in_a_fresh_process(tmp_path, train_files=[_three_rows(tmp_path / "p.jsonl", 5)], max_prompt_length=4)
    assert done.returncode != 0
    assert "p.jsonl, row 2: 5 tokens" in done.stderr and "data.max_prompt_length=4" in done.stderr


def test_render_one_shard_names_every_problem(tmp_path: Path) -> None:
    files = {"train_files": [_three_rows(tmp_path / "p.jsonl", 5)], "val_files": ["no.jsonl"]}
    done = _render_in_a_fresh_process(tmp_path, **files, max_prompt_length=4, train_batch_size=4)
    for problem in ("data.val_files: there is no file", "data.train_batch_size=4: there are only 3 rows", "row 2: 5 tokens"):
        assert problem in done.stderr


def test_tokenizer_of_rejects_a_vocabulary_larger_than_the_embedding(tmp_path: Path) -> None:
    folder = write_byte_tokenizer(tmp_path)
    assert tokenizer_of(_model(folder)).vocab_size == 259
    with pytest.raises(ValueError, match=r"model\.vocab_size=258: .* at least 259 rows"):
        tokenizer_of(_model(folder, vocab_size=258))


def test_tokenizer_of_rejects_a_model_without_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"model\.tokenizer_path and model\.path are both null"):
        tokenizer_of(_model(None))


def test_source_rows_rejects_no_source_and_two_sources(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no training prompts"):
        source_rows(DataConfig(), "train")
    both = {"train_files": [_three_rows(tmp_path / "p.jsonl", 1)], "reasoning_gym": {"task": "spell_backward"}}
    with pytest.raises(ValueError, match=r"data\.train_files and data\.reasoning_gym are both set"):
        source_rows(DataConfig.model_validate(both), "train")


def test_load_prompts_allows_absent_validation_data(byte_tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = DataConfig(train_files=[_three_rows(tmp_path / "p.jsonl", 1)])
    assert load_prompts(data, byte_tokenizer, "val").prompts == ()
    assert len(load_prompts(data, byte_tokenizer, "train").prompts) == 3
