"""What the aliasing tests run on one rank: an engine on the actor's own weights, edited, moved, put to sleep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatron_rl.config.run import RunConfig
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import build_actor
from megatron_rl.training.sync_assembly import build_weight_sync, plan_weight_sync, weights_to_share

PROMPTS = [[(7 * i + 3 * j) % 240 + 3 for j in range(60 + i)] for i in range(4)]
"""Long enough for their prefixes to be cached."""


def aliased_engine(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Train-side edits seen by the engine, and what it refuses in between."""
    job = Job.join(config, folder)
    actor = build_actor(job, 4, config.rollout.temperature)
    plan = plan_weight_sync(job, actor)
    assert config.model.path is not None
    spec = EngineSpec(
        model_folder=Path(config.model.path),
        rollout=config.rollout,
        layout=job.rollout_layout,
        device=job.platform.device,
        dtype=job.platform.dtype,
        max_model_len=96,
        sleep_mode=True,
        shared=weights_to_share(job, actor, plan),
    )
    before = {name: parameter.detach().clone() for name, parameter in actor.parameters.items()}
    engine = VllmEngine(spec, job.host_group)
    sync = build_weight_sync(job, actor, engine, plan)

    def tokens() -> list[tuple[int, ...]]:
        settings = SamplingSettings(max_new_tokens=8, temperature=0.0, ignore_eos=True)
        return [samples[0].token_ids for samples in engine.generate(PROMPTS, settings, range(len(PROMPTS)))]

    found: dict[str, Any] = {
        "start_left_the_actor_alone": all(torch.equal(before[name], p) for name, p in actor.parameters.items()),
        "not_aliased": sorted(engine.parameters().keys() - spec.shared.keys()),
        "unsynced": _error(tokens),
        "metrics": {name: metric.value for name, metric in sync.push(0).items()},
        "start": tokens(),
    }
    sync.invalidate()
    _scale(actor, -1.5)
    found["edited_and_not_pushed"] = _error(tokens)
    sync.push(1)
    found["edited"] = tokens()
    sync.invalidate()
    _scale(actor, -1 / 1.5)
    for name, parameter in actor.parameters.items():
        parameter.data.copy_(before[name])
    sync.push(2)
    found["restored"] = tokens()
    for level in (1, 2):
        engine.sleep(level)
        found[f"asleep_{level}"] = _error(tokens)
        engine.wake()
        found[f"after_sleep_{level}"] = tokens()
    found["moved_actor"] = _move(actor, "decoder.final_layernorm.weight", lambda: _error(lambda: sync.push(3)))
    found["moved_engine"] = _moved_engine(engine)
    engine.shutdown()
    return found


def _scale(actor: MegatronRole, factor: float) -> None:
    """Change the attention of the first layer in place, as an optimizer would."""
    with torch.no_grad():
        actor.parameters["decoder.layers.0.self_attention.linear_qkv.weight"].mul_(factor)


def _move(actor: MegatronRole, name: str, meanwhile: Callable[[], str]) -> str:
    parameter = actor.parameters[name]
    home = parameter.data
    parameter.data = home.clone()
    message = meanwhile()
    parameter.data = home
    return message


def _moved_engine(engine: VllmEngine) -> str:
    """Its first layer's norm is put elsewhere."""
    parameter = engine._model().get_parameter("model.layers.0.input_layernorm.weight")
    parameter.data = parameter.data.clone()
    return _error(engine.begin_weight_update)


def _error(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"
