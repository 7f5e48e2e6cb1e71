"""Hugging Face tokenizers through the ``tokenizers`` library: no torch, no transformers for a ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from megatron_rl.data.special_tokens import SpecialTokens, with_single_bos
from megatron_rl.data.tokenizer_files import TokenizerSettings


def _begins_with_bos(fast: FastTokenizer, bos_token_id: int | None, add_bos_token: bool | None) -> bool:
    """Whether sequences begin with BOS: the explicit setting, else what the vocabulary file's post-processor does."""
    if bos_token_id is None:
        return False
    if add_bos_token is not None:
        return add_bos_token
    return fast.encode("a", add_special_tokens=True).ids[:1] == [bos_token_id]


class HfTokenizer(SpecialTokens):
    """A fast tokenizer (see :class:`megatron_rl.data.tokenizer.Tokenizer` for the contract)."""

    def __init__(self, fast: FastTokenizer, settings: TokenizerSettings, where: str) -> None:
        """Wrap ``fast``; ``where`` names it in messages."""
        super().__init__(settings, fast.token_to_id, where)
        fast.no_truncation()  # saved files may carry a length limit of their own, which would cut prompts silently
        fast.no_padding()
        self._fast = fast
        self._ids = frozenset(fast.get_vocab(with_added_tokens=True).values())
        self.vocab_size = max(self._ids) + 1
        self._is_gapless = len(self._ids) == self.vocab_size
        self._adds_bos = _begins_with_bos(fast, self.bos_token_id, settings.add_bos_token)

    @classmethod
    def from_file(cls, file: Path, settings: TokenizerSettings) -> HfTokenizer:
        """Read a ``tokenizer.json``."""
        try:
            fast = FastTokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise ValueError(f"model.tokenizer_path: {file} is not a tokenizer.json ({error})") from error
        return cls(fast, settings, str(file))

    @classmethod
    def from_slow_files(cls, folder: Path, settings: TokenizerSettings) -> HfTokenizer:
        """Convert a folder that has only vocabulary files (``vocab.json`` and ``merges.txt``, for example)."""
        from transformers import AutoTokenizer

        try:
            converted = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            return cls(converted.backend_tokenizer, settings, str(folder))
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(
                f"model.tokenizer_path: {folder} holds neither tokenizer.json nor tokenizer.model, and transformers "
                f"could not convert what is there ({error})"
            ) from error

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of ``text``, with at most one BOS and no added EOS."""
        ids = self._fast.encode(text, add_special_tokens=False).ids
        return with_single_bos(ids, self.bos_token_id, add_special_tokens and self._adds_bos)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text; ids without a token show as U+FFFD, where the library would drop them unseen."""
        return self.decode_batch([token_ids], skip_special_tokens)[0]

    def decode_batch(self, batch: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Return a text for each sequence of ids, as ``decode``."""
        rows = [list(map(int, token_ids)) for token_ids in batch]
        if all(map(self._all_known, rows)):
            return list(self._fast.decode_batch(rows, skip_special_tokens=skip_special_tokens))
        return [self._decode_around_gaps(row, skip_special_tokens) for row in rows]

    def _all_known(self, ids: list[int]) -> bool:
        if self._is_gapless:  # a look-up for each id of a large vocabulary would take as long as decoding it
            return not ids or (0 <= min(ids) and max(ids) < self.vocab_size)
        return self._ids.issuperset(ids)

    def _decode_around_gaps(self, ids: list[int], skip_special_tokens: bool) -> str:
        parts: list[str] = []
        known: list[int] = []
        for token_id in ids:
            if token_id in self._ids:
                known.append(token_id)
                continue
            parts += [self._fast.decode(known, skip_special_tokens=skip_special_tokens), "\ufffd"]
            known = []
        return "".join([*parts, self._fast.decode(known, skip_special_tokens=skip_special_tokens)])
