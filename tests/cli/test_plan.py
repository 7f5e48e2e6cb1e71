"""The ``plan`` command: its JSON, its errors, and that it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_rl.cli.plan import parse, run
from megatron_rl.config.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden" / "plan_tiny_tp4_to_tp2dp2.json"
ISSUE = ["model=qwen3_8b", "train.tensor=4", "train.pipeline=2", "train.data=2", "rollout.tensor=8"]
RANK_KEYS = {"rank", "aliased_bytes", "copied_bytes", "sent_bytes", "received_bytes", "bound_bytes"}
PLAN_KEYS = {"ranks", "max_received_bytes", "bound_ratio", "peak_extra_bytes", "rounds", "predicted_seconds"}


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_matches_hand_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """TP4 x PP2 x DP2 -> TP8 x DP2: each rank misses half of its eighth, and the norms of the other stage."""
    answer = _json(ISSUE, capsys)
    norms = 2 * (36 * (2 * 4096 + 2 * 128) + 4096)
    expected = (answer["broadcast_bytes"] - norms) / 16 + norms / 2
    assert set(answer) >= PLAN_KEYS and all(set(rank) >= RANK_KEYS for rank in answer["ranks"])
    assert [rank["rank"] for rank in answer["ranks"]] == list(range(16))
    assert sum(rank["received_bytes"] for rank in answer["ranks"]) / 16 == pytest.approx(expected, rel=1e-6)
    assert answer["bound_ratio"] == 1.0
    assert sum(r["sent_bytes"] for r in answer["ranks"]) == sum(r["received_bytes"] for r in answer["ranks"])
    assert answer["peak_extra_bytes"] <= 256 << 20


def test_plan_charges_natural_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the bound is 0 the ratio has no value and the excess has one."""
    pair = ["model=tiny", "train.tensor=2", "train.data=2", "rollout.tensor=4"]
    natural, permuted = _json([*pair, "permute=false"], capsys), _json(pair, capsys)
    assert (natural["bound_ratio"], permuted["bound_ratio"]) == (None, 1.0)
    assert natural["excess_bytes"] == natural["received_bytes"] > 0
    assert permuted["received_bytes"] == 0


def test_plan_aliases_equal_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is copied or moved where layouts coincide."""
    answer = _json(["model=qwen2_5_1_5b", "train.tensor=2", "rollout.tensor=2"], capsys)
    for rank in answer["ranks"]:
        assert rank["copied_bytes"] == rank["received_bytes"] == 0
        assert rank["aliased_bytes"] > answer["broadcast_bytes"] / 2


def test_plan_counts_fp8_as_a_byte_and_its_scales(capsys: pytest.CaptureFixture[str]) -> None:
    """TP8 -> TP2: what is quantised shrinks to 1/2 + 4 / (2 * 128^2), what is not stays."""
    pair = ["model=qwen3_8b", "train.tensor=8", "rollout.tensor=2", "rollout.data=4", "gpus_per_node=8"]
    plain, quantised = _json(pair, capsys), _json([*pair, "rollout.quantization=fp8_per_block"], capsys)
    linear = 36 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 12288)
    moved = plain["received_bytes"] * linear * 2 / plain["broadcast_bytes"]
    # The norms stay at home, so the share of linear weights in what moves is a little above that in the model.
    assert plain["received_bytes"] - quantised["received_bytes"] == pytest.approx(moved * (0.5 - 2 / 128**2), rel=1e-3)
    assert quantised["peak_extra_bytes"] <= 256 << 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["model=qwen2_5_0_5b", "train.tensor=2", "rollout.tensor=2"], "through blocks of 128 x 128"),
        (["model=qwen3_30b_a3b"], "experts and latent attention stay unquantised"),
    ],
)
def test_plan_rejects_what_cannot_be_quantised(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run([*arguments, "rollout.quantization=fp8_per_block"])


def test_plan_fan_out_cuts_network_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes of four ranks; node 1 holds four engines, which take the model in once and not four times."""
    pair = ["model=tiny", "train.tensor=4", "rollout.data=4", "disaggregated=true", "gpus_per_node=4"]
    plain, fanned = _json([*pair, "fan_out=false"], capsys), _json(pair, capsys)
    ingress = [sum(rank["received_over_network_bytes"] for rank in answer["ranks"]) for answer in (plain, fanned)]
    assert ingress == [4 * plain["broadcast_bytes"], plain["broadcast_bytes"]]
    assert fanned["received_bytes"] == plain["received_bytes"] == plain["bound_bytes"]


