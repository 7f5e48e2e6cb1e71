"""The tables of docs/cost_estimator.md are what the code says now; renew them with ``--update-golden``."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from megatron_rl.estimator import claims, comparison
from megatron_rl.estimator.activations import stage_activation_bytes
from megatron_rl.estimator.calibration import fit
from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.deployment import RoleSetup
from megatron_rl.estimator.estimate import measured_runs
from megatron_rl.estimator.measurements import load_measurements
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.estimator.presets import preset_model
from megatron_rl.parallel.layout import ParallelLayout

PAGE = Path(__file__).parents[2] / "docs" / "cost_estimator.md"


def coefficient_table() -> str:
    known = fit(measured_runs(load_measurements()), find_gpu("H200"))
    lines = ["| coefficient | value | from |", "| --- | ---: | --- |"]
    for field in fields(known):
        if field.name != "gpu":
            one = getattr(known, field.name)
            lines.append(f"| {field.name} | {one.value:.4g} | {', '.join(one.sources) or 'assumed'} |")
    return "\n".join(lines) + "\n"


def test_page_matches_golden(update_golden: bool) -> None:
    text = PAGE.read_text()
    tables = {
        "coefficients": coefficient_table(),
        "comparison": comparison.markdown(comparison.compare(measured_runs(load_measurements()))),
        "claims": claims.markdown(claims.claims()),
    }
    for name, table in tables.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert len(block.findall(text)) == 1, name
        text = block.sub(rf"\g<1>{table}\g<2>", text)
    if update_golden:
        PAGE.write_text(text)
    assert PAGE.read_text() == text


def test_page_states_the_peaks_of_other_software() -> None:
    """State, activations and unfused logits, against the two stored peaks."""
    model = preset_model("qwen2_5_1_5b")
    logit_bytes = 40.4e9 / (16384 * 151936)
    for record in load_measurements():
        if record.name in ("h200_mcore_te_8k", "h200_mcore_te_16k"):
            tokens = record.settings["actor.ppo_max_token_len_per_gpu"]
            peak_gb = float(record.source.rpartition("peak ")[2])
            role = RoleSetup(name="actor", layout=ParallelLayout(), micro_batch_tokens=tokens)
            kept = stage_activation_bytes(model, role, 0, weight_bytes=2, on_gpu=True, num_micro_batches=1)
            total = 18 * total_parameters(model) + kept + tokens * model.vocab_size * logit_bytes
            assert f"{total / 1e9:.1f}" in PAGE.read_text()
            assert f"({total / 1e9 / peak_gb - 1:+.0%})".replace("%", " %") in PAGE.read_text()
