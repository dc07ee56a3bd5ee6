"""Write the user turns of templated tasks with BFCL's wordings; find the errors that name a file to make."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from environments import task_text
from environments.base import Environment, TaskSpec
from environments.bfcl.templated.wordings import Wordings, clause
from environments.task_text import Spec, caused_errors

__all__ = ["caused_errors", "forced_calls", "render_task", "render_turns"]

# "No such file or directory" does not name a file to make, and may be caused by the user's text; echo's "No such file"
# means that a file must be made first.
_FILE_TO_MAKE = re.compile(r"No such file(?! or directory)")


def forced_calls(environment: Environment, spec: TaskSpec) -> tuple[tuple[bool, ...], ...]:
    """Return, for each turn and call of the reference, whether a precondition forces it (``environments.task_text``).

    An error that a file has to be made names that file. Raises InputError for a task that the environment cannot open
    or a tool that it does not have.
    """
    return task_text.forced_calls(environment, spec, lambda error: _FILE_TO_MAKE.search(error) is not None)


def render_task(environment: Environment, spec: Spec, wordings: Wordings, rng: random.Random) -> Spec:
    """Return ``spec`` with its user turns written, in wordings drawn with ``rng``; equal arguments give equal text.

    Raises InputError for a call that has no wording, a turn without calls, and like ``forced_calls``.
    """
    return render_turns(spec, forced_calls(environment, spec), wordings, rng)


def render_turns(spec: Spec, forced: Sequence[Sequence[bool]], wordings: Wordings, rng: random.Random) -> Spec:
    """Write user turns like ``render_task`` where ``forced`` is known already, without replays.

    Raises InputError for a call that has no wording and for a turn without a clause.
    """
    return task_text.render_turns(spec, forced, lambda call, drawn: clause(call, wordings, drawn), rng)
