"""A byte-level tokenizer made from nothing, for demonstrations and tests on machines without a hub."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PAD_TOKEN, EOS_TOKEN, SPARE_TOKEN = "<|pad|>", "<|eos|>", "<|spare|>"


def write_byte_tokenizer(folder: str | Path, template_text: str | None = None, chat_template: str | None = None) -> Path:
    """Write a Hugging Face tokenizer folder: pad = 0, EOS = 1, a spare special token = 2, then the 256 bytes.

    Args:
        folder: Made if absent.
        template_text: Text that becomes ONE more token (id 259, not special), so that a fixed task instruction costs one
            position instead of dozens; None = none.
        chat_template: Jinja source stored beside it; None = none.

    Returns:
        The folder. Vocabulary size 259, or 260 with a template text.
    """
    symbols = [PAD_TOKEN, EOS_TOKEN, SPARE_TOKEN, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in symbols[:3]])
    if template_text is not None:
        tokenizer.add_tokens([AddedToken(template_text, special=False, normalized=False)])
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(place / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "clean_up_tokenization_spaces": False,
    }
    (place / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if chat_template is not None:
        (place / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return place
