import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from megatron_rl.data.tokenizer import load_tokenizer
from tests.data.tokenizer_folders import CORPUS, TEMPLATE_WITH_BOS, TEMPLATE_WITHOUT_BOS, write_bpe_folder

_TEXTS = [CORPUS[0], CORPUS[3], "two\n\n  spaces </s> and a marker", "<s>begins so"]


@pytest.mark.parametrize("text", _TEXTS)
def test_encode_matches_reference(bpe_folder: Path, text: str) -> None:
    reference = AutoTokenizer.from_pretrained(bpe_folder)
    tokenizer = load_tokenizer(str(bpe_folder))
    ids = reference(text, add_special_tokens=False).input_ids
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.encode(text) == ([] if ids[0] == 0 else [0]) + ids
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_encode_never_gives_two_bos(tmp_path: Path, adds_bos: bool) -> None:
    messages = [{"role": "user", "content": "hello there"}]
    ids = {}
    for name, template in (("with", TEMPLATE_WITH_BOS), ("without", TEMPLATE_WITHOUT_BOS)):
        tokenizer = load_tokenizer(str(write_bpe_folder(tmp_path / name, adds_bos=adds_bos, chat_template=template)))
        ids[name] = tokenizer.encode(tokenizer.apply_chat_template(messages))
    raw = tokenizer.encode("[user] hello there\n[assistant]")
    assert ids["with"].count(0) == 1 and ids["with"][0] == 0
    assert ids["without"] == raw
    assert raw == (ids["with"] if adds_bos else ids["with"][1:])


def test_encode_obeys_add_bos_token(tmp_path: Path) -> None:
    assert load_tokenizer(str(write_bpe_folder(tmp_path / "off", add_bos_token=False))).encode("two")[0] != 0
    on = load_tokenizer(str(write_bpe_folder(tmp_path / "on", adds_bos=False, add_bos_token=True)))
    assert on.encode("two")[0] == 0


def test_encode_ignores_a_stored_length_limit(tmp_path: Path) -> None:
    folder = write_bpe_folder(tmp_path)
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    assert len(load_tokenizer(str(folder)).encode(CORPUS[0])) > 4


def test_eos_token_ids_are_the_union_of_all_sources(tmp_path: Path) -> None:
    folder, model = write_bpe_folder(tmp_path / "tokenizer"), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"eos_token_id": 1}')
    (model / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert load_tokenizer(str(folder), model_path=str(model)).eos_token_ids == (1, 2, 7)


def test_pad_token_id_falls_back_to_eos(tmp_path: Path) -> None:
    assert load_tokenizer(str(write_bpe_folder(tmp_path / "a"))).pad_token_id == 1
    assert load_tokenizer(str(write_bpe_folder(tmp_path / "b", pad_token="<end>"))).pad_token_id == 2


def test_decode_shows_ids_without_a_token(bpe_folder: Path) -> None:
    tokenizer = load_tokenizer(str(bpe_folder))
    two, dog = tokenizer.encode("two", False), tokenizer.encode("dog", False)
    assert tokenizer.decode([*two, tokenizer.vocab_size, *dog, 1]) == "two\ufffddog"


def test_decode_batch_equals_one_by_one(bpe_folder: Path) -> None:
    tokenizer = load_tokenizer(str(bpe_folder))
    batch = [tokenizer.encode("two dogs", False), [], [tokenizer.vocab_size], tokenizer.encode("café", False)]
    assert tokenizer.decode_batch(batch) == [tokenizer.decode(ids) for ids in batch]
    assert tokenizer.decode_batch(batch[:2]) == [tokenizer.decode(ids) for ids in batch[:2]]


def test_load_tokenizer_converts_vocabulary_files(tmp_path: Path) -> None:
    folder = write_bpe_folder(tmp_path)
    stored = json.loads((folder / "tokenizer.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(stored["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in stored["model"]["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges)
    expected = load_tokenizer(str(folder)).encode(CORPUS[0], add_special_tokens=False)
    (folder / "tokenizer.json").unlink()
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(str(folder)).encode(CORPUS[0], add_special_tokens=False) == expected


def test_load_tokenizer_reads_a_lone_tokenizer_json(bpe_folder: Path) -> None:
    assert load_tokenizer(str(bpe_folder / "tokenizer.json")).eos_token_ids == (1,)


def test_load_tokenizer_rejects_missing_path() -> None:
    with pytest.raises(ValueError, match=r"model\.tokenizer_path='no/such'"):
        load_tokenizer("no/such")


def test_load_tokenizer_rejects_broken_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_load_tokenizer_rejects_a_vocabulary_without_eos(tmp_path: Path) -> None:
    folder = write_bpe_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    with pytest.raises(ValueError, match="names an EOS token"):
        load_tokenizer(str(folder))


def test_apply_chat_template_rejects_absent_template(bpe_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.chat_template"):
        load_tokenizer(str(bpe_folder)).apply_chat_template([])


def test_load_tokenizer_prefers_the_given_chat_template(tmp_path: Path) -> None:
    folder = write_bpe_folder(tmp_path, chat_template=TEMPLATE_WITH_BOS)
    (tmp_path / "other.jinja").write_text("OTHER")
    assert load_tokenizer(str(folder), chat_template=str(tmp_path / "other.jinja")).apply_chat_template([]) == "OTHER"
