"""docs/metrics.md names every metric the code logs under a literal name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAMILIES = (
    "train|reward|val|response_length|prompt_length|response|batch|rollout|group|training|rollout_corr|actor|critic|perf"
    "|sync|sft"
)
LITERAL = re.compile(rf'"((?:{FAMILIES})/[A-Za-z0-9_/]+)"\s*:|\["((?:{FAMILIES})/[A-Za-z0-9_/]+)"\] =')
PHASE = re.compile(r'(?:timers|phases)\("([a-z_]+)"\)')


def sources() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "megatron_rl").rglob("*.py"))]


def test_metrics_page_names_every_logged_metric():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    logged = {first or second for source in sources() for first, second in LITERAL.findall(source)}
    logged |= {f"timing_s/{phase}" for source in sources() for phase in PHASE.findall(source)}
    assert len(logged) > 20
    missing = sorted(name for name in logged if not _documented(name, page))
    assert missing == [], "describe these in docs/metrics.md"


def _documented(name: str, page: str) -> bool:
    """Written out in full, or as a further member of a list whose first name is: ``reward/mean``, ``std``."""
    family, _, member = name.rpartition("/")
    return f"`{name}`" in page or any(f"`{family}/" in line and f"`{member}`" in line for line in page.splitlines())
