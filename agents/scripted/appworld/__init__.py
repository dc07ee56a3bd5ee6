"""The scripted roles in AppWorld: they log in to apps, look up ids, and read an API's documentation after a refusal.

AppWorld's values are reached through other calls: tokens through passwords, ids through lists. The generic explorer
aims at one tool and does what its error asks for, which never logs in; these rules do. They know the names of a few
APIs; everything else is read from the world's own documentation at run time. ``draft`` and ``explore`` are those of
``agents.settings.OwnRoles``.
"""

from agents.scripted.appworld.drafts import draft
from agents.scripted.appworld.explorer import explore

__all__ = ["draft", "explore"]
