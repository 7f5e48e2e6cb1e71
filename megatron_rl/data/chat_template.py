"""Chat templates: message lists to text, with the semantics model authors write their Jinja templates for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationBlock(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks assistant text; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


class ChatTemplate:
    """A compiled Jinja chat template.

    ``strftime_now`` is deliberately not offered: a prompt that changes at midnight could not be resumed. Templates that
    want a date take it from ``data.apply_chat_template_kwargs``.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile ``source``; ``special_tokens`` (``bos_token``, ``eos_token`` ...) become template variables."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: Chat messages, each with ``role`` and usually ``content``.
            tools: Tool descriptions, or None.
            add_generation_prompt: End with the header of the assistant's turn.
            **variables: Extra template variables; they win over the special tokens.

        Raises:
            ValueError: The template refused the messages.
        """
        context = {**self._special_tokens, **variables}
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **context
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:  # what expressions raise
            raise ValueError(f"the chat template refused the messages: {type(error).__name__}: {error}") from error
