"""Handing the actor's weights to the rollout engine along fixed plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.rollout.engine import RolloutEngine
from megatron_rl.types.metrics import Metric, Metrics


class WeightSync:
    """Runs the reshard plans and owns everything a weight change implies: cache reset, version stamp, metrics."""

    def __init__(
        self,
        executors: Sequence[ReshardExecutor],
        plan: ReshardPlan,
        engine: RolloutEngine,
        verify: Callable[[], None] | None = None,
    ) -> None:
        """Bind a planned transfer to the engine it feeds.

        Args:
            executors: of the plans, on this rank, in the order in which they run.
            plan: all of them as one, to count bytes; the same on all ranks.
            engine: what it feeds.
            verify: called after each transfer; raises where the engine does not hold the actor's weights.
        """
        self._executors = executors
        self.plan = plan
        self._engine = engine
        self._verify = verify
        self.version = -1
        """Policy version the engine holds; -1 before the first sync."""

    def invalidate(self) -> None:
        """To be called before the actor's weights change: an engine that reads some of them in place must not sample."""
        if self.plan.aliased_bytes:
            self._engine.invalidate_weights()

    def push(self, version: int) -> Metrics:
        """Move the weights; afterwards the engine samples from ``version``. Enters the plan's transfers on every rank.

        Raises ValueError naming the tensor where a shared parameter has moved, or where verification finds a difference.
        """
        self._engine.begin_weight_update()
        stats = [executor.run() for executor in self._executors]
        if self._verify is not None:
            self._verify()
        self._engine.finish_weight_update(version)
        self.version = version
        return {
            "sync/bytes_received": Metric(float(self.plan.received_bytes), "sum"),
            "sync/bytes_copied": Metric(float(self.plan.copied_bytes), "sum"),
            "sync/bytes_aliased": Metric(float(self.plan.aliased_bytes), "sum"),
            "sync/bound_bytes": Metric(float(self.plan.bound_bytes), "sum"),
            "sync/bound_ratio": Metric(self.plan.bound_ratio, "max"),
            "sync/seconds": Metric(sum(run.seconds for run in stats), "sum"),
            "sync/peak_extra_bytes": Metric(float(sum(run.peak_extra_bytes for run in stats)), "max"),
            "sync/version": Metric(float(version), "last"),
        }
