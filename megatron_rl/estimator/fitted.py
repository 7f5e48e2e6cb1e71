"""Coefficients as fitted and shipped, one set for each kind of card that was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import COEFFICIENT_NAMES, Coefficient, Coefficients

COEFFICIENTS_FILE = "coefficients.json"
CARRIED_SPREAD_FRAC = 0.2
"""How far a share of a data sheet's rate may well differ between kinds of cards."""


@cache
def shipped_coefficients() -> Mapping[str, Coefficients]:
    """Full name of a card -> its coefficients."""
    content = json.loads((files("megatron_rl.estimator") / "data" / COEFFICIENTS_FILE).read_text())
    return {
        card: Coefficients(
            gpu=card, **{name: Coefficient(**(row | {"sources": tuple(row["sources"])})) for name, row in rows.items()}
        )
        for card, rows in content.items()
    }


def fitted_coefficients(gpu: Gpu | None) -> Coefficients:
    """Of this card, else carried over from the first card that was measured, which ``gpu`` of the answer names.

    Carried over, each is believed to within ``CARRIED_SPREAD_FRAC`` at best.
    """
    known = shipped_coefficients()
    if gpu is not None and gpu.name in known:
        return known[gpu.name]
    carried = next(iter(known.values()), Coefficients())
    wider = {}
    for name in COEFFICIENT_NAMES:
        one = carried.get(name)
        wider[name] = replace(one, spread=max(one.spread, CARRIED_SPREAD_FRAC * one.value))
    return Coefficients(gpu=carried.gpu, **wider)


def write_coefficients(path: Path, fitted: Mapping[str, Coefficients]) -> None:
    """Write a file for ``data/``: what was measured; assumptions stay in the code."""
    content = {
        card: {
            name: {"value": one.value, "spread": one.spread, "sources": list(one.sources)}
            for name in COEFFICIENT_NAMES
            if (one := known.get(name)).sources
        }
        for card, known in fitted.items()
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")
