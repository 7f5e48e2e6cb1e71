import json
from pathlib import Path

import pytest

from megatron_rl.data.tokenizer import Tokenizer, load_tokenizer
from tests.data.tokenizer_folders import CORPUS, TEMPLATE_WITH_BOS, TEMPLATE_WITHOUT_BOS


@pytest.fixture(scope="module")
def tokenizer(sentencepiece_file: Path) -> Tokenizer:
    return load_tokenizer(str(sentencepiece_file))


@pytest.mark.parametrize("text", [CORPUS[0], CORPUS[1], CORPUS[3]])
def test_encode_roundtrips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encode_matches_reference(tokenizer: Tokenizer, sentencepiece_file: Path) -> None:
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    assert tokenizer.encode(CORPUS[0]) == [1, *reference.encode(CORPUS[0])]
    assert tokenizer.encode(CORPUS[0], add_special_tokens=False) == reference.encode(CORPUS[0])


def test_encode_never_gives_two_bos(sentencepiece_file: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello there"}]
    ids = []
    for name, source in (("with", TEMPLATE_WITH_BOS), ("without", TEMPLATE_WITHOUT_BOS)):
        (tmp_path / name).write_text(source)
        tokenizer = load_tokenizer(str(sentencepiece_file), chat_template=str(tmp_path / name))
        ids.append(tokenizer.encode(tokenizer.apply_chat_template(messages)))
    ids.append(tokenizer.encode("[user] hello there\n[assistant]"))
    assert ids[0] == ids[1] == ids[2]
    assert ids[0].count(1) == 1 and ids[0][0] == 1


def test_encode_reads_control_symbols_inside_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("two</s>two")
    assert ids.count(2) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>two</s>two"
    assert tokenizer.decode(ids) == "twotwo"


def test_special_token_ids_come_from_the_model(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.pad_token_id) == (1, (2,), 2)


def test_encode_obeys_add_bos_token(sentencepiece_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    assert load_tokenizer(str(tmp_path)).encode("two")[0] != 1


def test_decode_shows_ids_without_a_piece(tokenizer: Tokenizer) -> None:
    two = tokenizer.encode("two", add_special_tokens=False)
    assert tokenizer.decode([*two, tokenizer.vocab_size + 3, 2]) == "two\ufffd"


def test_load_tokenizer_rejects_broken_model(tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="is not a sentencepiece model"):
        load_tokenizer(str(tmp_path / "x.model"))
