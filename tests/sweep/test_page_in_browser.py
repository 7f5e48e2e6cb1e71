"""The page of a sweep as a browser shows it: no complaint, no request, no overflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_rl.sweep.outputs import HTML, write_outputs
from megatron_rl.sweep.tables import SweepResults
from tests.report.chromium import DESKTOP, PHONE, Page
from tests.report.test_page_in_browser import OVERFLOWING
from tests.sweep.test_outputs import FULL

HOSTILE = "<img src=x onerror=\"document.title='stolen'\">" + "long" * 60


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    hostile = SweepResults(
        title=HOSTILE,
        results=FULL.results,
        efficiency=FULL.efficiency,
        unfinished=[replace(FULL.unfinished[0], reason=HOSTILE)],
        warmup_steps=1,
    )
    write_outputs(folder, hostile)
    return folder / HTML


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_is_quiet_and_fits(page: Path, browser: Page, size: tuple[int, int], dark: bool) -> None:
    browser.open(page, size, dark)
    assert browser.complaints == []
    assert [request for request in browser.requests if not request.startswith(("data:", "file:"))] == []
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate("document.querySelectorAll('img').length") == 2, "two pictures, and nothing that a run has named"
    assert browser.evaluate("[...document.images].every((image) => image.naturalWidth > 100)") is True
    assert browser.print_pdf().startswith(b"%PDF")
