"""Whole models against transformers on several layouts, and layouts that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import RecomputeConfig, TrainedRoleConfig
from megatron_rl.models.gpt import transformer_config
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.runtime.platform import Platform
from tests.end_to_end.policies import FAMILIES, load_policy, write_policy
from tests.support.distributed import run_distributed
from tests.support.tiny_models import ragged_batch, tiny_model

_LAYOUTS = (ParallelLayout(tensor=2, pipeline=2), ParallelLayout(tensor=2, data=2, sequence_parallel=True))


def _score_folders(folders: dict[str, Path], layouts: tuple[ParallelLayout, ...]) -> dict[str, list[np.ndarray]]:
    return {family: [_score(folder, layout) for layout in layouts] for family, folder in folders.items()}


def _score(folder: Path, layout: ParallelLayout) -> np.ndarray:
    import torch.distributed as dist

    from megatron_rl.parallel.groups import GroupRegistry
    from megatron_rl.resharding.megatron_layout import megatron_layout
    from megatron_rl.training.megatron_role import MegatronRole
    from megatron_rl.weights.hf_checkpoint import load_hf_checkpoint
    from megatron_rl.weights.hf_config import model_config_from_hf
    from megatron_rl.weights.names import logical_tensors

    model = model_config_from_hf(folder)
    role = MegatronRole.build(
        model, TrainedRoleConfig(), layout, GroupRegistry(), Platform.detect(), frozen=True, temperature=0.7
    )
    fragments = megatron_layout(model, layout, padded_vocab_size(model.vocab_size, layout.tensor))(dist.get_rank())
    load_hf_checkpoint(folder, logical_tensors(model), fragments, role.named_local_parameters())
    role.weights_changed()
    return role.score(ragged_batch())[0].numpy()


def _transformers_logprobs(folder: Path) -> np.ndarray:
    batch = ragged_batch()
    model = load_policy(folder)
    answer = np.zeros(tuple(batch.tokens_BS.shape), dtype=np.float32)
    for row, length in enumerate(batch.lengths_B.tolist()):
        tokens = batch.tokens_BS[row, :length]
        with torch.no_grad():
            logprobs = torch.log_softmax(model(tokens[None]).logits[0] / 0.7, dim=-1)
        start = int(batch.prompt_lengths_B[row])
        answer[row, start:length] = logprobs[range(start - 1, length - 1), tokens[start:]].numpy()
    return answer


def test_score_matches_reference_on_four_ranks(tmp_path: Path) -> None:
    folders = {family: write_policy(tmp_path / family, family) for family in FAMILIES}
    answers = run_distributed(4, _score_folders, folders, _LAYOUTS)
    for family, folder in folders.items():
        expected = _transformers_logprobs(folder)
        assert np.abs(expected).max() > 5
        for answer in answers:
            for logprobs in answer[family]:
                assert np.abs(logprobs - expected).max() < 5e-5, family


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor": 4}, "model.num_key_value_heads=2 is not divisible by parallel.tensor=4"),
        ({"pipeline": 3}, "model.num_layers=4"),
        ({"virtual_pipeline": 2}, "needs parallel.pipeline > 1"),
        ({"sequence_parallel": True}, "needs parallel.tensor > 1"),
        ({"context": 2}, "parallel.context"),
    ],
    ids=["kv_heads", "layers", "virtual_without_pipeline", "sequence_without_tensor", "context"],
)
def test_transformer_config_rejects_layouts_that_do_not_fit(degrees: dict[str, int], message: str) -> None:
    platform = Platform(torch.device("cpu"), torch.float32, "gloo", None)
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        transformer_config(_model(), ParallelLayout(**degrees), platform, RecomputeConfig(), "local")  # type: ignore[arg-type]


def test_transformer_config_never_batches_messages_on_two_interleaved_stages() -> None:
    platform = Platform(torch.device("cpu"), torch.float32, "gloo", None)
    for pipeline, virtual, batched in ((2, 1, True), (2, 2, False), (4, 1, True)):
        config = transformer_config(
            _model(), ParallelLayout(pipeline=pipeline, virtual_pipeline=virtual), platform, RecomputeConfig(), "local"
        )
        assert config.batch_p2p_comm is batched


def _model() -> ModelConfig:
    return tiny_model()
