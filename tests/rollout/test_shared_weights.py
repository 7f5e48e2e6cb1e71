"""Binding a model's parameters to storage of someone else."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.rollout.shared_weights import SharedPlaces, bind


class Tied(torch.nn.Module):
    """An embedding, its tied head, and a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.norm = torch.nn.Linear(4, 3, bias=False)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_bind_shares_under_either_tied_name_and_zeroes_the_rest(name: str) -> None:
    model, buffer = Tied(), torch.arange(40.0)
    bind(model, {name: buffer[8:]})
    assert model.head.weight is model.embed.weight
    buffer[8] = -1.0
    assert model.embed.weight[0, 0] == -1.0
    assert torch.equal(model.embed.weight[1], torch.arange(12.0, 16.0))
    assert not model.norm.weight.any()


@pytest.mark.parametrize(
    ("name", "run", "message"),
    [
        ("embed.scale", torch.zeros(24), "no parameter 'embed.scale'"),
        ("embed.weight", torch.zeros(23), r"'embed.weight' \(6, 4\).* cannot share \(23,\)"),
        ("embed.weight", torch.zeros(24, dtype=torch.bfloat16), "cannot share .*bfloat16"),
        ("embed.weight", torch.zeros(48)[::2], "cannot share"),
    ],
    ids=["unknown", "too_short", "other_dtype", "strided"],
)
def test_bind_rejects_a_run_that_does_not_fit(name: str, run: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind(Tied(), {name: run})


def test_shared_places_rejects_a_replaced_parameter() -> None:
    model, shared = Tied(), {"norm.weight": torch.ones(12)}
    bind(model, shared)
    places = SharedPlaces(model, shared)
    assert not places.shares_all
    places.require_unmoved()
    model.norm.weight = torch.nn.Parameter(model.norm.weight.detach().clone())
    with pytest.raises(RuntimeError, match=r"moved 'norm\.weight'"):
        places.require_unmoved()
