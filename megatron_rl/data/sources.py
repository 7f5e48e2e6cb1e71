"""Rows of prompt files: JSONL and Parquet, as plain Python values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from megatron_rl.config.data import PROMPT_SUFFIXES

_PARQUET_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One row and where it came from. Example: ``SourceRow(source="train.jsonl", index=7, values={"prompt": "2+2="})``."""

    source: str
    """File as configured, or task name."""
    index: int
    """Row in that source, from 0."""
    values: dict[str, Any]
    """Plain Python values; a column that is null in this row is absent."""

    @property
    def uid(self) -> str:
        """Stable identity, ``<source>:<index>``."""
        return f"{self.source}:{self.index}"

    @property
    def place(self) -> str:
        """For messages: ``<source>, row <index>``."""
        return f"{self.source}, row {self.index}"


def without_nulls(value: Any) -> Any:
    """Drop null fields of objects at every depth; null list elements stay, since they hold a position.

    Columnar files know no absent struct field: every row gets the union of all rows' fields, null where it had none.
    Templates would see those phantom keys.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    values = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from error
                if not isinstance(values, dict):
                    raise ValueError(f"{path}, line {number}: expected a JSON object, got {type(values).__name__}")
                yield values
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text ({error})") from error


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read in small record batches: nested columns cannot be converted once they span several chunks."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS):
                yield from batch.to_pylist(maps_as_pydicts="strict")
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read as Parquet ({error})") from error


def _num_jsonl_rows(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(not line.isspace() for line in lines)


def _num_parquet_rows(path: Path) -> int:
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def _is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet"


def num_rows(file: str) -> int:
    """Count the rows of a file that :func:`read_rows` accepts, without parsing them."""
    path = Path(file)
    return _num_parquet_rows(path) if _is_parquet(path) else _num_jsonl_rows(path)


def read_rows(files: Sequence[str], key: str, max_rows_per_file: int | None = None) -> list[SourceRow]:
    """Read prompt files in order.

    Args:
        files: Paths; the ending decides the format.
        key: Dotted configuration key the files came from, for messages.
        max_rows_per_file: Stop after so many rows of each file; None = all.

    Raises:
        ValueError: A file is missing, listed twice, of unknown format, malformed (names the line) or empty.
    """
    if len(set(files)) != len(files):
        raise ValueError(f"{key}: a file is listed twice in {list(files)}; row ids would not be unique.")
    rows: list[SourceRow] = []
    for file in files:
        path = Path(file)
        if path.suffix not in PROMPT_SUFFIXES:
            raise ValueError(f"{key}: {file}: unknown format {path.suffix!r}; use one of {', '.join(PROMPT_SUFFIXES)}.")
        if not path.is_file():
            raise ValueError(f"{key}: there is no file {file} (looked in {Path.cwd()}).")
        read = _parquet_rows if _is_parquet(path) else _jsonl_rows
        values = [without_nulls(row) for row in islice(read(path), max_rows_per_file)]
        if not values:
            raise ValueError(f"{key}: {file} has no rows.")
        rows.extend(SourceRow(source=file, index=index, values=row) for index, row in enumerate(values))
    return rows
