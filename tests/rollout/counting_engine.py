"""The smallest rollout engine: it needs no model, and its answers tell what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from megatron_rl.rollout.engine import MemoryTag
from megatron_rl.rollout.outputs import Completion
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.weight_state import WeightState


class CountingEngine:
    """Answers with the prompt's last id repeated; the log-probs carry the seed, so nothing can be mixed up unseen.

    Sample ``i`` of a prompt is ``1 + (last id + i) % budget`` tokens long. ``slip`` is added to every answered id.
    """

    def __init__(self, max_model_len: int = 32, slip: int = 0, fails: bool = False) -> None:
        self._state = WeightState()
        self._max_model_len = max_model_len
        self._slip = slip
        self._fails = fails

    @property
    def policy_version(self) -> int | None:
        return self._state.version

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    def generate(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        self._state.require_ready()
        if self._fails:
            raise OSError("out of order")
        return [
            [self._answer(prompt, seed + i, i, settings.max_new_tokens) for i in range(settings.n)]
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def _answer(self, prompt: Sequence[int], seed: int, sample: int, budget: int) -> Completion:
        length = 1 + (prompt[-1] + sample) % budget
        return Completion(
            token_ids=(prompt[-1] + self._slip,) * length,
            logprobs=(-float(seed % 1009),) * length,
            finish_reason="length" if length == budget else "stop",
        )

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def invalidate_weights(self) -> None:
        self._state.invalidate()

    def begin_weight_update(self) -> None:
        self._state.begin_update()

    def finish_weight_update(self, version: int) -> None:
        self._state.finish_update(version)

    def sleep(self, level: Literal[1, 2]) -> None:
        self._state.sleep(level)

    def wake(self, tags: Sequence[MemoryTag] = ("weights", "kv_cache")) -> None:
        self._state.wake(tags)

    def shutdown(self) -> None:
        return None
