"""Dropping the engine's prefix cache: it is keyed by tokens, not by weights, and would answer from the old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
    from vllm.v1.engine.llm_engine import LLMEngine


def drop_prefix_cache(engine: LLMEngine) -> bool:
    """Forget every cached prefix of an in-process engine; False where requests still hold blocks.

    Takes time for what is cached. vLLM's own reset visits every block of the cache, each in half the time, so it is used
    where at least half of them are cached.
    """
    core = engine.engine_core.engine_core  # type: ignore[attr-defined]
    pool: BlockPool = core.scheduler.kv_cache_manager.block_pool
    num_cached = len(pool.cached_block_hash_to_block)
    if 2 * num_cached >= pool.num_gpu_blocks or pool.enable_kv_cache_events or pool.metrics_collector is not None:
        return engine.reset_prefix_cache()
    if pool.num_gpu_blocks - pool.get_num_free_blocks() != 1:  # the null block is always in use
        return False
    _forget(pool)
    return True


def _forget(pool: BlockPool) -> None:
    cached: BlockHashToBlockMap = pool.cached_block_hash_to_block
    pool.cached_block_hash_to_block = type(cached)()
    pool.cached_block_hashes_by_block.clear()
    for blocks in cached._cache.values():
        if isinstance(blocks, dict):  # several blocks with the same prefix
            for block in blocks.values():
                block.reset_hash()  # type: ignore[no-untyped-call]
        else:
            blocks.reset_hash()  # type: ignore[no-untyped-call]
