"""``python -m support.watched_round FILE ARGUMENTS...``: ``training.run_round``; its first prompts go to FILE.

One JSON text per line and rollout, in the order in which episodes are opened.
"""

from __future__ import annotations

import json
import sys

from memory.processes import run_to_end
from training.rendering.chat_template import ChatTemplateDialogue
from training.run_round import app

if __name__ == "__main__":
    path = sys.argv.pop(1)
    first = ChatTemplateDialogue.first

    def watched(self, turn, tools):
        ids = first(self, turn, tools)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(self._decode(ids)) + "\n")
        return ids

    ChatTemplateDialogue.first = watched
    run_to_end(app)
