"""Ids and seeds as hashes of parents and position, so that a resumed run makes the same ones."""

from __future__ import annotations

import hashlib
import json


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str).encode()).digest()


def record_id(kind: str, *parts: object) -> str:
    """A record's id, ``KIND-`` and 16 hex digits, from its parents' ids and its position among siblings."""
    return f"{kind}-{_digest((kind, *parts)).hex()[:16]}"


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from (run seed, iteration, stage, id, ...): draws do not depend on order or concurrency."""
    return int.from_bytes(_digest(parts)[:8], "big") >> 1
