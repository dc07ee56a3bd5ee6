"""Compare two states of a world by content: added, updated and removed records without accidental fields."""

from __future__ import annotations

import json
from typing import Any

_ACCIDENTAL = {"id", "record_hash"}
_ACCIDENTAL_ENDINGS = ("_at", "_code", "_code_expiry")  # the (frozen) clock, and codes drawn at random
_DEPTH = 3  # of added records that refer to added records


def serialized_difference(start: Any, end: Any, end_home: str) -> dict[str, Any]:  # noqa: ANN401 - the package has no types
    """Return how two of the package's ``ModelCollection`` differ, with the status and answer of the task in ``end``.

    ``end_home`` is the folder that ``end`` was loaded to. Changes are by model, as JSON: ``added`` and ``removed`` are
    lists of records, ``updated`` of ids with the fields that changed and their new values. Left out are numbers given
    in order, times of creation and random codes; a reference to an added record is replaced by that record's fields, so
    that two ways to the same state are equal.
    """
    from appworld.collections.models import ModelCollectionPair

    pair = ModelCollectionPair(
        start_db_home_path=start.from_db_home_path,
        start_model_collection=start,
        end_db_home_path=end_home,
        end_model_collection=end,
    )
    changes = {}
    for name in sorted(pair.changed_model_names()):
        added, updated, removed = pair.changed_records(name)
        changes[name] = {
            "added": _ordered(_fields(record, pair) for record in added),
            "updated": _ordered(
                {"id": record.id, "fields": _updated(record, pair.changed_field_names(name, record.id) or (), pair)}
                for record in updated
            ),
            "removed": _ordered({"id": record.id} | _fields(record, None) for record in removed),
        }
    given = pair.end.supervisor.Task.first()
    return {"changes": changes, "status": given.status, "answer": json.loads(given.answer)}


def _updated(record: Any, names: Any, pair: Any) -> dict[str, Any]:  # noqa: ANN401
    fields = _fields(record, pair)
    return {name: fields.get(name) for name in sorted(names)}


def _fields(record: Any, pair: Any, depth: int = _DEPTH) -> dict[str, Any]:  # noqa: ANN401
    values = json.loads(json.dumps(record.dict(), default=str))
    kept = {
        name: value
        for name, value in values.items()
        if name not in _ACCIDENTAL and not name.endswith(_ACCIDENTAL_ENDINGS)
    }
    if pair is not None and depth:
        for column in record.__table__.columns:
            if column.name in kept and column.foreign_keys and kept[column.name] is not None:
                kept[column.name] = _referred(column, kept[column.name], record, pair, depth)
    return kept


def _referred(column: Any, key: Any, record: Any, pair: Any, depth: int) -> Any:  # noqa: ANN401
    """Return the key of a record that existed before; the fields of an added one."""
    table = next(iter(column.foreign_keys)).column.table.name
    app = type(record).app_name
    for name in pair.end[app].SQLModel.model_names():
        if pair.end[app][name].__tablename__ == table:
            if key in pair.start.ids(app, name):
                return key
            found = pair.end[app][name].by_id(key)  # again: reading the start has pointed the models to it
            return key if found is None else {name: _fields(found, pair, depth - 1)}
    return key


def _ordered(records: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return sorted(records, key=lambda record: json.dumps(record, sort_keys=True))
