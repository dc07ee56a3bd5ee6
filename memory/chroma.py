"""Import Chroma so that nothing in the working directory configures it.

Chroma reads ``.env`` of the working directory when it is imported and whenever its settings are made. A value there
can name a module, which Chroma imports and calls (``CHROMA_PRODUCT_TELEMETRY_IMPL``), or end in a traceback.
Import Chroma from here alone, inside functions: it takes a second.
"""

from __future__ import annotations

from typing import Any

from pydantic_settings import BaseSettings

__all__ = [
    "ChromaError",
    "InternalError",
    "PersistentClient",
    "Settings",
]


def _without_file(_: type, settings_cls: type, *sources: Any, **named: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the sources of settings in their order, without the file (``BaseSettings.settings_customise_sources``)."""
    return tuple(source for name, source in named.items() if name != "dotenv_settings")


_sources = BaseSettings.__dict__["settings_customise_sources"]
BaseSettings.settings_customise_sources = classmethod(_without_file)  # type: ignore[assignment]
try:
    from chromadb import PersistentClient
    from chromadb.config import Settings
    from chromadb.errors import ChromaError, InternalError
finally:
    BaseSettings.settings_customise_sources = _sources  # type: ignore[method-assign]
Settings.model_config["env_file"] = None
