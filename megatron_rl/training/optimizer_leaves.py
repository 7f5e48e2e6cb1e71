"""Megatron chains optimizers; this lists those at the ends of the chain."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer


def leaf_optimizers(optimizer: MegatronOptimizer) -> Iterator[MegatronOptimizer]:
    """The optimizers of a chain that hold parameters themselves."""
    if isinstance(optimizer, ChainedOptimizer):
        for inner in optimizer.chained_optimizers:
            yield from leaf_optimizers(inner)
    else:
        yield optimizer
