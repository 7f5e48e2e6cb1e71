"""Reading and checking safetensors folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.verify import allocate_buffers, scatter_logical
from megatron_rl.weights.hf_checkpoint import (
    load_hf_checkpoint,
    shard_name,
    shard_tensors,
    verify_hf_checkpoint,
    write_shard,
    write_sidecars,
)
from megatron_rl.weights.names import LM_HEAD, logical_tensors
from tests.resharding.shapes import tiny_model

MODEL = tiny_model(tied=True)
TENSORS = logical_tensors(MODEL)


def _values() -> dict[str, torch.Tensor]:
    return {t.name: torch.randn(t.shape, generator=torch.Generator().manual_seed(i)) for i, t in enumerate(TENSORS)}


def _write(folder: Path, values: dict[str, torch.Tensor], shard_bytes: int = 20_000) -> None:
    shards = shard_tensors(TENSORS, 4, shard_bytes)
    for number, shard in enumerate(shards):
        held = {t.name: values.pop(t.name) for t in shard if t.name in values}
        write_shard(folder / shard_name(number, len(shards)), held | (values if number == len(shards) - 1 else {}))
    write_sidecars(folder, shards, 4, {}, None)


def _load(folder: Path, layout: ParallelLayout = ParallelLayout(), rank: int = 0) -> dict[str, torch.Tensor]:
    fragments = megatron_layout(MODEL, layout, padded_vocab_size(MODEL.vocab_size, layout.tensor))(rank)
    parameters = allocate_buffers(fragments, torch.bfloat16, 0.0)
    load_hf_checkpoint(folder, TENSORS, fragments, parameters)
    return parameters


@pytest.mark.parametrize("shard_bytes", [20_000, 1 << 30], ids=["shards", "single_file"])
@pytest.mark.parametrize("rank", range(4))
def test_load_hf_checkpoint_matches_reference(tmp_path: Path, rank: int, shard_bytes: int) -> None:
    layout = ParallelLayout(tensor=2, pipeline=2)
    _write(tmp_path, _values(), shard_bytes)
    fragments = megatron_layout(MODEL, layout, padded_vocab_size(MODEL.vocab_size, 2))(rank)
    expected = allocate_buffers(fragments, torch.bfloat16, 0.0)
    scatter_logical(fragments, _values(), expected)
    loaded = _load(tmp_path, layout, rank)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())


def test_load_hf_checkpoint_ignores_head_of_tied_model(tmp_path: Path) -> None:
    values = _values()
    _write(tmp_path, values | {LM_HEAD: torch.zeros(251, 16)}, 1 << 30)
    assert _load(tmp_path)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.3.self_attn.k_proj.bias"])
def test_load_hf_checkpoint_rejects_missing_tensor(tmp_path: Path, name: str) -> None:
    values = _values()
    del values[name]
    _write(tmp_path, values, 1 << 30)
    with pytest.raises(ValueError, match=f"missing {name}; unexpected none"):
        _load(tmp_path)


def test_load_hf_checkpoint_rejects_unexpected_tensor(tmp_path: Path) -> None:
    _write(tmp_path, _values() | {"model.layers.0.self_attn.q_norm.weight": torch.zeros(4)}, 1 << 30)
    with pytest.raises(ValueError, match=r"unexpected model\.layers\.0\.self_attn\.q_norm\.weight"):
        _load(tmp_path)


def test_load_hf_checkpoint_rejects_other_shape(tmp_path: Path) -> None:
    _write(tmp_path, _values() | {"model.layers.2.mlp.up_proj.weight": torch.zeros(24, 8)}, 1 << 30)
    with pytest.raises(ValueError, match=r"model\.layers\.2\.mlp\.up_proj\.weight.*\(24, 8\).*\(24, 16\)"):
        _load(tmp_path)


@pytest.mark.parametrize(("dtype", "named"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_load_hf_checkpoint_rejects_quantised_weights(tmp_path: Path, dtype: torch.dtype, named: str) -> None:
    """Whole numbers of the right shape would load as weights without their scales."""
    name = "model.layers.2.mlp.up_proj.weight"
    _write(tmp_path, _values() | {name: torch.ones(24, 16).to(dtype)}, 1 << 30)
    with pytest.raises(ValueError, match=rf"up_proj\.weight' is stored as {named}, weights must be one of BF16, .*dequantise"):
        _load(tmp_path)


def test_load_hf_checkpoint_rejects_absent_file(tmp_path: Path) -> None:
    _write(tmp_path, _values())
    victim = sorted(tmp_path.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ValueError, match=victim.name):
        _load(tmp_path)


def test_load_hf_checkpoint_rejects_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.path=.* has neither"):
        _load(tmp_path)


def test_verify_hf_checkpoint_rejects_duplicate(tmp_path: Path) -> None:
    _write(tmp_path, _values())
    verify_hf_checkpoint(tmp_path, TENSORS)
    write_shard(tmp_path / "model-extra.safetensors", {"model.norm.weight": torch.zeros(16)})
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' is in both"):
        verify_hf_checkpoint(tmp_path, TENSORS)


def test_verify_hf_checkpoint_rejects_wrong_index(tmp_path: Path) -> None:
    _write(tmp_path, _values())
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="disagree"):
        verify_hf_checkpoint(tmp_path, TENSORS)
