"""Numbers as a person would write them."""

from __future__ import annotations


def plain(value: float) -> str:
    """Four significant digits, thousands separated; powers of ten only beyond reading."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """A duration, in microseconds to hours."""
    size = abs(value)
    if size == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (0.1, 1e3, "ms"), (100.0, 1.0, "s"), (6000.0, 1 / 60, "min")):
        if size < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 3600:.3g} h"


def binary_size(value: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def with_unit(value: float | None, unit: str) -> str:
    """A number and its unit; an em dash where there is none."""
    if value is None:
        return "—"
    if unit == "s":
        return seconds(value)
    if unit == "bytes":
        return binary_size(value)
    return f"{plain(value)} {unit}".rstrip()
