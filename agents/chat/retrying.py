"""How long to wait before a request is sent again, as pure functions of what is known.

An own loop calls these rather than tenacity: its pauses depend on the reply (Retry-After) and on what is left of the
question's deadline, and its jitter is random, where equal runs shall wait equally.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from memory.ids import derive_seed

LONGEST_BACKOFF = 8.0
PASSING_STATUSES = frozenset({408, 409, 429})


def is_passing(status: int) -> bool:
    """Whether another attempt may succeed after a reply with this HTTP status."""
    return status in PASSING_STATUSES or status >= 500


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3): a number or an HTTP date; None for neither.

    ``now`` is an aware time. A date that has passed gives 0.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def backoff(first: float, attempt: int, subject: str) -> float:
    """Seconds before the ``attempt``-th further attempt, counted from 1: ``first``, doubled each time, 8 at most.

    Between a half and the whole of it is taken, by a hash of ``subject`` and ``attempt``: questions that failed
    together do not come back together, and equal runs wait equally.
    """
    whole = min(first * 2.0 ** min(attempt - 1, 60), LONGEST_BACKOFF)
    return whole * (0.5 + 0.5 * derive_seed("backoff", subject, attempt) / 2**63)


def pause(backed_off: float, asked: float | None, longest: float) -> float:
    """Seconds to wait: the backoff, and not less than what the endpoint asked for, of which ``longest`` counts."""
    return max(backed_off, min(asked or 0.0, longest))
