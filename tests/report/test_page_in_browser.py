"""The page as a browser shows it: no complaint, no request, no overflow, working controls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_rl.report.page import render_page
from megatron_rl.report.run import read_run
from tests.report.chromium import DESKTOP, PHONE, Page
from tests.report.run_folders import REAL, copy_real, write_jsonl, write_run

HOSTILE = "<img src=x onerror=\"document.title='stolen'\"></pre><script>document.title='stolen'</script>"
OVERFLOWING = """
[...document.querySelectorAll("body *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide") && !e.closest(".skip"))
  .map((e) => `${e.tagName}.${e.className} ${e.textContent.slice(0, 40)}`)
"""


def page_of(tmp_path: Path, *folders: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(render_page([read_run(folder.name, folder) for folder in folders]), encoding="utf-8")
    return path


def with_memory(record: dict[str, object]) -> dict[str, object]:
    return {**record, "memory/rollout_gib": 61.5, "memory/update_actor_gib": 70.25}


def with_gaps(record: dict[str, object]) -> dict[str, object]:
    gaps = {"actor/grad_norm": None, "reward/mean": None, "rollout_corr/logprob_diff_mean": 0.0}
    return {**record, **gaps} if record["step"] in (3, 7, 9) else record


def hostile_run(folder: Path) -> Path:
    copy_real(folder, model__path=HOSTILE)
    sample = {"step": 1, "uid": HOSTILE, "prompt": HOSTILE, "response": HOSTILE, "reward": 1.0, "finish_reason": HOSTILE}
    write_jsonl(folder / "samples.jsonl", [sample])
    return folder


def lone_step(folder: Path) -> Path:
    return write_run(folder, [{"step": 1, "reward/mean": 0.0, "timing_s/step": 0.0, "timing_s/gen": 0.0}])


def nothing_finite(folder: Path) -> Path:
    return write_run(folder, [{"step": step, "reward/mean": None} for step in range(3)])


def resumed(folder: Path) -> Path:
    copy_real(folder, lambda record: with_memory(with_gaps(record)))
    write_jsonl(folder / "metrics.superseded.jsonl", [{"step": 12}])
    return folder


RUNS: dict[str, tuple[Callable[[Path], Path], ...]] = {
    "one": (copy_real,),
    "gaps-memory-restart": (resumed,),
    "hostile": (hostile_run,),
    "one-step": (lone_step,),
    "nothing-finite": (nothing_finite,),
    "two-unlike": (copy_real, nothing_finite),
    "many": tuple(copy_real for _ in range(9)),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_opens_without_complaint_request_or_overflow(
    browser: Page, tmp_path: Path, name: str, size: tuple[int, int]
) -> None:
    folders = [make(tmp_path / f"a_rather_long_run_name_with_lr_{i}e-6") for i, make in enumerate(RUNS[name])]
    path = page_of(tmp_path, *folders)
    browser.open(path, size)
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth && innerWidth") == size[0]
    assert browser.evaluate("document.querySelectorAll('svg').length > 0 || document.body.innerText.includes('No finite')")


def test_charts_hold_no_broken_number(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, resumed(tmp_path / "run")))
    assert (
        browser.evaluate("[...document.querySelectorAll('svg')].some((s) => /NaN|Infinity|undefined/.test(s.outerHTML))")
        is False
    )
    assert browser.evaluate("document.querySelectorAll('svg .gap').length") == 6  # two curves, three steps each
    assert browser.evaluate("document.body.innerText.includes('Memory by phase')")


def test_samples_stay_text(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, hostile_run(tmp_path / "run")))
    assert browser.evaluate("document.title") == "run · megatron-rl report"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.querySelector('#samples pre.response').textContent") == HOSTILE


SET = """((name, value) => {
  const field = document.querySelector(`[name="${name}"]`);
  field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
})"""


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        ("text", "LISP", 0),
        ("text", "spell this", 16),
        ("from", "12", 4),
        ("to", "3", 4),
        ("least", "1", 4),
        ("most", "0.5", 12),
    ],
)
def test_samples_browser_filters(browser: Page, tmp_path: Path, field: str, value: str, count: int) -> None:
    browser.open(page_of(tmp_path, REAL))
    browser.evaluate(f"{SET}({json.dumps(field)}, {json.dumps(value)})")
    assert browser.evaluate("document.querySelectorAll('#samples li').length") == count
    assert browser.evaluate("document.querySelector('#samples output').textContent") == f"{count} of 16 samples"


def test_samples_browser_says_what_was_left_out(browser: Page, tmp_path: Path) -> None:
    folder = copy_real(tmp_path / "run")
    text = "word " * 700
    write_jsonl(folder / "samples.jsonl", ({"step": step, "prompt": text, "response": text} for step in range(1, 101)))
    browser.open(page_of(tmp_path, folder))
    shown = browser.evaluate("document.querySelector('#samples output').textContent")
    assert shown == "56 of 56 samples; 100 were recorded, see samples.jsonl"


def test_samples_browser_sorts_and_marks(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    browser.evaluate(f"{SET}('order', 'highest reward'); {SET}('text', 'SPELL')")
    assert browser.evaluate("document.querySelector('#samples .reward').textContent") == "reward 1"
    assert browser.evaluate("document.querySelector('#samples mark').textContent") == "Spell"


def test_smoothing_slider_draws_a_second_curve(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    curves = "document.querySelectorAll('[data-charts=learning] .panel:first-child svg path').length"
    before = browser.evaluate(curves)
    browser.evaluate(f"{SET}('smoothing', '0.9')")
    assert browser.evaluate("document.querySelector('[name=smoothing] + output').textContent") == "0.90"
    assert browser.evaluate(curves) == int(str(before)) + 1


def test_smooth_matches_hand_computed(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    assert browser.evaluate("smooth([1, null, 3], 0.5)") == pytest.approx([1.0, None, (0.5 * 1 + 3) / 1.5])
    assert browser.evaluate("smooth([1, 2], 0)") == [1, 2]


def test_readable_matches_hand_computed(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    cases = {
        "2629632, 'bytes'": "2.508 MiB",
        "0, 'bytes'": "0 B",
        "0.0053, 's'": "5.3 ms",
        "1200, 's'": "20 min",
        "3.4059e-7, 'nats'": "3.41e-7 nats",
        "0.5, 'share'": "0.5",
        "null, 's'": "not finite",
    }
    assert {case: browser.evaluate(f"readable({case})") for case in cases} == cases
    assert browser.evaluate("niceTicks(0, 1)") == [0, 0.2, 0.4, 0.6, 0.8, 1]


def test_chart_is_read_with_the_keyboard(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    browser.evaluate("document.querySelector('[data-charts=learning] svg').focus()")
    readout = "document.querySelector('[data-charts=learning] output').textContent"
    browser.press("End")
    assert browser.evaluate(readout) == "step 13: 0.8242"
    browser.press("ArrowLeft")
    assert browser.evaluate(readout) == "step 12: 0.4961"


def test_chart_has_a_table_behind_it(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    browser.evaluate("document.querySelector('[data-charts=learning] .panel button').click()")
    assert browser.evaluate(
        "[...document.querySelectorAll('[data-charts=learning] .panel:first-child td')].slice(-2).map(e => e.innerText)"
    ) == [
        "13",
        "0.8242",
    ]
    assert (
        browser.evaluate("document.querySelector('[data-charts=learning] .panel button').getAttribute('aria-expanded')")
        == "true"
    )


def test_run_switch_hides_a_run(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, copy_real(tmp_path / "a"), copy_real(tmp_path / "b")))
    curves = "document.querySelectorAll('[data-charts=learning] .panel:first-child svg path').length"
    assert browser.evaluate(curves) == 2
    browser.evaluate("document.querySelector('.runs input').click()")
    assert browser.evaluate(curves) == 1


def test_config_search_narrows_the_keys(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL))
    browser.evaluate("""(() => {
      const field = document.querySelector('#config [type=search]');
      field.value = 'optim lr 0.0002';
      field.dispatchEvent(new Event('input'));
    })()""")
    assert browser.evaluate(
        "[...document.querySelectorAll('#config dl > div')].filter(e => !e.hidden).map(e => e.innerText)"
    ) == ["actor.optim.lr\n0.0002"]


def test_everything_that_acts_has_a_name(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, copy_real(tmp_path / "a"), copy_real(tmp_path / "b")))
    nameless = """
      [...document.querySelectorAll("input, select, button, svg[role=img], [role=region]")]
        .filter((e) => !e.getAttribute("aria-label") && !e.textContent.trim())
        .filter((e) => !(e.labels && e.labels.length && e.labels[0].textContent.trim()))
        .map((e) => e.outerHTML.slice(0, 80))"""
    assert browser.evaluate(nameless) == []


CONTRAST = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 10.3 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ratio = (a, b) => {
    const [dark, light] = [luminance(a), luminance(b)].sort((p, q) => p - q);
    return (light + 0.05) / (dark + 0.05);
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const ink = (e) => parse(e instanceof SVGElement ? getComputedStyle(e).fill : getComputedStyle(e).color);
  const hasText = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.querySelectorAll("body *")]
    .filter((e) => hasText(e) && e.getClientRects().length)
    .map((e) => [ratio(ink(e), ground(e)), e.outerHTML.slice(0, 90)])
    .filter(([value]) => value < LEAST)
    .map(([value, text]) => `${value.toFixed(2)} ${text}`);
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast(browser: Page, tmp_path: Path, dark: bool) -> None:
    """WCAG AA asks 4.5:1 of text; labels in the colour of their curve are large-weight text beside it: 3:1."""
    browser.open(page_of(tmp_path, copy_real(tmp_path / "a"), resumed(tmp_path / "b")), dark=dark)
    low = browser.evaluate(CONTRAST.replace("LEAST", "4.5"))
    assert isinstance(low, list)
    assert [text for text in low if 'class="label"' not in text] == []
    assert browser.evaluate(CONTRAST.replace("LEAST", "3")) == []
    assert browser.evaluate(CONTRAST.replace("LEAST", "22")) != []  # it does look at something


def test_page_prints(browser: Page, tmp_path: Path) -> None:
    browser.open(page_of(tmp_path, REAL), dark=True)
    pdf = browser.print_pdf()
    assert pdf.startswith(b"%PDF-") and len(pdf) > 20_000
    assert 3 <= pdf.count(b"/Type /Page\n") <= 12


def test_page_without_scripts_keeps_its_tables() -> None:
    page = render_page([read_run("demo", REAL)])
    assert "Seconds per step by phase" in page and "actor.optim.lr" in page and "<noscript>" in page
