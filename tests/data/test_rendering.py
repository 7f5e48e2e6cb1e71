from pathlib import Path
from typing import Any

import pytest

from megatron_rl.config.data import DataConfig
from megatron_rl.data.rendering import prompt_text, render_prompts
from megatron_rl.data.sources import SourceRow
from megatron_rl.data.tokenizer import Tokenizer, load_tokenizer
from tests.data.tokenizer_folders import TEMPLATE_WITH_BOS, write_bpe_folder


def _rows(*prompts: Any, **columns: Any) -> list[SourceRow]:
    return [SourceRow(source="p.jsonl", index=i, values={"prompt": p, **columns}) for i, p in enumerate(prompts)]


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(write_bpe_folder(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE_WITH_BOS)))


def test_render_prompts_rejects_overlong_row_by_name(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError) as caught:
        render_prompts(_rows("abc", "abcd", "abcde"), byte_tokenizer, DataConfig(max_prompt_length=4))
    assert "p.jsonl, row 2: 5 tokens" in str(caught.value)
    assert "data.max_prompt_length=4" in str(caught.value)
    assert "row 1" not in str(caught.value)


def test_render_prompts_lists_only_the_first_overlong_rows(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"^9 prompt\(s\).*row 4: 2 tokens; and 4 more"):
        render_prompts(_rows(*["ab"] * 9), byte_tokenizer, DataConfig(max_prompt_length=1))


@pytest.mark.parametrize("truncation", ["error", "left"])
def test_render_prompts_filters_and_counts(byte_tokenizer: Tokenizer, truncation: str) -> None:
    config = DataConfig(max_prompt_length=3, filter_overlong_prompts=True, truncation=truncation)  # type: ignore[arg-type]
    rendered = render_prompts(_rows("abc", "abcd", "ab"), byte_tokenizer, config)
    assert [prompt.uid for prompt in rendered.prompts] == ["p.jsonl:0", "p.jsonl:2"]
    assert (rendered.num_filtered, rendered.num_truncated) == (1, 0)
    assert rendered.summary == "2 prompts of 2 to 3 tokens, 1 over-long dropped, 0 truncated"


def test_render_prompts_rejects_when_nothing_is_left(byte_tokenizer: Tokenizer) -> None:
    config = DataConfig(max_prompt_length=1, filter_overlong_prompts=True)
    with pytest.raises(ValueError, match="no prompt is left: all 2 are longer"):
        render_prompts(_rows("abc", "abcd"), byte_tokenizer, config)


@pytest.mark.parametrize(("side", "text"), [("left", "de"), ("right", "ab")])
def test_render_prompts_truncates_raw_text(byte_tokenizer: Tokenizer, side: str, text: str) -> None:
    config = DataConfig(max_prompt_length=2, truncation=side)  # type: ignore[arg-type]
    rendered = render_prompts(_rows("abcde"), byte_tokenizer, config)
    assert rendered.prompts[0].text == text
    assert rendered.prompts[0].token_ids == tuple(byte_tokenizer.encode(text))
    assert rendered.num_truncated == 1


def test_render_prompts_truncates_the_rendered_ids(chat_tokenizer: Tokenizer) -> None:
    rows = _rows("the quick brown fox jumps over the lazy dog " * 3)
    whole = render_prompts(rows, chat_tokenizer, DataConfig(max_prompt_length=500)).prompts[0].token_ids
    suffix = chat_tokenizer.encode("[assistant]", add_special_tokens=False)
    for limit in (len(suffix) + 1, len(whole) - 1):
        left = render_prompts(rows, chat_tokenizer, DataConfig(max_prompt_length=limit, truncation="left")).prompts[0]
        right = render_prompts(rows, chat_tokenizer, DataConfig(max_prompt_length=limit, truncation="right")).prompts[0]
        assert len(left.token_ids) == len(right.token_ids) == limit
        assert list(left.token_ids[-len(suffix) :]) == suffix
        assert left.token_ids[0] == chat_tokenizer.bos_token_id
        assert right.token_ids == whole[:limit]


def test_prompt_text_treats_text_as_a_user_message(chat_tokenizer: Tokenizer) -> None:
    as_text, as_messages = _rows("hi", [{"role": "user", "content": "hi"}])
    expected = "<s>[user] hi\n[assistant]"
    assert prompt_text(as_text, chat_tokenizer, DataConfig()) == expected
    assert prompt_text(as_messages, chat_tokenizer, DataConfig()) == expected
    assert prompt_text(as_text, chat_tokenizer, DataConfig(apply_chat_template=False)) == "hi"


def test_prompt_text_hands_tools_and_variables_to_the_template(tmp_path: Path) -> None:
    folder = write_bpe_folder(tmp_path, chat_template="{{ tools[0].name }}{{ thinking }}")
    row = _rows("hi", tools=[{"name": "f"}])[0]
    config = DataConfig(apply_chat_template_kwargs={"thinking": "off"})
    assert prompt_text(row, load_tokenizer(str(folder)), config) == "foff"


@pytest.mark.parametrize(
    ("values", "config", "message"),
    [
        ({"question": "a"}, {}, r"p\.jsonl, row 3: no value in column 'prompt' \(data\.prompt_key\); it has question"),
        ({"prompt": 5}, {}, r"row 3: column 'prompt' .* must be a string or a non-empty list of messages.* got int"),
        ({"prompt": []}, {}, r"row 3: column 'prompt'"),
        ({"prompt": [{"role": "user", "content": "a"}]}, {}, r"row 3: .*model\.chat_template"),
        ({"prompt": [{"role": "user", "content": "a"}]}, {"apply_chat_template": False}, r"data\.apply_chat_template=true"),
        ({"prompt": ""}, {}, r"row 3: the prompt renders to no tokens"),
        ({"prompt": "a"}, {"answer_key": "solution"}, r"row 3: no value in column 'solution' \(data\.answer_key\)"),
    ],
    ids=["no_column", "number", "no_messages", "no_template", "template_off", "empty", "no_answer"],
)
def test_render_prompts_rejects_bad_rows(
    byte_tokenizer: Tokenizer, values: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    row = SourceRow(source="p.jsonl", index=3, values=values)
    with pytest.raises(ValueError, match=message):
        render_prompts([row], byte_tokenizer, DataConfig(**config))


def test_render_prompts_finds_nested_answers(byte_tokenizer: Tokenizer) -> None:
    rows = _rows("a", reward_model={"ground_truth": "4"})
    config = DataConfig(answer_key="reward_model.ground_truth")
    assert render_prompts(rows, byte_tokenizer, config).prompts[0].row["answer"] == "4"


def test_render_prompts_keeps_equal_prompts_apart(byte_tokenizer: Tokenizer) -> None:
    prompts = render_prompts(_rows("a", "a"), byte_tokenizer, DataConfig()).prompts
    assert prompts[0].token_ids == prompts[1].token_ids and prompts[0].uid != prompts[1].uid
