"""transformers and Megatron agree on the log-prob of every token, in every family and on every layout of up to 4 ranks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from megatron_rl.cli.compose import compose_run
from tests.end_to_end.agreement_sessions import TEMPERATURE, Scores, megatron_scores
from tests.end_to_end.policies import FAMILIES, load_policy, reference_logprobs, write_policy
from tests.support.distributed import run_distributed
from tests.support.tiny_models import ragged_batch

LAYOUTS = {
    "tp1": (1, {}),
    "tp2": (2, {"tensor": 2}),
    "tp2_sp": (2, {"tensor": 2, "sequence_parallel": True}),
    "pp2": (2, {"pipeline": 2}),
    "pp2_vpp2": (2, {"pipeline": 2, "virtual_pipeline": 2}),
    "dp2": (2, {"data": 2}),
    "tp2_pp2": (4, {"tensor": 2, "pipeline": 2}),
    "tp2_sp_pp2_vpp2": (4, {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "virtual_pipeline": 2}),
    "tp2_dp2": (4, {"tensor": 2, "data": 2}),
    "pp2_dp2": (4, {"pipeline": 2, "data": 2}),
    "pp4": (4, {"pipeline": 4}),
}
"""Name -> number of ranks and the actor's degrees."""


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    return {family: write_policy(folder / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def scores(policies: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    """Scores of all layouts of a number of ranks, from one process group."""

    @cache
    def of_world(world_size: int) -> list[dict[str, Scores]]:
        configs = {
            f"{family}-{layout}": compose_run(
                [
                    "experiment=tiny_cpu",
                    f"model.path='{folder}'",
                    "actor.parallel.tensor=1",
                    "actor.ppo_max_token_len_per_gpu=48",
                    *(f"actor.parallel.{key}={str(value).lower()}" for key, value in degrees.items()),
                ]
            )
            for family, folder in policies.items()
            for layout, (needed, degrees) in LAYOUTS.items()
            if needed == world_size
        }
        return run_distributed(world_size, megatron_scores, configs, tmp_path_factory.mktemp(f"world{world_size}"))

    return of_world


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_actor_score_matches_reference(family: str, layout: str, policies: dict[str, Path], scores) -> None:
    expected = reference_logprobs(policies[family], ragged_batch(), TEMPERATURE)
    assert (expected < -0.5).sum() > 30
    for rank in scores(LAYOUTS[layout][0]):
        np.testing.assert_allclose(rank[f"{family}-{layout}"].logprobs_BS, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_exported_policy_roundtrips(family: str, layout: str, policies: dict[str, Path], scores) -> None:
    folder = scores(LAYOUTS[layout][0])[0][f"{family}-{layout}"].exported
    load_policy(folder)
    original = load_file(policies[family] / "model.safetensors")
    exported = load_file(folder / "model.safetensors")
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], original[name]) for name in original)
