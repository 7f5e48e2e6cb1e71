from pathlib import Path

from transformers import AutoTokenizer

from megatron_rl.data.byte_tokenizer import write_byte_tokenizer
from megatron_rl.data.tokenizer import load_tokenizer

_TEMPLATE = "Say this: "


def test_write_byte_tokenizer_matches_reference(tmp_path: Path) -> None:
    folder = write_byte_tokenizer(tmp_path, _TEMPLATE)
    tokenizer, reference = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    text = _TEMPLATE + "naïve\n"
    assert tokenizer.encode(text) == reference(text).input_ids
    assert (reference.eos_token_id, reference.pad_token_id, len(reference)) == (1, 0, 260)
    assert (tokenizer.eos_token_ids, tokenizer.pad_token_id, tokenizer.vocab_size) == ((1,), 0, 260)


def test_write_byte_tokenizer_spends_one_id_on_the_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_byte_tokenizer(tmp_path, _TEMPLATE)))
    assert tokenizer.encode(_TEMPLATE + "sun\n")[0] == 259
    assert len(tokenizer.encode(_TEMPLATE + "sun\n")) == 5


def test_write_byte_tokenizer_roundtrips_all_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_byte_tokenizer(tmp_path, _TEMPLATE)))
    text = "".join(map(chr, range(1, 300))) + _TEMPLATE + "日本 \n\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
