"""Convert the package's evaluation of a task to JSON: each check by its requirement and label, without traces."""

from __future__ import annotations

from typing import Any


def without_traces(report: Any) -> dict[str, Any]:  # noqa: ANN401 - the package has no types
    """Return the part of the evaluation ``report`` that may leave the process: traces hold expected values."""
    return {
        "success": bool(report.success),
        "difficulty": report.difficulty,
        "passes": [{key: check[key] for key in ("requirement", "label")} for check in report.passes],
        "failures": [{key: check[key] for key in ("requirement", "label")} for check in report.failures],
    }
