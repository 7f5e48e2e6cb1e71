from __future__ import annotations

from pathlib import Path

from megatron_rl.config.loading import compose
from megatron_rl.data.byte_tokenizer import write_byte_tokenizer
from megatron_rl.data.demonstrations import TEMPLATE_TEXT


def test_tokenizer_of_the_tiny_model_matches_the_code_that_makes_it(tmp_path) -> None:
    packaged = Path(compose(["model=tiny"]).model.tokenizer or "")
    made = write_byte_tokenizer(tmp_path, TEMPLATE_TEXT)
    assert {path.name: path.read_text() for path in packaged.iterdir()} == {
        path.name: path.read_text() for path in made.iterdir()
    }
