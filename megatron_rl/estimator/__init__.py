"""Memory, time and money of a run, from first principles, before any card is rented. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_rl.estimator.cost import CostEstimate

__all__ = ["CostEstimate", "estimate_cost"]


def estimate_cost(
    model_size: str,
    gpu_type: str,
    num_gpus: int,
    batch_size: int,
    epochs: int = 1,
    *,
    algorithm: str = "ppo",
    dataset_size: int | None = None,
    prompt_tokens: int = 512,
    response_tokens: int = 512,
    samples_per_prompt: int | None = None,
    price_per_hour: float | Mapping[str, float] | None = None,
    device_map: Mapping[str, str] | None = None,
    measurements: Path | str | None = None,
    overrides: Sequence[str] = (),
) -> CostEstimate:
    """Estimate a training run.

    Args:
        model_size: ``"7B"`` and the like, or the name of a preset (``model=``) or model; the critic has the same size.
        gpu_type: card, for example ``"A100-40GB"``.
        num_gpus: cards.
        batch_size: prompts of one step.
        epochs: passes over the prompts.
        algorithm: preset (``algorithm=``): ``ppo`` with a critic, ``grpo`` without.
        dataset_size: prompts; None = 10,000, or one batch where that is more.
        prompt_tokens: of every prompt.
        response_tokens: of every response, so an upper bound where answers end early.
        samples_per_prompt: None = the algorithm's own, 1 for PPO and 8 for GRPO.
        price_per_hour: USD per GPU hour, one for all or by card; None = a placeholder, and the answer says so.
        device_map: role -> card, where roles live on unlike cards.
        measurements: file with more measurements to calibrate on.
        overrides: of the run's configuration; degrees set here are kept, the others are searched.

    Returns:
        The estimate; ``to_dict()`` makes plain mappings of it.

    Raises:
        ConfigError: a ValueError naming the argument, the value and the nearest names.
    """
    from megatron_rl.config.errors import ConfigError

    if isinstance(overrides, str):
        raise ConfigError([f"overrides={overrides!r}: give a list of key=value texts"])
    # Here, so that the parts below (FLOPs, shapes) can be imported without Hydra.
    from megatron_rl.config.loading import compose
    from megatron_rl.estimator.estimate import Request, estimate
    from megatron_rl.estimator.presets import preset_of_size

    typed = [
        f"model={preset_of_size(model_size)}",
        f"algorithm={algorithm}",
        f"data.train_batch_size={batch_size}",
        f"trainer.total_epochs={epochs}",
        f"data.max_prompt_length={prompt_tokens}",
        f"data.max_response_length={response_tokens}",
    ]
    typed += [] if samples_per_prompt is None else [f"rollout.n={samples_per_prompt}"]
    request = Request(
        gpu=gpu_type or "",
        num_gpus=num_gpus,
        device_map=device_map or {},
        price_per_hour=price_per_hour,
        num_prompts=dataset_size,
        measurements=None if measurements is None else Path(measurements),
        typed=frozenset(text.partition("=")[0].lstrip("+") for text in overrides),
    )
    return estimate(compose([*typed, *overrides]), request)
