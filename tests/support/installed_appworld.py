"""AppWorld where it is installed; elsewhere the test that asks for it skips, with the reason."""

from __future__ import annotations

import pytest

from environments.appworld.installation import Installation, find_installation
from environments.appworld.sandbox import require
from environments.base import InputError


def installed_appworld() -> Installation:
    """The project's AppWorld, behind its wall."""
    try:
        installation = find_installation()
        require(installation)
    except InputError as error:
        pytest.skip(str(error))
    return installation
