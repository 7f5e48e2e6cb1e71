"""Whether a pair of layouts can be planned at all: every degree that does not divide, and the nearest that does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.tensor_degrees import divisors, training_tensor_degrees
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.megatron_layout import megatron_tensor_degrees
from megatron_rl.resharding.vllm_rules import vllm_tensor_degrees


def layout_problems(model: ModelConfig, train: dict[str, int], rollout: dict[str, int]) -> Iterator[str]:
    """Yield a sentence per degree that the shape or the other degrees forbid, naming key, value, rule and nearest legal one.

    ``train``: tensor, pipeline, virtual_pipeline, data, context, expert, expert_tensor; ``rollout``: tensor, pipeline,
    data, expert.
    """
    yield from _train_problems(model, train)
    yield from _rollout_problems(model, rollout)


def _train_problems(model: ModelConfig, train: dict[str, int]) -> Iterator[str]:
    legal = megatron_tensor_degrees(model, model.num_attention_heads)
    yield from _refuse("train.tensor", train["tensor"], legal, f"must cut the heads and the MLP of {model.name} evenly")
    blocks = train["pipeline"] * train["virtual_pipeline"]
    if train["virtual_pipeline"] > 1 and train["pipeline"] == 1:
        yield (
            f"train.virtual_pipeline={train['virtual_pipeline']}: chunks are interleaved between stages, so train.pipeline "
            "must be above 1, or virtual_pipeline left out"
        )
    elif model.num_layers % blocks != 0:
        stages = [n for n in divisors(model.num_layers) if n % train["virtual_pipeline"] == 0] or divisors(model.num_layers)
        near = _nearest(blocks, stages)
        yield (
            f"train.pipeline={train['pipeline']} * train.virtual_pipeline={train['virtual_pipeline']}: must divide "
            f"model.num_layers={model.num_layers}; nearest product that works: {near}"
        )
    block = train["tensor"] * train["context"] * train["data"]
    if model.moe is None:
        for key in ("expert", "expert_tensor"):
            if train[key] > 1 and not (key == "expert_tensor" and train[key] == train["tensor"]):
                yield f"train.{key}={train[key]}: {model.name} has no experts; leave it out"
        return
    experts = [e for e in divisors(model.moe.num_experts) if block % e == 0]
    rule = f"must divide the {model.moe.num_experts} experts and tensor * context * data = {block}"
    yield from _refuse("train.expert", train["expert"], experts, rule)
    if train["expert"] in experts:
        inner = [t for t in divisors(model.moe.expert_intermediate_size) if block % (t * train["expert"]) == 0]
        rule = f"times train.expert={train['expert']} must divide {block}, and it must divide the experts' width"
        yield from _refuse("train.expert_tensor", train["expert_tensor"], inner, rule)


def _rollout_problems(model: ModelConfig, rollout: dict[str, int]) -> Iterator[str]:
    tensor, shards = rollout["tensor"], rollout["tensor"] * rollout["data"]
    legal = _engine_degrees(model, rollout["expert"])
    yield from _refuse("rollout.tensor", tensor, legal, f"must cut heads, MLP and padded vocabulary of {model.name} evenly")
    if rollout["pipeline"] > model.num_layers:
        yield (
            f"rollout.pipeline={rollout['pipeline']}: must not exceed model.num_layers={model.num_layers}; "
            f"nearest that works: {model.num_layers}"
        )
    if model.moe is None and rollout["expert"] > 1:
        yield f"rollout.expert={rollout['expert']}: {model.name} has no experts; leave it out"
    elif model.moe is not None:
        spread = [1, *(e for e in divisors(shards) if e % tensor == 0 and e > 1)]
        rule = f"must be 1 or a multiple of rollout.tensor={tensor} that divides tensor * data = {shards}"
        yield from _refuse("rollout.expert", rollout["expert"], spread, rule)


def _engine_degrees(model: ModelConfig, expert: int) -> list[int]:
    """Tensor-parallel degrees of an engine; one that does not spread whole experts cuts each of them."""
    legal = vllm_tensor_degrees(model, model.num_attention_heads)
    if model.moe is None or expert > 1:
        return legal
    return [t for t in legal if model.moe.expert_intermediate_size % t == 0]


def check_same_ranks(model: ModelConfig, train_ranks: int, rollout: RolloutLayout) -> Iterator[str]:
    """Yield what is wrong where colocated engines cover another number of ranks than training does."""
    shards = rollout.tensor * rollout.pipeline
    if rollout.world_size == train_ranks:
        return
    if train_ranks % shards == 0:
        near = f"nearest that works: rollout.data={train_ranks // shards}"
    else:
        legal = [t for t in _engine_degrees(model, rollout.expert) if train_ranks % t == 0]
        tensor = _nearest(rollout.tensor, legal)
        near = f"nearest that works: rollout.tensor={tensor} rollout.data={train_ranks // tensor}"
        near += " rollout.pipeline=1" if rollout.pipeline > 1 else ""
    yield (
        f"rollout.data={rollout.data}: engines of {rollout.tensor} x {rollout.pipeline} x {rollout.data} = "
        f"{rollout.world_size} ranks do not cover the {train_ranks} training ranks; {near}, or disaggregated=true"
    )


def not_trained_yet(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout) -> list[str]:
    """What of a plan a training run would refuse."""
    found = {
        "experts": model.moe is not None,
        "latent attention": model.mla is not None,
        f"train.context={train.context}": train.context > 1,
        f"train.tensor={train.tensor} (it cuts inside key/value heads)": train.tensor not in training_tensor_degrees(model),
        f"rollout.pipeline={rollout.pipeline}": rollout.pipeline > 1,
        "disaggregated=true": tuple(train.ranks) != tuple(sorted(rollout.ranks)),
    }
    return [what for what, there in found.items() if there]


def _refuse(key: str, value: int, legal: list[int], rule: str) -> Iterator[str]:
    if value not in legal:
        yield f"{key}={value}: {rule}; nearest that works: {_nearest(value, legal)} (legal: {', '.join(map(str, legal))})"


def _nearest(value: int, legal: Iterable[int]) -> int:
    return min(legal, key=lambda n: (abs(n - value), n))
