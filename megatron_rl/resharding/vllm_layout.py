"""Learns vLLM's weight layout from vLLM itself: its own loaders run on meta tensors while every copy is recorded.

No process group, no engine, no weights: a fake world answers for rank ``r`` of ``t``, the model is built on the meta
device, and one source tensor per checkpoint tensor is handed to ``model.load_weights``. Views keep storage, offset and
strides even on meta, so each recorded copy says which box of which checkpoint tensor goes where.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers import mla
from vllm.model_executor.layers.fused_moe import expert_map_manager
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import utils as model_utils
from vllm.utils.torch_utils import set_default_torch_dtype

from megatron_rl.resharding.boxes import Box, intersect, volume
from megatron_rl.resharding.spec import Fragment, LogicalTensor, RankFragments
from megatron_rl.weights.hf_config import model_config_from_hf
from megatron_rl.weights.names import is_routed_expert, logical_tensors

_GROUPS = ("_TP", "_PP", "_DP", "_EP", "_DCP", "_PCP", "_WORLD")


def trace_vllm_layout(
    hf_config_dir: Path,
    tp_size: int,
    tp_rank: int,
    *,
    tensors: Sequence[LogicalTensor] | None = None,
    expert_parallel: bool = False,
    stage: int = 0,
    stages: int = 1,
) -> RankFragments:
    """What rank ``tp_rank`` of ``tp_size`` in pipeline stage ``stage`` of ``stages`` stores.

    Buffers are named as in vLLM's ``named_parameters``. ``hf_config_dir`` needs only config.json. ``tensors``: those of
    the checkpoint, derived from config.json where the family is one that we train. ``expert_parallel``: whole experts are
    spread over the ranks.
    Raises ValueError naming the tensor where the record is no full account of the loading: a copy from a tensor made on
    the way, a parameter not written exactly once, a checkpoint tensor that was never read.
    """
    if tensors is None:
        tensors = logical_tensors(model_config_from_hf(hf_config_dir))
    with _fake_world(_FakeGroup(tp_size, tp_rank), _FakeGroup(stages, stage)):
        model = _build_on_meta(hf_config_dir, tp_size, expert_parallel)
        # vLLM remembers the layers of other stages by the id of the model, which a later model may have again.
        model_utils._model_to_pp_missing_layer_names.clear()
        elsewhere = {t.name for t in tensors if stages > 1 or (expert_parallel and is_routed_expert(t.name))}
        return _record_loading(model, tensors, elsewhere)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What vLLM asks of a torch process group."""

    world_size: int

    def size(self) -> int:
        return self.world_size


class _FakeGroup:
    """What model construction and loading ask of a vLLM group coordinator; no communication."""

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.rank_in_group, self.rank, self.local_rank = size, rank, rank, rank
        self.ranks = list(range(size))
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device_group = _Sizes(size)


@contextmanager
def _fake_world(tensor: _FakeGroup, pipeline: _FakeGroup) -> Iterator[None]:
    """Answer for one rank of an engine; whatever groups this process has come back afterwards."""
    saved = {name: getattr(parallel_state, name) for name in _GROUPS}
    alone = _FakeGroup(1, 0)
    groups = {"_TP": tensor, "_EP": tensor, "_WORLD": tensor, "_PP": pipeline}
    try:
        for name in _GROUPS:
            setattr(parallel_state, name, groups.get(name, alone))
        yield
    finally:
        for name, group in saved.items():
            setattr(parallel_state, name, group)


def _build_on_meta(hf_config_dir: Path, tp_size: int, expert_parallel: bool) -> nn.Module:
    arguments = EngineArgs(model=str(hf_config_dir), skip_tokenizer_init=True, enforce_eager=True, dtype="float32")
    config = arguments.create_engine_config()
    # Set afterwards: the arguments' own checks want as many devices as ranks.
    config.parallel_config.enable_expert_parallel = expert_parallel
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = tp_size
    with set_default_torch_dtype(torch.float32), torch.device("meta"), _expert_map_on_cpu(), _latent_core_left_out():
        model: nn.Module = initialize_model(vllm_config=config)
    return model


