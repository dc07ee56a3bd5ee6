"""For the tests of the graph: strict checkpoints, the small policy of the training tests, the roles' chat endpoint."""

import os
import sys
from pathlib import Path

# Only types that the state's schema reaches may be stored. LangGraph reads this when it is imported.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"
for room in ("training", "agents/chat"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / room))
