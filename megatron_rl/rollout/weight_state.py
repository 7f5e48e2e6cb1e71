"""Whether an engine's weights may be sampled from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from megatron_rl.rollout.engine import MemoryTag


class WeightState:
    """Follows updates and sleeps, and refuses what would sample from unknown weights."""

    def __init__(self, *, survives_deep_sleep: bool = False) -> None:
        """Start without weights, awake. ``survives_deep_sleep``: all weights lie outside the memory that sleep gives up."""
        self._survives_deep_sleep = survives_deep_sleep
        self._version: int | None = None
        self._updating = False
        self._asleep: set[MemoryTag] = set()

    @property
    def version(self) -> int | None:
        """Version of the valid weights, else None."""
        return None if self._updating else self._version

    def invalidate(self) -> None:
        """Forget the version: what the weights are views of, or copies of, is about to change. Also while asleep."""
        self._version = None

    def begin_update(self) -> None:
        """Enter an update; the weights are worth nothing until it is finished."""
        if self._updating:
            raise RuntimeError("begin_weight_update was called twice; finish_weight_update(version) is missing between")
        if "weights" in self._asleep:
            raise RuntimeError("begin_weight_update on a sleeping engine; call wake(['weights']) first")
        self._updating = True
        self._version = None

    def require_updating(self) -> None:
        """Raise RuntimeError outside of an update."""
        if not self._updating:
            raise RuntimeError("finish_weight_update without begin_weight_update")

    def finish_update(self, version: int) -> None:
        """Leave the update: the weights are those of ``version``."""
        self.require_updating()
        self._updating = False
        self._version = version

    def sleep(self, level: Literal[1, 2]) -> None:
        """Fall asleep; level 2 loses the weights that the engine owns."""
        if self._updating:
            raise RuntimeError("sleep in the middle of a weight update; finish it first")
        self._asleep = {"weights", "kv_cache"}
        if level == 2 and not self._survives_deep_sleep:
            self._version = None

    def wake(self, tags: Iterable[MemoryTag]) -> None:
        """Wake what is named."""
        self._asleep -= set(tags)

    def require_ready(self) -> None:
        """Raise RuntimeError, saying what is missing, unless sampling is safe."""
        if self._asleep:
            raise RuntimeError(f"the rollout engine sleeps ({sorted(self._asleep)}); call wake() before generate")
        if self._updating:
            raise RuntimeError("the rollout engine's weights are being updated; finish_weight_update(version) comes first")
        if self._version is None:
            raise RuntimeError(
                "the rollout engine holds no valid weights (never synced, the actor has moved on, or a deep sleep dropped "
                "them); "
                "push the actor's weights before generate"
            )