def test_plan_matches_golden(capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    assert run(["model=tiny", "train.tensor=4", "rollout.tensor=2", "rollout.data=2", "--json"]) == 0
    text = capsys.readouterr().out
    if update_golden:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "the plan changed; if that is meant, renew it with pytest --update-golden"


def test_plan_shows_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ISSUE) == 0
    shown = capsys.readouterr().out
    assert sum(line.startswith("│") for line in shown.splitlines()) == 16
    assert "rounds, at most" in shown and "training ranks are numbered by data=2 tensor=4 pipeline=2" in shown
    assert run([*ISSUE, "permute=best"]) == 0
    assert "GB received by all ranks, by order: natural" in capsys.readouterr().out


def test_plan_grid_of_tied_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """24 pairs, 12 with a vocabulary padded otherwise; numbers are numbers; the figure is a PNG."""
    assert run(["--grid", "model=qwen2_5_1_5b", "--json", "--png", str(tmp_path / "grid.png")]) == 0
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    assert len(pairs) == 24 and sum(" V" in pair["layouts"] for pair in pairs) == 12
    for pair in pairs:
        sizes = [pair[order]["received_bytes"] for order in ("best", "run", "natural")]
        assert sizes == sorted(sizes) and sizes[0] == pair["bound_bytes"]
        assert pair["natural"]["received_bytes"] <= pair["gather_bytes"] <= pair["broadcast_bytes"]
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_plan_grid_leaves_out_what_does_not_divide(capsys: pytest.CaptureFixture[str]) -> None:
    """Four heads: nine of ten training layouts and five of six engines, those without TP8. Nine heads: none."""
    assert len(_json(["--grid", "model=tiny"], capsys)["pairs"]) == 9 * 5
    with pytest.raises(ConfigError, match="model=smollm2_135m: none of the grid's layouts on 8 ranks divides this shape"):
        run(["--grid", "model=smollm2_135m"])


def test_plan_grid_rejects_a_figure_it_cannot_write(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "grid.png", tmp_path / "grid.txt"):
        with pytest.raises(ConfigError, match=r"name a \.png file in a folder that exists"):
            run(["--grid", "--png", str(path)])


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["model=tiny", "train.tensor=2"], []),
        (["model=tiny", "train.tensor=4", "train.context=2"], ["train.context=2", "train.tensor=4 (it cuts inside"]),
        (["model=tiny", "rollout.pipeline=2", "disaggregated=true"], ["rollout.pipeline=2", "disaggregated=true"]),
    ],
    ids=["trained", "training", "engines"],
)
def test_plan_says_what_training_refuses(arguments: list[str], refused: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(arguments, capsys)["not_trained_yet"]
    assert len(found) == len(refused)
    assert all(what.startswith(start) for what, start in zip(found, refused, strict=True))


REFUSED = {
    "misspelt_key": (["model=tiny", "train.tensr=2"], r"train\.tensr: no such key; did you mean train\.tensor\?"),
    "short_name": (["model=tiny", "rollout.tp=2"], r"rollout\.tp: no such key; did you mean rollout\.tensor\?"),
    "unknown_model": (["model=qwen3_8"], r"no such model; did you mean qwen3_8b"),
    "no_model": (["train.tensor=2"], r"model: required but not set"),
    "unknown_fabric": (["model=tiny", "fabric=h20"], r"did you mean h200"),
    "zero": (["model=tiny", "train.data=0"], r"train\.data=0: must be a whole number above 0"),
    "tensor": (["model=qwen3_8b", "train.tensor=3", "rollout.tensor=1"], r"train\.tensor=3: .*nearest that works: 2 "),
    "pipeline": (["model=qwen3_8b", "train.pipeline=5"], r"must divide model\.num_layers=36; nearest product that works: 4"),
    "engine": (["model=qwen3_8b", "train.data=7", "rollout.tensor=7"], r"rollout\.tensor=7: .*nearest that works: 8 "),
    "experts": (["model=qwen3_30b_a3b", "train.data=6", "train.expert=3"], r"train\.expert=3: .*nearest that works: 2 "),
    "no_experts": (["model=qwen3_8b", "train.data=2", "train.expert=2"], r"qwen3_8b has no experts"),
    "engine_ranks": (
        ["model=qwen3_8b", "train.tensor=4", "train.data=3", "rollout.tensor=8"],
        r"works: rollout\.tensor=4 rollout\.data=3, or disaggregated=true",
    ),
    "chunks_of_one_stage": (["model=qwen3_8b", "train.virtual_pipeline=2"], r"virtual_pipeline=2: .*train\.pipeline must be"),
    "section": (["model=tiny", "train=tp2"], r"train: no such key; keys are train\.tensor, "),
    "flag": (["model=tiny", "--png"], r"--png: no such key; flags are --json, --grid, and with it --png FILE"),
    "ranks": (["model=qwen3_8b", "train.data=8", "rollout.tensor=2", "rollout.data=2"], r"works: rollout\.data=4, or"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parse_rejects(case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        parse(arguments)


def test_plan_needs_no_torch() -> None:
    code = "import sys; from megatron_rl.cli.plan import run; run(['model=tiny', '--json']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
