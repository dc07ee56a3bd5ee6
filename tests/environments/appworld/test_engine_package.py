"""What a process of the engine waits for before it forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from environments.appworld.installation import REPOSITORY

# In a process of its own: pytest and its plugins have threads.
PROGRAM = """
import threading, time
from environments.appworld.engine.zygote import await_threads
ends = threading.Thread(target=time.sleep, args=(0.3,), daemon=True)
ends.start()
await_threads(20.0)
print(ends.is_alive())
threading.Thread(target=threading.Event().wait, name="stays", daemon=True).start()
try:
    await_threads(0.1)
except RuntimeError as error:
    print("stays" in str(error))
"""


@pytest.mark.process
def test_a_thread_that_is_about_to_end_is_waited_for_and_one_that_stays_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")
