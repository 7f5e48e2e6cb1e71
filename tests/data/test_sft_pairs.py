import pytest

from megatron_rl.config.data import DataConfig
from megatron_rl.data.rendering import render_prompts
from megatron_rl.data.sft_pairs import make_sft_examples
from megatron_rl.data.sources import SourceRow
from megatron_rl.data.tokenizer import Tokenizer


def _rows(*pairs: tuple[str, object]) -> list[SourceRow]:
    return [
        SourceRow(source="s.jsonl", index=i, values={"prompt": prompt, "response": response})
        for i, (prompt, response) in enumerate(pairs)
    ]


def test_make_sft_examples_matches_hand_computed(byte_tokenizer: Tokenizer) -> None:
    (example,) = make_sft_examples(_rows(("ab", "c")), byte_tokenizer, DataConfig(), "response")
    a, b, c = (byte_tokenizer.encode(letter)[0] for letter in "abc")
    assert example.token_ids == (a, b, c, 1)
    assert (example.prompt_length, example.response_length) == (2, 2)


def test_make_sft_examples_begin_with_the_prompt_of_generation(byte_tokenizer: Tokenizer) -> None:
    rows = _rows(("what", "now"))
    (example,) = make_sft_examples(rows, byte_tokenizer, DataConfig(), "response")
    (prompt,) = render_prompts(rows, byte_tokenizer, DataConfig()).prompts
    assert example.token_ids[: example.prompt_length] == prompt.token_ids


def test_make_sft_examples_rejects_overlong_response(byte_tokenizer: Tokenizer) -> None:
    rows = _rows(("a", "bcd"), ("a", "bcde"))
    with pytest.raises(ValueError, match=r"s\.jsonl, row 1: the response has 5 tokens.*data\.max_response_length=4"):
        make_sft_examples(rows, byte_tokenizer, DataConfig(max_response_length=4), "response")


def test_make_sft_examples_filters_or_cuts_overlong_responses(byte_tokenizer: Tokenizer) -> None:
    rows = _rows(("a", "bcd"), ("a", "bcde"))
    filtered = DataConfig(max_response_length=4, filter_overlong_prompts=True)
    assert [example.uid for example in make_sft_examples(rows, byte_tokenizer, filtered, "response")] == ["s.jsonl:0"]
    cut = make_sft_examples(rows, byte_tokenizer, DataConfig(max_response_length=4, truncation="right"), "response")[1]
    assert byte_tokenizer.decode(cut.token_ids, skip_special_tokens=False) == "abcde"


@pytest.mark.parametrize("response", [5, None], ids=["number", "null"])
def test_make_sft_examples_rejects_bad_response(byte_tokenizer: Tokenizer, response: object) -> None:
    rows = _rows(("a", response))
    with pytest.raises(ValueError, match=r"s\.jsonl, row 0: .*sft\.response_key"):
        make_sft_examples(rows, byte_tokenizer, DataConfig(), "response")
