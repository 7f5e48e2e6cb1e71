"""Files rendered from the schema: the base file of each hydra_conf group, and docs/configuration.md.

``python -m megatron_rl.config.render`` rewrites them; a test re-renders and compares.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_rl.config.base import Section
from megatron_rl.config.run import RunConfig
from megatron_rl.config.schema import REQUIRED, SchemaKey, section_keys, type_text

COMMENT_WIDTH = 112
BASE_FILE_NAMES = {"model": "base", "algorithm": "base", "rollout": "vllm", "launcher": "local", "profiler": "none"}
"""Group -> its file with every key and default, where that is not ``default``."""
CHOICES = {"model": "tiny", "algorithm": "ppo"}
"""Group -> the choice of the root's defaults list, where that is not the base file."""
NOTICE = "# Rendered from the schema by `make render`; change the schema, not this file."


def scalar_text(value: Any) -> str:
    """A leaf value as YAML that OmegaConf reads back unchanged."""
    if value is REQUIRED:
        return "???"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return value if value.replace("_", "").replace("-", "").isalnum() and not value.isdigit() else json.dumps(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(scalar_text(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {scalar_text(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def groups() -> list[str]:
    """Groups that mirror a section of the schema, in its order."""
    return [key.dotted for key in section_keys(RunConfig) if key.depth == 0]


def base_file(group: str) -> str:
    """Name of the group's file that holds every key with its default."""
    return BASE_FILE_NAMES.get(group, "default")


def render_root() -> str:
    """The root's defaults list: one choice per group, then what may set keys of several groups."""
    ordered = [group for group in groups() if group != "algorithm"]
    lines = [NOTICE, "# One choice per group; command line: group=choice, or key=value for one value.", "defaults:"]
    lines += [f"  - {group}: {CHOICES.get(group, base_file(group))}" for group in ordered]
    lines += ["  # These two may set keys of every group, so they come last; the command line still wins."]
    lines += [f"  - algorithm: {CHOICES['algorithm']}", "  - experiment: null", "  - _self_"]
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, COMMENT_WIDTH - len(indent), break_on_hyphens=False):
        yield f"{indent}# {line}"


def _expands(key: SchemaKey) -> bool:
    return isinstance(key.default, Section)


def render_section(group: str) -> str:
    """YAML of one group: a comment with meaning and type above each key, values are the defaults."""
    section = next(key for key in section_keys(RunConfig) if key.dotted == group)
    assert section.section is not None, f"{group} is no section"
    lines = [NOTICE, ""]
    collapsed = ""
    for key in section_keys(section.section):
        if collapsed and key.dotted.startswith(collapsed):
            continue
        indent = "  " * key.depth
        collapsed = f"{key.dotted}." if key.section is not None and not _expands(key) else ""
        kind = "" if key.section is not None else f" ({type_text(key.field)})"
        lines += _comment(f"{key.field.description}{kind}", indent)
        lines.append(f"{indent}{key.name}:" if _expands(key) else f"{indent}{key.name}: {scalar_text(key.default)}")
    return "\n".join(lines) + "\n"


def _table_row(key: SchemaKey) -> str:
    default = "required" if key.default is REQUIRED else f"`{scalar_text(key.default)}`"
    cells = (f"`{key.dotted}`", type_text(key.field), default, key.field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def render_documentation() -> str:
    """Markdown with one table per top-level section."""
    lines = [
        "# Configuration",
        "",
        "Rendered from the schema by `make render`. Every key below can be given on the command line as `key=value`;",
        "`megatron-rl train ... --cfg job` prints the resolved configuration, `megatron-rl check ...` validates it.",
        "Groups (`model=qwen3_8b`, `algorithm=grpo`, `experiment=tiny_cpu`) are the folders of `hydra_conf/`. A folder",
        "of your own joins them: with `'hydra.searchpath=[file:///my]'`, `/my/experiment/mine.yaml` is `experiment=mine`.",
        "With `model.path` set, the model's shape comes from that folder's `config.json`.",
        "Values that hold `=`, `,`, `:` with spaces, or non-ASCII letters need quotes that the shell leaves in place:",
        "`'model.path=\"/data/epoch=9\"'`.",
    ]
    for key in section_keys(RunConfig):
        if key.depth == 0:
            doc = (key.section.__doc__ or "").strip().splitlines()[0] if key.section else ""
            lines += ["", f"## {key.name}", "", doc, "", "| key | accepts | default | meaning |", "|---|---|---|---|"]
        elif key.section is None:
            lines.append(_table_row(key))
    return "\n".join(lines) + "\n"


def rendered_files() -> dict[str, str]:
    """Path from the repository root -> text of every rendered file."""
    files = {f"hydra_conf/{group}/{base_file(group)}.yaml": render_section(group) for group in groups()}
    files["hydra_conf/config.yaml"] = render_root()
    files["docs/configuration.md"] = render_documentation()
    return files


def main() -> None:
    """Rewrite the rendered files of this checkout."""
    root = Path(__file__).resolve().parents[2]
    for name, text in rendered_files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
