"""For the tests of MCP servers: a place for their folders."""

import pytest


@pytest.fixture(autouse=True)
def _place_of_folders(tmp_path_factory, monkeypatch):
    """Make the servers' own folders where pytest removes what a process that ended early left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("servers")))
