"""Settings that lie beside the weights of a Hugging Face folder, in JSON files that may be absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_settings(path: Path) -> dict[str, Any]:
    """The object in a JSON file; nothing where there is no file. Raises ValueError, naming it, where it holds no object."""
    if not path.exists():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(loaded).__name__}")
    return loaded


def model_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """EOS ids of ``generation_config.json`` and ``config.json``, in this order; the rollout engine stops at all of them."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_settings(folder / name).get("eos_token_id")
        ids.extend(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(dict.fromkeys(ids))
