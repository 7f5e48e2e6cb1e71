"""How responses are sampled: explicit settings, the stop ids, and a seed for every request.

Nothing here comes from a model's ``generation_config.json`` except the ids that end a response.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_rl.config.rollout import MAX_SAMPLES_PER_PROMPT, MIN_TEMPERATURE, RolloutConfig, ValidationSamplingConfig
from megatron_rl.weights.hf_folder import model_eos_token_ids, read_settings

_NEUTRAL_GENERATION_DEFAULTS = {"repetition_penalty": 1.0, "min_p": 0.0, "top_k": -1, "top_p": 1.0, "temperature": 1.0}
"""What a folder without a say in the matter means, by the file's own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """Everything that decides what a response looks like; passed to the engine in full with every request.

    Example: ``SamplingSettings(n=8, max_new_tokens=256, stop_token_ids=(2,))``.
    """

    n: int = 1
    """Responses per prompt."""
    temperature: float = 1.0
    """0 = greedy (log-probs are then those of temperature 1), else at least ``MIN_TEMPERATURE``."""
    top_p: float = 1.0
    """Nucleus mass in (0, 1]."""
    top_k: int = -1
    """Most likely tokens kept; -1 = all."""
    max_new_tokens: int
    """Response budget, tokens, the final EOS included."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end a response and stay in it: every EOS of the model. Sorted and unique."""
    ignore_eos: bool = False
    """Never stop before the budget (benchmarks)."""

    def __post_init__(self) -> None:
        _require(1 <= self.n <= MAX_SAMPLES_PER_PROMPT, "rollout.n", self.n, f"lie in [1, {MAX_SAMPLES_PER_PROMPT}]")
        _require(
            self.temperature == 0.0 or MIN_TEMPERATURE <= self.temperature < float("inf"),
            "rollout.temperature",
            self.temperature,
            f"be 0 (greedy) or at least {MIN_TEMPERATURE}: the engine silently raises what lies between",
        )
        greedy_n = "be 1 with temperature=0, where all samples of a prompt are the same; raise the temperature"
        _require(self.temperature > 0.0 or self.n == 1, "rollout.n", self.n, greedy_n)
        _require(0.0 < self.top_p <= 1.0, "rollout.top_p", self.top_p, "lie in (0, 1]")
        _require(self.top_k == -1 or self.top_k >= 1, "rollout.top_k", self.top_k, "be -1 (all tokens) or at least 1")
        _require(self.max_new_tokens >= 1, "data.max_response_length", self.max_new_tokens, "be at least 1")
        assert self.stop_token_ids == tuple(sorted(set(self.stop_token_ids))), "stop_token_ids: sorted and unique"

    @classmethod
    def for_training(cls, rollout: RolloutConfig, max_new_tokens: int, eos_token_ids: Iterable[int]) -> SamplingSettings:
        """Settings of the training rollouts."""
        return cls(
            n=rollout.n,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_new_tokens=max_new_tokens,
            stop_token_ids=tuple(sorted(set(eos_token_ids))),
            ignore_eos=rollout.ignore_eos,
        )

    @classmethod
    def for_validation(
        cls, sampling: ValidationSamplingConfig, max_new_tokens: int, eos_token_ids: Iterable[int]
    ) -> SamplingSettings:
        """Settings of the validation pass."""
        return cls(
            n=sampling.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_new_tokens=max_new_tokens,
            stop_token_ids=tuple(sorted(set(eos_token_ids))),
        )


def _require(holds: bool, key: str, value: object, rule: str) -> None:
    if not holds:
        raise ValueError(f"{key}={value} must {rule}")


def request_seed(run_seed: int, step: int, prompt_index: int) -> int:
    """Base seed of one prompt's samples: sample ``i`` draws with ``request_seed(...) + i``.

    ``prompt_index`` counts all prompts of a step, however many batches they are sampled in. A function of its arguments
    alone, so a response depends neither on the batch around it nor on the number of engines. In [0, 2**62), a multiple of
    ``MAX_SAMPLES_PER_PROMPT``, so the ranges of two prompts never overlap partly.
    """
    digest = hashlib.blake2b(f"{run_seed}/{step}/{prompt_index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 2) // MAX_SAMPLES_PER_PROMPT * MAX_SAMPLES_PER_PROMPT


def require_same_eos(settings: SamplingSettings, model_folder: Path) -> None:
    """Raise ValueError where the engine would stop at an id the trainer does not count as the end of a response."""
    unknown = sorted(set(model_eos_token_ids(model_folder)) - set(settings.stop_token_ids))
    if unknown and not settings.ignore_eos:
        raise ValueError(
            f"model.path={model_folder} ends responses at ids {unknown} (eos_token_id of generation_config.json and "
            f"config.json), but the run's EOS ids are {list(settings.stop_token_ids)}: take them from these files and the "
            f"tokenizer together"
        )


def generation_config_differences(model_folder: Path, settings: SamplingSettings) -> dict[str, tuple[object, object]]:
    """Sampling values the model folder recommends and this run does not use: name -> (the file's, ours)."""
    recommended = read_settings(model_folder / "generation_config.json")
    ours = {
        **_NEUTRAL_GENERATION_DEFAULTS,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
    }
    return {
        name: (recommended[name], value)
        for name, value in ours.items()
        if recommended.get(name) is not None and recommended[name] != value
    }
