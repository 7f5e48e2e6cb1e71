"""Runs of one role on gloo ranks, and the pieces of the answer put together for comparison."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.types.batches import LossInputs
from tests.support.tiny_models import ragged_batch, tiny_model

_CUT_DIM = {"linear_proj.weight": 1, "linear_fc2.weight": 1}


@dataclass(frozen=True)
class PolicyLossForTest:
    """Clipped surrogate with entropy and a KL term: everything a policy loss reads."""

    needs_entropy: bool = True
    is_separable: bool = True

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs):  # type: ignore[no-untyped-def]
        assert entropy_N is not None
        ratio = (outputs_N - inputs.old_logprobs_N).exp()
        surrogate = -torch.minimum(ratio * inputs.advantages_N, ratio.clamp(0.8, 1.2) * inputs.advantages_N)
        kl = 0.5 * (outputs_N - inputs.ref_logprobs_N).square()
        loss = (inputs.loss_weights_N * (surrogate + 0.1 * kl - 0.01 * entropy_N)).sum()
        return loss, {"loss": (loss, "sum"), "ratio_max": (_max(ratio), "max")}


@dataclass(frozen=True)
class ValueLossForTest:
    """Squared error."""

    needs_entropy: bool = False
    is_separable: bool = True

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs):  # type: ignore[no-untyped-def]
        loss = (inputs.loss_weights_N * (outputs_N - inputs.returns_N).square()).sum()
        return loss, {"loss": (loss, "sum")}


@dataclass(frozen=True)
class RatioLoss:
    """Reports how far the importance ratio is from one."""

    needs_entropy: bool = False
    is_separable: bool = True

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs):  # type: ignore[no-untyped-def]
        deviation = _max((outputs_N.detach() - inputs.old_logprobs_N).expm1().abs())
        return (outputs_N * inputs.loss_weights_N).sum(), {"ratio_deviation": (deviation, "max")}


def _max(x_N: Tensor) -> Tensor:
    """Of non-negative numbers; 0 where there are none."""
    return torch.cat([x_N, x_N.new_zeros(1)]).max()


@dataclass(frozen=True)
class RoleRun:
    """What to run."""

    layout: ParallelLayout = ParallelLayout()
    head: str = "lm"
    model: ModelConfig = field(default_factory=tiny_model)
    config: TrainedRoleConfig = field(
        # A large epsilon, because Adam otherwise turns rounding noise in tiny gradients into full-size steps.
        default_factory=lambda: TrainedRoleConfig(optim=OptimConfig(lr=0.01, eps=0.1), ppo_max_token_len_per_gpu=64)
    )
    steps: int = 1
    num_samples: int = 8
    is_separable: bool = True
    """Whether the policy loss may be evaluated where the logits are."""

    def on(self, **degrees: object) -> RoleRun:
        """The same run on another layout."""
        return replace(self, layout=ParallelLayout(**degrees))  # type: ignore[arg-type]


Answer = dict[str, object]


def run_role(run: RoleRun) -> Answer:
    """On one rank: score, then a number of updates; gradients of the last one, weights after it, all of this rank."""
    from megatron_rl.parallel.groups import GroupRegistry
    from megatron_rl.runtime.platform import Platform
    from megatron_rl.training.megatron_role import MegatronRole

    role = MegatronRole.build(
        run.model, run.config, run.layout, GroupRegistry(), Platform.detect(), head=run.head, total_optimizer_steps=10, seed=3
    )
    fill_value_head(role)
    batch = ragged_batch(run.num_samples)
    answer: Answer = {}
    if run.head == "lm":
        logprobs, entropy = role.score(batch, with_entropy=True)
        answer.update(logprobs=logprobs.numpy(), entropy=entropy.numpy())
        loss = PolicyLossForTest(is_separable=run.is_separable)
    else:
        answer.update(values=role.values(batch).numpy())
        loss = ValueLossForTest()
    for step in range(1, run.steps + 1):
        metrics = role.update(batch, loss, another_follows=step < run.steps)
        answer["metrics"] = {name: metric.value for name, metric in metrics.items()}
    role.check_replicas()
    answer["gradients"] = {name: p.main_grad.numpy().copy() for name, p in role.parameters.items()}
    answer["weights"] = {name: p.detach().numpy().copy() for name, p in role.parameters.items()}
    return answer


def fill_value_head(role) -> None:  # type: ignore[no-untyped-def]
    """Give a critic's head weights; it starts at zero, where no gradient reaches the layers below."""
    if "value_head.weight" in role.parameters:
        weight = role.parameters["value_head.weight"]
        weight.data.copy_(torch.linspace(-1.0, 1.0, weight.numel()).view(weight.shape))
    role.weights_changed()


