"""How every command says that its options are wrong: in one sentence on stderr, as it says everything else."""

from __future__ import annotations

import re
import sys
from typing import Any

from typer.core import TyperCommand

from environments.command import MISTAKE

_UNKNOWN = re.compile(r"No such option: --([\w-]+)")


class OneSentence(TyperCommand):
    """A command whose wrong options are told like any other mistake, instead of in a box: ``app.command(cls=...)``."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the library's own types are private
        """Raises SystemExit with status 2 for options that are wrong."""
        try:
            return super().make_context(*arguments, **options)
        except Exception as error:
            # The library's class of such errors has no public name; what its errors can do has.
            told = getattr(error, "format_message", None)
            if told is None or getattr(error, "exit_code", None) != MISTAKE or not told():
                raise
            print(f"error: {self._sentence(told())}", file=sys.stderr, flush=True)
            raise SystemExit(MISTAKE) from None

    def _sentence(self, told: str) -> str:
        text = " ".join(told.split()).rstrip(".")
        text = text[:1].lower() + text[1:]
        unknown = _UNKNOWN.match(told)
        if unknown and any("--set" in parameter.opts for parameter in self.params):
            name = unknown[1].replace("-", "_")
            return f"there is no option --{unknown[1]}: settings are given as --set SECTION.{name}=VALUE, see --help"
        return text if "--help" in text else f"{text}: see --help"
