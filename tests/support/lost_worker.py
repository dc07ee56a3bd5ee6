"""A worker whose worlds run any Python: what is left is the kernel's wall, as if an agent had got past all of ours."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from environments.appworld.engine import worker
from environments.appworld.engine.protocol import encodable
from environments.appworld.engine.worker import EngineWorld


class LostWorld(EngineWorld):
    """Executes code without a filter, a namespace, a guard of the package or a frozen clock.

    The code has the name ``world``; what it puts into ``told`` is what the evaluator is told was saved.
    """

    told: Any = None

    def execute(self, code: str) -> dict[str, Any]:
        """Run it and say what it printed and raised."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(code, {"world": self})
            except BaseException as error:  # noqa: BLE001 - an attempt's own, whatever it is
                print(f"{type(error).__name__}: {error}")
        return {"output": encodable(printed.getvalue()), "status": "ok", "calls": [], "completed": False}

    def saved(self) -> Any:
        """What the code says, else the truth."""
        return super().saved() if self.told is None else self.told


worker.EngineWorld = LostWorld  # type: ignore[misc]

if __name__ == "__main__":
    worker.run(worker._warm, worker.operations)
