"""The tiny policy that rounds of these tests begin with, and one real vLLM server for all that need one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_policy import make_policy, small_tasks
from support.vllm_server import vllm_server

__all__ = ["vllm_server"]


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starter")
    make_policy(folder, small_tasks())
    return folder
