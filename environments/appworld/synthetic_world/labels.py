"""Evaluate every task with its solution and without any action, and label each check by the two results."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_TASK_LIMIT = 120.0  # seconds for one task, solved once and left alone once


class UnsolvableTask(RuntimeError):
    """A task of the synthetic world whose solution fails, or that succeeds without any action."""


def label_tasks(data: Path, ids: list[str], outputs: Path) -> None:
    """Write the labels, the calls of the solution and the metadata that only a run gives, for every task.

    ``outputs`` is a folder for the files of the runs. The process must be settled (``engine.warm``). Raises
    UnsolvableTask naming the task.
    """
    for identity in ids:
        folder = data / "tasks" / identity / "ground_truth"
        (folder / "test_data.json").write_text("[]")
        solution = (folder / "compiled_solution.py").read_text()
        idle = _in_child(_run, identity, "", outputs / "idle")
        solved = _in_child(_run, identity, f"{solution}\nsolution(apis, requester)", outputs / "solved")
        if solved["failures"] or solved["output"].startswith("Execution failed"):
            raise UnsolvableTask(f"{identity}: its solution fails: {solved['failures']} {solved['output']}")
        done_anyway = [entry["requirement"] for entry in idle["passes"]]
        if not idle["failures"]:
            raise UnsolvableTask(f"{identity}: doing nothing passes every check")
        tests = [
            {"requirement": name, "label": "no_op_pass" if name in done_anyway else "no_op_fail"}
            for name in (entry["requirement"] for entry in solved["passes"])
        ]
        tests.sort(key=lambda test: test["label"])
        (folder / "test_data.json").write_text(json.dumps(tests))
        (folder / "api_calls.json").write_text(json.dumps(solved["calls"]))
        metadata = json.loads((folder / "metadata.json").read_text())
        apis = {(call["method"], call["url"]) for call in solved["calls"]}
        metadata |= {"num_apis": len(apis), "num_api_calls": len(solved["calls"])}
        (folder / "metadata.json").write_text(json.dumps(metadata))


def _run(identity: str, code: str, outputs: Path) -> dict[str, Any]:
    from appworld import AppWorld
    from appworld.evaluator import evaluate_task

    world = AppWorld(task_id=identity, experiment_name=str(outputs), load_ground_truth=False)
    output = world.execute(code) if code else ""
    calls = list(world.requester.requests)
    report = evaluate_task(identity, experiment_name=str(outputs), save_report=False)
    return {"output": output, "calls": calls, "passes": report.passes, "failures": report.failures}


def _in_child(run: Callable[[str, str, Path], dict[str, Any]], *arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """Run in a forked process of its own: two worlds in one process disturb each other."""
    ours, theirs = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _answer(theirs, run, arguments)
    theirs.close()
    try:
        if not ours.poll(_TASK_LIMIT):
            os.kill(child, 9)
            raise UnsolvableTask(f"{arguments[0]}: its solution did not end within {_TASK_LIMIT:g} s")
        result: dict[str, Any] = ours.recv()
    except EOFError:
        raise UnsolvableTask(f"{arguments[0]}: the process that ran its solution died") from None
    finally:
        os.waitpid(child, 0)
    if "error" in result:
        raise UnsolvableTask(f"{arguments[0]}: {result['error']}")
    return result


def _answer(pipe: Connection, run: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send(run(*arguments))
    except BaseException:  # noqa: BLE001 - the parent reports it
        pipe.send({"error": traceback.format_exc()})
    finally:
        os._exit(0)
