"""The torch-free rules against vLLM's own loaders, and the tracer's safety nets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.resharding import vllm_layout
from megatron_rl.resharding.record_layouts import trace_family
from megatron_rl.resharding.spec import LogicalTensor
from megatron_rl.resharding.traced import FAMILIES, stored_layouts
from megatron_rl.resharding.vllm_layout import trace_vllm_layout
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.hf_config import hf_config
from tests.resharding.shapes import tiny_model


@pytest.mark.parametrize("vocab", [251, 65], ids=["odd_vocab", "shard_of_padding"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_vllm_rules_layout_matches_reference(family: str, tied: bool, vocab: int, tmp_path: Path) -> None:
    """Box for box, for every rank of TP 1, 2 and 4 with 2 key/value heads."""
    model = tiny_model(family, layers=2, tied=tied, vocab=vocab)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(model, dtype="float32")))
    for size in (1, 2, 4):
        rules = vllm_rules_layout(model, RolloutLayout(tensor=size))
        for rank in range(size):
            traced = trace_vllm_layout(tmp_path, size, rank)
            assert len(set(traced)) == len(traced)
            assert set(traced) == set(rules(rank))


@pytest.mark.parametrize("family", FAMILIES)
def test_trace_family_matches_stored(family: str) -> None:
    """The installed vLLM still lays parameters out as stored; test_traced holds the rules against the same files."""
    traced, stored = trace_family(family), stored_layouts(family)
    assert {place: set(fragments) for place, fragments in traced.items()} == {p: set(f) for p, f in stored.items()}


class _Loading(nn.Module):
    """A module of one [4, 2] parameter whose loader is given."""

    def __init__(self, load) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 2, device="meta"))
        self.load = load

    def load_weights(self, weights) -> None:
        for _, tensor in weights:
            self.load(self.weight.data, tensor)


LOADERS = {
    "computed_tensor": (lambda p, t: p.copy_(t * 2), "from a tensor it computed"),
    "transposed_view": (lambda p, t: p[:2].copy_(t[:2].T), "no slice"),
    "half_written": (lambda p, t: p[:2].copy_(t[:2]), "writes 4 elements of 'weight', which has 8"),
    "written_twice": (lambda p, t: (p[:2].copy_(t[:2]), p[1:3].copy_(t[:2])), "parts of 'weight' twice"),
    "unread": (lambda p, t: p.fill_(0.0), "never reads w"),
}


@pytest.mark.parametrize("case", LOADERS)
def test_record_loading_rejects(case: str) -> None:
    load, message = LOADERS[case]
    with pytest.raises(ValueError, match=message):
        vllm_layout._record_loading(_Loading(load), [LogicalTensor("w", (4, 2))])


def test_record_loading_matches_hand_computed() -> None:
    def load(parameter: torch.Tensor, tensor: torch.Tensor) -> None:
        parameter[:3].copy_(tensor.narrow(0, 5, 3))
        parameter[3:].fill_(0.0)

    (fragment,) = vllm_layout._record_loading(_Loading(load), [LogicalTensor("w", (9, 2))])
    assert (fragment.start, fragment.stop, fragment.offset, fragment.strides) == ((5, 0), (8, 2), 0, (2, 1))
