"""What lies beside a vocabulary in a Hugging Face folder: special tokens, EOS ids, the chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_rl.weights.hf_folder import model_eos_token_ids, read_settings

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """Settings of one tokenizer. Example: ``TokenizerSettings(special_tokens={"eos_token": "</s>"}, ...)``."""

    special_tokens: dict[str, str]
    """Text of each named special token, by role (``bos_token``, ``eos_token`` ...)."""
    add_bos_token: bool | None
    """Whether sequences begin with BOS; None = whatever the vocabulary file does."""
    config_eos_ids: tuple[int, ...]
    """EOS ids named by ``generation_config.json`` and ``config.json``."""
    chat_template: str | None
    """Jinja source."""


def _token_text(value: Any) -> str | None:
    """A special token is stored as its text or as an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _named_special_tokens(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    merged = read_settings(folder / "special_tokens_map.json") | tokenizer_config
    texts = {name: _token_text(merged.get(name)) for name in _SPECIAL_NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _own_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    stored = tokenizer_config.get("chat_template", read_settings(folder / "chat_template.json").get("chat_template"))
    if isinstance(stored, list):  # several named templates: "default" is the one for ordinary chat
        stored = {item["name"]: item["template"] for item in stored}.get("default")
    return stored if isinstance(stored, str) else None


def _replacement_template(chat_template: str) -> str:
    file = Path(chat_template)
    if not file.is_file():
        raise ValueError(f"model.chat_template={chat_template!r}: there is no such file; give a Jinja file or null.")
    return file.read_text(encoding="utf-8")


def read_tokenizer_settings(folder: Path, model_folder: Path, chat_template: str | None) -> TokenizerSettings:
    """Collect the settings beside a vocabulary.

    Args:
        folder: The tokenizer's folder.
        model_folder: Folder of ``config.json`` and ``generation_config.json``.
        chat_template: Jinja file that replaces the folder's template, or None.
    """
    tokenizer_config = read_settings(folder / "tokenizer_config.json")
    add_bos = tokenizer_config.get("add_bos_token")
    return TokenizerSettings(
        special_tokens=_named_special_tokens(folder, tokenizer_config),
        add_bos_token=add_bos if isinstance(add_bos, bool) else None,
        config_eos_ids=model_eos_token_ids(model_folder),
        chat_template=_replacement_template(chat_template) if chat_template else _own_template(folder, tokenizer_config),
    )
