import pytest

from megatron_rl.data.chat_template import ChatTemplate

_TEMPLATE = """{{- bos_token }}
{%- if tools %}
TOOLS {{ tools | tojson }}
{% endif %}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
<|{{ message.role }}|>{% generation %}{{ message.content }}{% endgeneration %}
{%- if message.tool_calls is defined %}{{ message.tool_calls | tojson(indent=1) }}{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

_MESSAGES = [
    {"role": "user", "content": "naïve <b>"},
    {"role": "skip", "content": "unseen"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": ["é", 1]}]},
]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [{"name": "f", "doc": "naïve"}]], ids=["no_tools", "tools"])
def test_render_matches_reference(tools: list[dict[str, str]] | None, add_generation_prompt: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [_MESSAGES], tools=tools, chat_template=_TEMPLATE, add_generation_prompt=add_generation_prompt, bos_token="<s>"
    )
    template = ChatTemplate(_TEMPLATE, {"bos_token": "<s>"})
    assert template.render(_MESSAGES, tools=tools, add_generation_prompt=add_generation_prompt) == expected[0]


def test_render_passes_extra_variables() -> None:
    template = ChatTemplate("{{ date }}{{ eos_token }}", {"eos_token": "</s>"})
    assert template.render([], date="1 May") == "1 May</s>"


def test_render_rejects_what_the_template_refuses() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ValueError, match="roles must alternate"):
        template.render([])
