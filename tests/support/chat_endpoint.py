"""``python chat_endpoint.py SECONDS``: the chat table as an endpoint of that latency, in a process of its own.

Prints its base URL, and, when its standard input is closed, how many requests were in flight at once at most.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from support.chat_table import answer
    from support.faulty_server import FaultyServer

    with FaultyServer(lambda request: answer(request.schema, request.prompt), latency=float(sys.argv[1])) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(server.most_in_flight, flush=True)
