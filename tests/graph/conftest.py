"""For the tests of the graph: strict checkpoints."""

import os

# Only types that the state's schema reaches may be stored. LangGraph reads this when it is imported.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"