@contextmanager
def _expert_map_on_cpu() -> Iterator[None]:
    """Let vLLM compute which experts are local with real numbers; on meta it could not read them back."""
    original = expert_map_manager.determine_expert_map

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"):
            return original(*args, **kwargs)

    expert_map_manager.determine_expert_map = on_cpu
    try:
        yield
    finally:
        expert_map_manager.determine_expert_map = original


class _NoCore(nn.Module):
    """Stands where the kernel of latent attention would be, which has no parameters and no CPU version."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


@contextmanager
def _latent_core_left_out() -> Iterator[None]:
    names = vars(mla)
    original = names["MLAAttention"]
    names["MLAAttention"] = _NoCore
    try:
        yield
    finally:
        names["MLAAttention"] = original


@dataclass(frozen=True, slots=True)
class _Write:
    """One recorded copy (``source`` set) or fill of a parameter."""

    target: Tensor
    source: Tensor | None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every copy and fill; view operators pass by unrecorded because views carry their own geometry."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes: list[_Write] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.writes.append(_Write(args[0], args[1]))
        elif func in (torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default):
            self.writes.append(_Write(args[0], None))
        return func(*args, **(kwargs or {}))


def _record_loading(
    model: nn.Module, tensors: Sequence[LogicalTensor], elsewhere: Collection[str] = frozenset()
) -> RankFragments:
    """``elsewhere``: tensors that other ranks may read instead."""
    parameters = dict(model.named_parameters())
    sources = {t.name: torch.empty(t.shape, device="meta") for t in tensors}
    buffer_of = {_storage(p): name for name, p in parameters.items()}
    tensor_of = {_storage(s): name for name, s in sources.items()}
    with _Recorder() as recorder:
        model.load_weights(iter(sources.items()))  # type: ignore[operator]
    fragments: list[Fragment] = []
    written: dict[str, list[Box]] = {name: [] for name in parameters}
    unread = set(sources)
    for write in recorder.writes:
        buffer = buffer_of.get(_storage(write.target))
        if buffer is None:
            continue
        target = _box(write.target, parameters[buffer], buffer)
        written[buffer].append(target)
        if write.source is not None:
            name = tensor_of.get(_storage(write.source))
            if name is None:
                raise ValueError(f"vLLM fills {buffer!r} from a tensor it computed; its layout cannot be traced")
            unread.discard(name)
            start, stop = _box(write.source, sources[name], name)
            fragments.append(Fragment(name, start, stop, buffer, write.target.storage_offset(), write.target.stride()))
    unread -= set(elsewhere)
    if unread:
        raise ValueError(f"vLLM never reads {', '.join(sorted(unread))}")
    for name, parameter in parameters.items():
        _check_written_once(name, parameter, written[name])
    # A vocabulary shard that is all padding reads an empty box.
    return tuple(f for f in fragments if f.num_elements)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _box(view: Tensor, whole: Tensor, name: str) -> Box:
    """The box of ``whole`` that ``view`` shows; a dim of the whole that the view lacks is indexed.

    Only slices are boxes: a transposed or reshaped view is refused.
    """
    extents = [(int(n), stride) for n, stride in zip(view.shape, view.stride(), strict=True)]
    rest, start, stop = int(view.storage_offset()), [], []
    for stride in whole.stride():
        at, rest = divmod(rest, stride)
        extent = extents.pop(0)[0] if extents and extents[0][1] == stride else 1
        start.append(at)
        stop.append(at + extent)
    if extents:
        raise ValueError(f"vLLM moves {name!r} through a view that is no slice; its layout cannot be traced")
    return tuple(start), tuple(stop)


def _check_written_once(name: str, parameter: Tensor, boxes: list[Box]) -> None:
    total = sum(map(volume, boxes))
    if total != parameter.numel():
        raise ValueError(f"vLLM writes {total} elements of {name!r}, which has {parameter.numel()}")
    if any(intersect(a, b) for a, b in combinations(boxes, 2)):
        raise ValueError(f"vLLM writes parts of {name!r} twice")
