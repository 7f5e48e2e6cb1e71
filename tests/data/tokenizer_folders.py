"""Small real tokenizers, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "what is two plus two? four, of course.",
    "user: hello there assistant: hello to you",
    "naïve café, 日本語, and some numbers 1 2 3 4 5 6 7 8 9 0",
] * 20

TEMPLATE_WITH_BOS = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEMPLATE_WITHOUT_BOS = TEMPLATE_WITH_BOS.removeprefix("{{ bos_token }}")


def write_bpe_folder(folder: Path, *, adds_bos: bool = True, chat_template: str | None = None, **settings: Any) -> Path:
    """Write a byte-level BPE trained on the corpus: ``<s>``=0, ``</s>``=1, ``<end>``=2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>", "<end>")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"} | settings
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_sentencepiece_model(file: Path) -> Path:
    """Train a unigram model on the corpus: ``<unk>``=0, ``<s>``=1, ``</s>``=2."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=writer,
            vocab_size=120,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
        )
    return file
