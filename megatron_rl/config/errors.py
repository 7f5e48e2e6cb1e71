"""The error a user's configuration raises; it is shown without a stack trace."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """Every problem found at once, each naming the dotted key, the value, the rule and the fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        assert problems, "a configuration error needs a problem"
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def report(self) -> str:
        """Text for the terminal."""
        if len(self.problems) == 1:
            return f"error: {self.problems[0]}"
        numbered = (f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
        return f"error: {len(self.problems)} problems in the configuration\n" + "\n".join(numbered)
