"""Writes the API documentation that the package derives from the apps' own code."""

from __future__ import annotations

import json
from pathlib import Path


def write_documentation(data: Path) -> int:
    """Write both formats under ``data/api_docs`` as the package reads them; the number of APIs."""
    from appworld.api_docs import prepare_api_docs
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.constants import CANARY_STRING

    apps = tuple(get_all_apps(skip_admin=True))
    canary = {"canary_string": CANARY_STRING}
    for folder in ("standard", "function_calling"):
        (data / "api_docs" / folder).mkdir(parents=True)
    documents = ApiDocCollection.build(load_apps=apps)
    for app, apis in documents.items():
        standard = {name: {**document, **canary} for name, document in apis.items()}
        calling = [{**document, **canary} for document in prepare_api_docs(app, format="function_calling")]
        (data / "api_docs" / "standard" / f"{app}.json").write_text(json.dumps(standard, indent=1))
        (data / "api_docs" / "function_calling" / f"{app}.json").write_text(json.dumps(calling, indent=1))
    return sum(len(apis) for apis in documents.values())
