"""Which of a world's APIs only read, by the HTTP method that their documentation names."""

from __future__ import annotations

import json

from environments.appworld.installation import Installation


def read_apis(installation: Installation) -> frozenset[str]:
    """Names (``app.api``) of the APIs that are called by GET."""
    folder = installation.blind / "data" / "api_docs" / "standard"
    return frozenset(
        f"{path.stem}.{api}"
        for path in folder.glob("*.json")
        for api, document in json.loads(path.read_text()).items()
        if isinstance(document, dict) and document.get("method") == "GET"
    )
