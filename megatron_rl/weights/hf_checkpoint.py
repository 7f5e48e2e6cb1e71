"""Hugging Face safetensors folders: read only the slices a rank stores, write complete folders or none."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from megatron_rl.resharding.spec import Fragment, LogicalTensor
from megatron_rl.weights.names import LM_HEAD

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
"""Buffers that old checkpoints store and every model recomputes."""
_WEIGHT_DTYPES = ("BF16", "F16", "F32", "F64")
"""As safetensors spells them; anything else is quantised."""
_COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files beside the weights that an export takes along."""


@torch.no_grad()
def load_hf_checkpoint(
    folder: Path, tensors: Sequence[LogicalTensor], fragments: Iterable[Fragment], parameters: Mapping[str, Tensor]
) -> None:
    """Fill this rank's parameters from the checkpoint in ``folder``, reading only the boxes in ``fragments``.

    ``tensors``: all of the model; every rank checks all names, shapes and dtypes, so that all stop together. Values are cast to
    each parameter's dtype; padded rows are left as they are. Raises ValueError naming the tensors that are missing,
    unexpected, of another shape or quantised, before anything is written.
    """
    files = checkpoint_files(folder)
    _check_names(folder, tensors, files)
    for file, held in _by_file(tensors, lambda tensor: files[tensor.name]):
        _check_headers(file, {tensor.name: tensor.shape for tensor in held})
    for file, wanted in _by_file(fragments, lambda fragment: files[fragment.tensor]):
        _read_file(file, wanted, parameters)


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """Checkpoint tensor -> file that holds it, from the index or from the single file."""
    index = folder / _INDEX
    if index.is_file():
        listed: dict[str, str] = json.loads(index.read_text())["weight_map"]
        absent = sorted({name for name in listed.values() if not (folder / name).is_file()})
        if absent:
            raise ValueError(f"model.path={folder}: {_INDEX} lists files that are not there: {', '.join(absent)}")
        return {tensor: folder / name for tensor, name in listed.items()}
    if not (folder / _SINGLE).is_file():
        raise ValueError(f"model.path={folder} has neither {_INDEX} nor {_SINGLE}; convert the weights to safetensors")
    with safe_open(folder / _SINGLE, "pt") as opened:
        return {tensor: folder / _SINGLE for tensor in opened.keys()}


def shard_tensors(tensors: Sequence[LogicalTensor], itemsize: int, shard_bytes: int) -> list[list[LogicalTensor]]:
    """Consecutive tensors per file, each file at most ``shard_bytes`` unless one tensor alone is larger."""
    shards: list[list[LogicalTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size = torch.Size(tensor.shape).numel() * itemsize
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size
    return shards


def shard_name(number: int, count: int) -> str:
    """File name of one shard, counted from 0."""
    return _SINGLE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def write_shard(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file in the form transformers expects."""
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def write_sidecars(
    folder: Path,
    shards: Sequence[Sequence[LogicalTensor]],
    itemsize: int,
    config: Mapping[str, object],
    companions: Path | None,
) -> None:
    """Write config.json, the index of several shards, and copy tokenizer files from the folder ``companions``."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if len(shards) > 1:
        total = sum(torch.Size(t.shape).numel() * itemsize for shard in shards for t in shard)
        weight_map = {t.name: shard_name(i, len(shards)) for i, shard in enumerate(shards) for t in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    if companions is not None:
        for file in (companions / name for name in _COMPANIONS):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)


def verify_hf_checkpoint(folder: Path, tensors: Sequence[LogicalTensor]) -> None:
    """Read back the headers: every tensor in exactly one file, in its shape, nothing else, all parameters counted.

    Raises ValueError naming the tensor.
    """
    expected = {tensor.name: tensor.shape for tensor in tensors}
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                if name in found:
                    raise ValueError(f"{name!r} is in both {found[name]} and {file.name}")
                found[name] = file.name
        _check_headers(file, {name: expected[name] for name, where in found.items() if where == file.name and name in expected})
    indexed = {name: file.name for name, file in checkpoint_files(folder).items()}
    if indexed != found:
        raise ValueError(f"{_INDEX} and the files disagree on {sorted(set(indexed.items()) ^ set(found.items()))[:5]}")
    _check_names(folder, tensors, {name: folder / where for name, where in found.items()})


def _by_file[T](items: Iterable[T], file_of: Callable[[T], Path]) -> list[tuple[Path, list[T]]]:
    groups: defaultdict[Path, list[T]] = defaultdict(list)
    for item in items:
        groups[file_of(item)].append(item)
    return sorted(groups.items())


def _check_names(folder: Path, tensors: Sequence[LogicalTensor], files: Mapping[str, Path]) -> None:
    expected = {tensor.name for tensor in tensors}
    missing = sorted(expected - files.keys())
    tied = LM_HEAD not in expected
    unexpected = sorted(
        name for name in files.keys() - expected if not name.endswith(_IGNORED_SUFFIXES) and not (tied and name == LM_HEAD)
    )
    if missing or unexpected:
        raise ValueError(
            f"model.path={folder} does not hold this model: missing {_named(missing)}; unexpected {_named(unexpected)}"
        )


def _check_headers(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    with safe_open(file, "pt") as opened:
        for name, shape in shapes.items():
            piece = opened.get_slice(name)
            stored = tuple(piece.get_shape())
            if stored != shape:
                raise ValueError(f"{file}: {name!r} has shape {stored}, the model needs {shape}")
            if piece.get_dtype() not in _WEIGHT_DTYPES:
                raise ValueError(
                    f"{file}: {name!r} is stored as {piece.get_dtype()}, weights must be one of {', '.join(_WEIGHT_DTYPES)}; "
                    "dequantise the checkpoint first"
                )


def _read_file(file: Path, fragments: Iterable[Fragment], parameters: Mapping[str, Tensor]) -> None:
    with safe_open(file, "pt") as opened:
        for f in fragments:
            parameter = parameters[f.buffer]
            target = parameter.as_strided(f.shape, f.strides, parameter.storage_offset() + f.offset)
            box = tuple(slice(a, b) for a, b in zip(f.start, f.stop, strict=True))
            target.copy_(opened.get_slice(f.tensor)[box])


def _named(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
