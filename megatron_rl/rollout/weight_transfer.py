"""The sync as a backend of vLLM's own weight transfer, so that ``LLM``'s update calls run a planned transfer.

    register_weight_transfer()
    llm = LLM(model, weight_transfer_config=WeightTransferConfig(backend="megatron_rl"))
    llm.init_weight_transfer_engine({"init_info": {"connect": lambda engine: bind_executor(engine).run}})
    llm.start_weight_update(); llm.update_weights({"update_info": {}}); llm.finish_weight_update(); llm.reset_prefix_cache()

Each worker gets the engine's parameters once and the transfer then writes them in place, so nothing is loaded again and no
CUDA graph is lost. vLLM leaves the prefix cache to the caller. Training runs use ``VllmEngine``, which does all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from megatron_rl.rollout.plain_weights import require_plain_parameters

if TYPE_CHECKING:
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

BACKEND = "megatron_rl"
"""Name for ``WeightTransferConfig``."""
Connect = Callable[[Mapping[str, Tensor]], Callable[[], object]]
"""From the worker's parameters, by the engine's names, to what moves the current weights into them."""


def register_weight_transfer() -> None:
    """Make the backend known to vLLM in this process; once is enough, again does no harm."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, _engine_class())


def _engine_class() -> type[WeightTransferEngine[Any, Any]]:
    from vllm.distributed.weight_transfer import base

    @dataclass
    class InitInfo(base.WeightTransferInitInfo):
        """How to reach the trainer."""

        connect: Connect

    @dataclass
    class UpdateInfo(base.WeightTransferUpdateInfo):
        """Nothing: the plan says it all."""

    class PlannedWeightTransfer(base.WeightTransferEngine[InitInfo, UpdateInfo]):
        """Runs one planned transfer for each update."""

        init_info_cls = InitInfo
        update_info_cls = UpdateInfo
        _transfer: Callable[[], object] | None = None

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            require_plain_parameters(self.model)
            parameters = {name: p.data for name, p in self.model.named_parameters(remove_duplicate=False)}
            self._transfer = init_info.connect(parameters)

        def start_weight_update(self) -> None:
            if self._transfer is None:
                raise RuntimeError("start_weight_update before init_weight_transfer_engine")

        def receive_weights(self, update_info: UpdateInfo) -> None:
            del update_info
            assert self._transfer is not None
            self._transfer()

        def finish_weight_update(self) -> None:
            pass

        def shutdown(self) -> None:
            self._transfer = None

        @staticmethod
        def trainer_send_weights(iterator: object, trainer_args: object) -> None:
            raise NotImplementedError("the trainer's ranks run the same plan: call their executor's run()")

    return PlannedWeightTransfer
