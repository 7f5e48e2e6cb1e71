"""The one face every tokenizer shows to the rest of the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back.

    There is deliberately no method that turns response ids into text and back: that is not the identity, and the ids
    trained on must be the engine's own.
    """

    @property
    def vocab_size(self) -> int:
        """Largest id + 1; the embedding needs at least so many rows."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Begin-of-sequence id, None where the vocabulary has none."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a response, the tokenizer's own EOS first.

        The union of what the tokenizer, ``config.json`` and ``generation_config.json`` name: engines stop on all of them.
        """
        ...

    @property
    def pad_token_id(self) -> int:
        """Filler id; may equal an EOS id, so masks come from lengths and never from it."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat_template`` works."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of ``text``; markers of special tokens inside it become their ids.

        ``add_special_tokens`` puts BOS in front where this tokenizer begins sequences with one and the text does not
        already do so: there is never a second. EOS is never added.
        """
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``. An id without a token (a padded vocabulary row) shows as U+FFFD."""
        ...

    def decode_batch(self, batch: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Return ``decode`` of each sequence; many at once are faster."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation; pass it to ``encode`` like any other text.

        Raises:
            ValueError: There is no chat template, or it refused the messages.
        """
        ...


def load_tokenizer(path: str, *, model_path: str | None = None, chat_template: str | None = None) -> Tokenizer:
    """Load a tokenizer without importing torch.

    Args:
        path: Folder with ``tokenizer.json`` or ``tokenizer.model``, or such a file itself.
        model_path: Folder whose ``config.json`` and ``generation_config.json`` add EOS ids; None = the tokenizer's folder.
        chat_template: Jinja file that replaces the tokenizer's own template.

    Raises:
        ValueError: Nothing loadable is there.
    """
    from megatron_rl.data.hf_tokenizer import HfTokenizer
    from megatron_rl.data.sentencepiece_tokenizer import SentencePieceTokenizer
    from megatron_rl.data.tokenizer_files import read_tokenizer_settings

    place = Path(path)
    if not place.exists():
        raise ValueError(
            f"model.tokenizer_path={path!r}: there is no such file or folder. "
            "Tokenizers are read from local files only: give a folder, a tokenizer.json or a sentencepiece .model."
        )
    folder = place if place.is_dir() else place.parent
    settings = read_tokenizer_settings(folder, Path(model_path) if model_path else folder, chat_template)
    if place.suffix == ".model":
        return SentencePieceTokenizer(place, settings)
    if place.is_file() or (folder / "tokenizer.json").exists():
        return HfTokenizer.from_file(place if place.is_file() else folder / "tokenizer.json", settings)
    if (folder / "tokenizer.model").exists():
        return SentencePieceTokenizer(folder / "tokenizer.model", settings)
    return HfTokenizer.from_slow_files(folder, settings)
