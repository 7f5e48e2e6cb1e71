"""Loads what an engine on a CPU loads at its start, in the process that ranks are forked from: seconds for each of them."""

from __future__ import annotations

import gc

from megatron_rl.rollout.process_isolation import preserved_process_settings
from megatron_rl.rollout.vllm_environment import set_engine_environment
from megatron_rl.runtime.quick_imports import quick_imports

set_engine_environment("cpu")
with quick_imports(), preserved_process_settings():
    import vllm.model_executor.models.qwen2
    import vllm.v1.engine.llm_engine
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401
gc.freeze()  # see loaded_megatron