def _join(name: str, shards: list[np.ndarray], model: ModelConfig) -> np.ndarray:
    """Whole tensor from its tensor-parallel shards; vocabulary padding cut off."""
    whole = shards[0]
    if name.endswith("linear_fc1.weight"):
        halves = [np.split(shard, 2) for shard in shards]
        whole = np.concatenate([half[0] for half in halves] + [half[1] for half in halves])
    elif "linear_qkv" in name:
        group = model.num_attention_heads // model.num_key_value_heads + 2
        starts = [len(shards[0]) * heads // group for heads in (group - 2, group - 1)]
        whole = np.concatenate([part for parts in zip(*(np.split(s, starts) for s in shards), strict=True) for part in parts])
    elif name.endswith(tuple(_CUT_DIM)):
        whole = np.concatenate(shards, axis=next(d for suffix, d in _CUT_DIM.items() if name.endswith(suffix)))
    elif name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        whole = np.concatenate(shards)
        assert not whole[model.vocab_size :].any(), f"{name}: padded rows must stay zero"
        whole = whole[: model.vocab_size]
    return whole


def gather_tensors(answers: list[Answer], run: RoleRun, what: str) -> dict[str, np.ndarray]:
    """Whole tensors of data rank 0. Data rank 0's gradient shards need no distributed optimizer, or data=1."""
    joined: dict[str, np.ndarray] = {}
    for stage in range(run.layout.pipeline):
        ranks = [run.layout.rank(tensor=t, pipeline=stage) for t in range(run.layout.tensor)]
        for name in answers[ranks[0]][what]:  # type: ignore[attr-defined]
            joined[name] = _join(name, [answers[rank][what][name] for rank in ranks], run.model)  # type: ignore[index]
    return joined


def assert_close(actual: np.ndarray, expected: np.ndarray, what: str, tolerance: float = 1e-5) -> None:
    """Equal within a fraction of the expected tensor's largest element."""
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max() + 1e-12, err_msg=what)


def assert_same_run(answers: list[Answer], run: RoleRun, expected: Answer) -> None:
    """Outputs and metrics on every rank, gradients and weights put together, equal those of one process."""
    for answer in answers:
        for key in ("logprobs", "entropy", "values"):
            if key in expected:
                assert_close(answer[key], expected[key], key)  # type: ignore[arg-type]
        for name, value in expected["metrics"].items():  # type: ignore[attr-defined]
            if name.startswith(("packing/", "balance/")):
                continue  # what the layout does to the batch
            assert_close(np.array(answer["metrics"][name]), np.array(value), name)  # type: ignore[index]
    for what in ("gradients", "weights"):
        if what == "gradients" and run.layout.data > 1 and run.config.optim.use_distributed_optimizer:
            continue  # each data rank holds only its shard of the sum
        for name, actual in gather_tensors(answers, run, what).items():
            source = name if name in expected[what] else "embedding.word_embeddings.weight"  # type: ignore[operator]
            want = expected[what][source][: actual.shape[0]]  # type: ignore[index]
            assert_close(actual, want, f"{what} of {name}")
