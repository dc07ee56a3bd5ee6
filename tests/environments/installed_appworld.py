"""AppWorld where it is installed; elsewhere the test that asks for it skips, with the reason."""

from __future__ import annotations

import pytest

from environments.appworld.installation import Installation, find_installation
from environments.base import InputError


def installed_appworld() -> Installation:
    """The project's AppWorld."""
    try:
        return find_installation()
    except InputError as error:
        pytest.skip(str(error))
