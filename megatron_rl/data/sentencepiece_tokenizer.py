"""Sentencepiece ``.model`` files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from megatron_rl.data.special_tokens import SpecialTokens, with_single_bos
from megatron_rl.data.tokenizer_files import TokenizerSettings


def _without_dummy_prefix(model: bytes) -> bytes:
    """The same vocabulary, but text is not taken to start a word."""
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # generated at import
    proto.ParseFromString(model)
    proto.normalizer_spec.add_dummy_prefix = False
    return bytes(proto.SerializeToString())


def _own_special_tokens(processor: sentencepiece.SentencePieceProcessor) -> dict[str, str]:
    ids = {
        "bos_token": processor.bos_id(),
        "eos_token": processor.eos_id(),
        "pad_token": processor.pad_id(),
        "unk_token": processor.unk_id(),
    }
    return {name: processor.id_to_piece(token_id) for name, token_id in ids.items() if token_id >= 0}


class SentencePieceTokenizer(SpecialTokens):
    """A sentencepiece vocabulary (see :class:`megatron_rl.data.tokenizer.Tokenizer` for the contract).

    Control symbols inside the text become their ids, as chat templates need; sentencepiece itself would spell them out.
    Text after such a symbol gets no word-start marker, except directly after a leading BOS: there it is the beginning.
    """

    def __init__(self, file: Path, settings: TokenizerSettings) -> None:
        """Read ``file``; special tokens named beside it win over the ones inside.

        Raises:
            ValueError: ``file`` is not a sentencepiece model.
        """
        model = file.read_bytes()
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            self._continuation = sentencepiece.SentencePieceProcessor(model_proto=_without_dummy_prefix(model))
        except Exception as error:  # the library and protobuf raise different types for a malformed file
            raise ValueError(f"model.tokenizer_path: {file} is not a sentencepiece model ({error})") from error
        named = _own_special_tokens(self._processor) | settings.special_tokens
        super().__init__(replace(settings, special_tokens=named), self._piece_to_id, str(file))
        self.vocab_size = int(self._processor.get_piece_size())
        self._adds_bos = settings.add_bos_token is not False and self.bos_token_id is not None
        controls = [self._processor.id_to_piece(i) for i in range(self.vocab_size) if self._processor.is_control(i)]
        self._controls = frozenset(self._processor.piece_to_id(piece) for piece in controls)
        pattern = "|".join(re.escape(piece) for piece in sorted(controls, key=len, reverse=True))
        self._control_pattern = re.compile(f"({pattern})" if controls else r"(?!)()")

    def _piece_to_id(self, piece: str) -> int | None:
        token_id = int(self._processor.piece_to_id(piece))
        return token_id if self._processor.id_to_piece(token_id) == piece else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of ``text``, with at most one BOS and no added EOS."""
        ids: list[int] = []
        for index, segment in enumerate(self._control_pattern.split(text)):
            if index % 2:
                ids.append(self._processor.piece_to_id(segment))
            elif segment:
                at_start = all(token_id == self.bos_token_id for token_id in ids)
                ids.extend((self._processor if at_start else self._continuation).encode(segment))
        return with_single_bos(ids, self.bos_token_id, add_special_tokens and self._adds_bos)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text; ids without a piece show as U+FFFD."""
        parts: list[str] = []
        plain: list[int] = []
        for token_id in map(int, token_ids):
            exists = 0 <= token_id < self.vocab_size
            if exists and token_id not in self._controls:
                plain.append(token_id)
            elif not exists or not skip_special_tokens:
                parts += [self._decode_plain(plain, parts), self._processor.id_to_piece(token_id) if exists else "\ufffd"]
                plain = []
        return "".join([*parts, self._decode_plain(plain, parts)])

    def decode_batch(self, batch: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Return a text for each sequence of ids, as ``decode``."""
        return [self.decode(token_ids, skip_special_tokens) for token_ids in batch]

    def _decode_plain(self, token_ids: list[int], before: list[str]) -> str:
        """Decode a run; only the first run of a text loses its word-start space."""
        return str((self._continuation if before else self._processor).decode(token_ids)) if token_ids else ""
