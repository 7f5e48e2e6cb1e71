"""Loads what every distributed test needs, in the process that ranks are forked from."""

from __future__ import annotations

import gc

from megatron_rl.runtime.known_warnings import silence_known_warnings
from megatron_rl.runtime.quick_imports import quick_imports

silence_known_warnings()
with quick_imports():
    import megatron_rl.training.megatron_role
    import megatron_rl.types.batches  # noqa: F401
gc.freeze()  # forked ranks share the pages as long as nothing visits the objects
