"""What of a role can leave the GPU while the role does not work: gradients, optimizer state, weights nobody else reads.

Memory moves storage by storage. Tensors, and views of them, stay the objects they are and are valid again afterwards, so
neither Megatron's flat buffers nor the optimizer's state dictionaries notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.optimizer import RoleOptimizer
from megatron_rl.training.optimizer_leaves import leaf_optimizers

_log = logging.getLogger(__name__)
_ALIGNMENT = 512
"""Bytes; copies between host and device run fastest from aligned addresses."""


class HostSwap:
    """Moves the bytes of tensors into page-locked host memory and back.

    The host memory is kept between swaps: page-locking it takes longer than filling it.
    """

    def __init__(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        """``tensors`` is asked before every swap: an optimizer makes its moments at the first step, loading replaces them."""
        self._tensors = tensors
        self._away: list[tuple[torch.UntypedStorage, int, int]] = []
        """Emptied storages, their size in bytes, and where in the host memory their content lies."""
        self._host = torch.empty(0, dtype=torch.uint8)

    def offload(self) -> None:
        """Copy to the host, then give the device memory back to torch. Syncs: the device."""
        assert not self._away, "already on the host"
        placed, total = [], 0
        for storage in _storages(self._tensors()):
            placed.append((storage, storage.nbytes(), total))
            total += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        if not placed:
            return
        device = placed[0][0].device
        if self._host.numel() < total:
            _unlock_pages(self._host, device)
            self._host = _host_memory(total, device)
        for storage, size, offset in placed:
            self._host[offset : offset + size].copy_(_bytes_of(storage), non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        for storage, _, _ in placed:
            storage.resize_(0)
        self._away = placed

    def load(self) -> None:
        """Allocate anew and copy back; queued on the current stream, in order with whatever uses the tensors next."""
        for storage, size, offset in self._away:
            storage.resize_(size)
            _bytes_of(storage).copy_(self._host[offset : offset + size], non_blocking=True)
        self._away = []


class FreedGradients:
    """Gradient buffers, which hold nothing worth keeping between two updates."""

    def __init__(self, optimizer: RoleOptimizer) -> None:
        """Watch the buffers of one role."""
        self._optimizer = optimizer
        self._freed: list[tuple[Tensor, int]] = []
        """Emptied buffers, and their storage's size in bytes."""

    def offload(self) -> None:
        """Free them, and what the optimizer derived from them."""
        self._optimizer.megatron.zero_grad()
        self._freed = [(buffer.grad_data, buffer.grad_data.untyped_storage().nbytes()) for buffer in _buffers(self._optimizer)]
        for gradients, _ in self._freed:
            gradients.untyped_storage().resize_(0)

    def load(self) -> None:
        """Allocate them anew, zeroed; every ``main_grad`` is a valid view again."""
        for gradients, size in self._freed:
            gradients.untyped_storage().resize_(size)
            gradients.zero_()
        self._freed = []


def optimizer_tensors(role: MegatronRole) -> Iterator[Tensor]:
    """Moments and f32 master weights of a role on its device; weights that the model computes with are not among them."""
    assert role.optimizer is not None
    flat = [t for buffer in _buffers(role.optimizer) for t in (buffer.param_data, buffer.grad_data) if t is not None]
    fixed = {_identity(tensor) for tensor in (*role.parameters.values(), *flat)}
    for leaf in leaf_optimizers(role.optimizer.megatron):
        held: list[object] = [tensor for group in leaf.optimizer.param_groups for tensor in group["params"]]
        held += [value for state in leaf.optimizer.state.values() for value in state.values()]
        for tensor in held:
            if isinstance(tensor, Tensor) and tensor.device == role.platform.device and _identity(tensor) not in fixed:
                yield tensor


def parameter_tensors(role: MegatronRole) -> Sequence[Tensor]:
    """Weights of a role, complete, for one whose storage no engine reads in place. Collectives: the data-parallel group."""
    if role.optimizer is not None:
        role.optimizer.complete_weights()
    return list(role.parameters.values())


def _buffers(optimizer: RoleOptimizer) -> Iterator[Any]:
    """Megatron's flat buffers of weights and gradients."""
    for chunk in optimizer.chunks:
        yield from chunk.buffers + chunk.expert_parallel_buffers


def _identity(tensor: Tensor) -> int:
    """Of the storage, also while it is empty and has no address."""
    return int(tensor.untyped_storage()._cdata)


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    """Each storage once; those that somebody else views (another process, NumPy) must stay and are left out."""
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen and storage.nbytes() > 0 and storage.resizable():
            seen.add(storage._cdata)
            yield storage


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _host_memory(num_bytes: int, device: torch.device) -> Tensor:
    """Page-locked where there is a GPU. Torch's own pinned allocations round up to the next power of two."""
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    if device.type == "cuda":
        memory.zero_()  # Pages that all threads have touched first are locked in half the time.
        error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), num_bytes, 0)  # type: ignore[no-untyped-call]
        if int(error) != 0:
            _log.warning("cannot lock %.1f GiB of host memory (%s): offloading copies slower", num_bytes / 2**30, error)
    return memory


def _unlock_pages(memory: Tensor, device: torch.device) -> None:
    if device.type == "cuda" and memory.numel() > 0 and memory.is_pinned():
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
