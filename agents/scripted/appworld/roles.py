"""The scripted roles that the benchmark names (``agents.roles.OwnRoles``)."""

from agents.scripted.appworld.drafts import draft_appworld as draft
from agents.scripted.appworld.explorer import explore_appworld as explore

__all__ = ["draft", "explore"]
