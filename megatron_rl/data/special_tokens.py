"""The special-token and chat half that every tokenizer shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatron_rl.data.chat_template import ChatTemplate
from megatron_rl.data.tokenizer_files import TokenizerSettings


def with_single_bos(token_ids: Sequence[int], bos_token_id: int | None, begins_with_bos: bool) -> list[int]:
    """Return the ids with exactly one leading BOS where the tokenizer begins sequences so, and never two."""
    ids = list(token_ids)
    if bos_token_id is None:
        return ids
    start = 0
    while start < len(ids) and ids[start] == bos_token_id:
        start += 1
    return [bos_token_id] * (start > 0 or begins_with_bos) + ids[start:]


class SpecialTokens:
    """Ids of BOS, EOS and padding, and the chat template that writes their text."""

    def __init__(self, settings: TokenizerSettings, token_to_id: Callable[[str], int | None], where: str) -> None:
        """Look the named tokens up in the vocabulary.

        Args:
            settings: What lies beside the vocabulary.
            token_to_id: Vocabulary lookup.
            where: The tokenizer's place, for messages.

        Raises:
            ValueError: Nothing names an EOS: no response could ever end.
        """
        texts = settings.special_tokens
        ids = {name: token_to_id(text) for name, text in texts.items()}
        unknown = [f"{name}={texts[name]!r}" for name, token_id in ids.items() if token_id is None]
        if unknown:
            raise ValueError(f"{where}: special tokens that are not in the vocabulary: {', '.join(unknown)}")
        own_eos = ids.get("eos_token")
        self.bos_token_id = ids.get("bos_token")
        self.eos_token_ids = tuple(dict.fromkeys(([] if own_eos is None else [own_eos]) + list(settings.config_eos_ids)))
        if not self.eos_token_ids:
            raise ValueError(
                f"{where}: neither the tokenizer nor config.json or generation_config.json names an EOS token, so no "
                "response could end. Add eos_token to tokenizer_config.json."
            )
        pad = ids.get("pad_token")
        self.pad_token_id = self.eos_token_ids[0] if pad is None else pad
        self._where = where
        self._template = None if settings.chat_template is None else ChatTemplate(settings.chat_template, texts)

    @property
    def has_chat_template(self) -> bool:
        """Whether ``apply_chat_template`` works."""
        return self._template is not None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation (see :class:`megatron_rl.data.tokenizer.Tokenizer`)."""
        if self._template is None:
            raise ValueError(f"{self._where} has no chat template; set model.chat_template to a Jinja file.")
        return self._template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables)
