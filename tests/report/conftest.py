"""One headless browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.chromium import NAMES, Page, browser_page, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"no Chromium on PATH (looked for {', '.join(NAMES)}); Debian: apt-get install chromium")
    with browser_page(executable, tmp_path_factory.mktemp("chromium")) as page:
        yield page
