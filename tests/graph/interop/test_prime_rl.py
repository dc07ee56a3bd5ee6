"""A round that prime-rl does: its environment server plays our tasks, and `coevolve evolve` goes on from the records.

Real are verifiers, its environment server and client, our server, and the loop; prime-rl's curriculum where its sources
are. Its trainer needs a GPU: the weights that it would write are copied here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import ROOT
from support.own_venvs import OPENENV, VERIFIERS, of_programs
from support.served_policy import reference_endpoint
from support.served_shop import SHOP, TASKS, served, write_shop
from support.small_policy import make_policy, small_settings, small_tasks
from websockets.sync.client import connect

from environments.base import ToolCall
from graph.report.summary import Summary
from graph.settings import RunSettings
from memory.records import Signal, Task, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit, load_tasks

pytestmark = of_programs(OPENENV, VERIFIERS)


def made_run(folder: Path) -> RunDirectory:
    write_shop(folder)
    make_policy(folder / "starter", small_tasks(), updates=1)
    elsewhere = {"engine": "prime-rl", "output": str(folder / "prime")}
    given = small_settings(folder / "starter", elsewhere=elsewhere, rollouts_per_task=2, steps=2).model_dump()
    given |= {"environment": {"name": "my_shop:shop"}, "evaluation": {"set": None}, "iterations": 1}
    run = RunDirectory.create(folder / "run", RunSettings.model_validate(given))
    given_tasks = read_jsonl(folder / "tasks.jsonl", Task)
    kept = {"tools": tuple(name for name in given_tasks[0].tools if name != "wait_long")}  # explorers try every tool
    admit(run, [task.model_copy(update=kept) for task in given_tasks])
    return run


def ask(url: str, *data: dict) -> dict:
    with connect(f"ws{url.removeprefix('http')}/ws", proxy=None, open_timeout=60) as one:
        for message in data:
            one.send(json.dumps(message))
            answer = json.loads(one.recv(timeout=60))
    return answer["data"]


def call(name: str, **arguments: object) -> dict:
    return {"type": "step", "data": {"type": "call_tool", "tool_name": name, "arguments": arguments}}


def test_a_round_of_prime_rl_evolves_the_run(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    put = ToolCall(name="add_euros", arguments={"euros": 9})
    change = {"id": "task-2", "turns": ("Put 9 euros into the till.",), "reference": ((put,),)}
    later = load_tasks(run)[0].model_copy(update=change)
    known = [*load_tasks(run), later]
    with (
        served(tmp_path, "--record", what=("--run", str(run.root))) as url,
        reference_endpoint(known) as perfect,
        reference_endpoint(known, idle=True) as idle,
    ):
        drawn = {"type": "reset", "data": {"split": "train", "index": 0, "episode_id": "7"}}
        ended = ask(url, drawn, call("finish_turn", give_up=True, sampled_tokens=5))
        assert (ended["done"], ended["reward"]) == (True, 0.0)
        assert "a defect" in ask(url, drawn, call("break_down"))["message"]
        ask(url, {"type": "reset", "data": {"index": 0}}, call("finish_turn"))  # names no draw: it is not recorded
        ask(url, {"type": "reset", "data": {"index": 0, "episode_id": "8"}})  # broken off: it is not recorded
        argv = [
            str(VERIFIERS.parent / "python"),
            str(ROOT / "tests" / "support" / "prime_on_cpu.py"),
            url,
            perfect.url,
            idle.url,
            "3",
        ]
        environ = {**os.environ, "NO_KEY": "none", "PATH": f"{VERIFIERS.parent}:{os.environ['PATH']}"}
        prime = subprocess.Popen(
            argv, cwd=tmp_path, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert prime.stdin is not None
        assert prime.stdout is not None
        said = [json.loads(prime.stdout.readline()) for _ in range(5)]
        assert said[-1] == "two draws are done"
        assert {one["task"] for one in said[:4]} == {"task-0", "task-1"}
        admit(run, [later])
        prime.stdin.write("\n")
        prime.stdin.flush()
        said += [json.loads(line) for line in prime.stdout]
        assert prime.wait(60) == 0
    assert [one["task"] for one in said[5:]] == ["task-2"] * 2, "a task that was admitted later is drawn next"
    assert [(one["reward"], one["ok"]) for one in said if isinstance(one, dict)] == [(1.0, True), (0.0, True)] * 3

    # Explorers try every tool, and a defect of the user's own class ends a run.
    (tmp_path / "my_shop.py").write_text(SHOP.replace('raise KeyError("a defect")', "pass"))
    weights = tmp_path / "prime" / "broadcasts" / "step_3"
    shutil.copytree(tmp_path / "starter", weights)
    (weights / "STABLE").touch()
    argv = [sys.executable, "-m", "graph.run_iteration", "--run", str(run.root), "--resume"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode in (0, 4), done.stderr[-2000:]
    trajectories = read_jsonl(run.iteration(0).trajectories, Trajectory)
    assert len(trajectories) == 8
    first, second = trajectories[:2]
    assert (first.reward, first.sampled_tokens, first.turns[0].ended) == (0.0, 5, False)
    assert second.infrastructure_error is not None
    assert "a defect" in second.infrastructure_error
    assert [one.success for one in trajectories[2:]].count(True) == 3
    solved = next(one for one in trajectories if one.task_id == "task-1" and one.success)
    assert [turn.text for turn in solved.turns] == TASKS[1]["turns"]
    assert [call.name for call in solved.calls()] == ["add_euros", "count_euros"]
    signals = read_jsonl(run.iteration(0).signals, Signal)
    assert {one.task_id for one in signals if one.kind == "boundary"} == {"task-0", "task-1", "task-2"}
    summary = read_json(run.iteration(0).summary, Summary)
    assert summary.iteration == 0
