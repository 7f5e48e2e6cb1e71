"""What the trainer asks of a rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from torch import Tensor

from megatron_rl.rollout.outputs import Completion
from megatron_rl.rollout.sampling import SamplingSettings

MemoryTag = Literal["weights", "kv_cache"]


class RolloutEngine(Protocol):
    """One engine, or this rank's shard of one: tensor-parallel ranks must make the same calls in the same order."""

    @property
    def policy_version(self) -> int | None:
        """Version of the weights it may sample from; None where they are not known to be valid."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt + response, tokens."""

    def generate(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, seeds: Sequence[int]
    ) -> list[list[Completion]]:
        """Sample ``settings.n`` responses to each of P prompts.

        Args:
            prompts: P lists of token ids.
            settings: used in full; no default is taken from anywhere else.
            seeds: P base seeds; sample ``i`` of prompt ``p`` draws with ``seeds[p] + i``.

        Returns P lists of ``settings.n`` completions, in order.
        Raises RuntimeError where the weights are not known to be valid, ValueError where a prompt does not fit.
        Leaves the random state of this process as it was.
        Collectives: those of the engine's tensor-parallel group.
        """

    def parameters(self) -> dict[str, Tensor]:
        """This rank's shard of every weight by the engine's name (tied names show the same tensor), writable in place.

        Ask again for each update: an engine may move its storage between updates, never during one.
        """

    def invalidate_weights(self) -> None:
        """Say that the weights' source is about to change: nothing generates until the next update is finished.

        Weights that share the source's storage change with it, value by value, so what was computed from them may be
        forgotten at once. Allowed while asleep.
        """

    def begin_weight_update(self) -> None:
        """Declare the weights in flux; nothing generates until the update is finished."""

    def finish_weight_update(self, version: int) -> None:
        """Declare the weights complete as ``version`` and forget everything computed from the old ones.

        Raises RuntimeError where cached prefixes of the old weights could not be dropped.
        """

    def sleep(self, level: Literal[1, 2]) -> None:
        """Give up device memory: 1 keeps the weights elsewhere, 2 drops them (a new update must follow the wake-up).

        Weights that live in the trainer's storage stay as they are.
        """

    def wake(self, tags: Sequence[MemoryTag] = ("weights", "kv_cache")) -> None:
        """Take device memory back. Waking the weights alone allows an update before the cache returns."""

    def shutdown(self) -> None:
        """Free everything; the engine cannot be used again."""
