"""A GGUF file as a Hugging Face folder: dequantised weights, config, tokenizer and chat template.

The work is transformers' own (names, dequantisation, undoing of llama.cpp's query/key permutation); this module makes a
plain, unquantised folder of the result. Its packages are the extra ``gguf``; transformers is imported when a file is read.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from megatron_rl.weights.hf_config import model_config_from_hf

SUFFIX = ".gguf"
_PACKAGES = ("gguf", "accelerate")
"""What transformers needs beyond itself to read such a file."""


def gguf_problem(source: Path) -> str | None:
    """Why ``source`` cannot be converted here, found without reading its weights; None = nothing known."""
    if not source.is_file():
        return f"convert.source={source}: no such file"
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            return f"convert.source={source} does not begin with the letters GGUF: it is no GGUF file"
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        return f"convert.source={source}: reading GGUF needs {' and '.join(missing)}: pip install 'megatron-rl[gguf]'"
    return None


def gguf_to_hf(source: Path, target: Path) -> None:
    """Write the Hugging Face folder ``target``, which must not exist, from the GGUF file ``source``.

    Weights are stored as float32, which holds every GGUF type exactly; a tied output layer is stored once. Nothing is left
    behind where the conversion fails.

    Raises:
        ValueError: transformers cannot read the file, or this project does not train the model in it.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_description(source, partial)
        _write_weights(source, partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_description(source: Path, folder: Path) -> None:
    """Config and tokenizer first: a family that is not trained here is refused before gigabytes are read."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    except Exception as failure:  # what its readers and tokenizers raise for an odd file has no common base
        raise ValueError(f"convert.source={source}: transformers cannot read it: {failure}") from failure
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model_config_from_hf(folder)


def _write_weights(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # Left in place, they would mark the folder as quantised and refuse to save.
    del model.config.quantization_config
    vars(model).update(hf_quantizer=None, is_quantized=False)
    model.save_pretrained(folder)
