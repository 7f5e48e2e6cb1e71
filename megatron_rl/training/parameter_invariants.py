"""What holds of a role's parameters on all of its ranks: replicas are bit-equal, padded vocabulary rows are zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_rl.models.tensor_cut import cut_dim
from megatron_rl.parallel.collectives import first_difference
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.weights.names import MEGATRON_VOCABULARY


def check_replicas(parameters: Mapping[str, Tensor], groups: RoleGroups, *, tied_embeddings: bool) -> None:
    """Verify that parameters held by several ranks are bit-equal on them.

    Args:
        parameters: of this rank, by global name.
        groups: of the role.
        tied_embeddings: the last stage's head is the first stage's embedding.

    Raises RuntimeError naming those that are not: tensor-parallel replicas (norms, biases that are not cut),
    data-parallel replicas, and the two copies of tied embeddings.

    Collectives: the role's tensor-parallel, data-parallel and embedding groups.
    """
    whole = {name: parameter for name, parameter in parameters.items() if cut_dim(parameter) is None}
    differing = first_difference(whole, groups.collection.tp) + first_difference(parameters, groups.collection.dp_cp)
    copy = _tied_copy(parameters) if tied_embeddings and groups.layout.pipeline > 1 else {}
    if copy:
        differing += first_difference(copy, groups.collection.embd)
    if differing:
        raise RuntimeError(
            f"replicated parameters differ between ranks: {', '.join(sorted(set(differing)))}. "
            "The weights have drifted apart; resume from the last checkpoint and report this."
        )


@torch.no_grad()
def zero_vocabulary_padding(parameters: Mapping[str, Tensor], groups: RoleGroups, vocab_size: int) -> None:
    """Set the rows that are no tokens to zero, whatever was loaded; they get no gradient, so updates leave them there."""
    assert groups.coordinates is not None
    for weight in (parameters[name] for name in MEGATRON_VOCABULARY if name in parameters):
        start = groups.coordinates.tensor * weight.shape[0]
        weight[max(0, vocab_size - start) :] = 0


def _tied_copy(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The embedding under one name on the first and on the last stage; nothing on those between."""
    return next(({"tied embedding": parameters[name]} for name in MEGATRON_VOCABULARY if name in parameters), {})
