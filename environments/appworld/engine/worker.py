"""Run the worker: one warm process on the blind root, which forks one AppWorld world for each episode.

A world executes an agent's code in a process of its own and reports changes (``EngineWorld``).
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from environments.appworld.engine.code_filter import refusal, restrict
from environments.appworld.engine.differences import serialized_difference
from environments.appworld.engine.protocol import as_json, encodable, said
from environments.appworld.engine.zygote import Operation, run

MAX_OUTPUT = 200_000  # characters of one execution's output; the rest is left out, and counted
MAX_CALLS = 2_000  # API calls of one execution that are reported; the package's own limit is lower
_FAILED = "Execution failed. Traceback:\n"
_RESERVE = 512 * 1024 * 1024  # bytes for saving and comparing databases while the code's data fill its share
_NOT_THE_AGENTS = frozenset({"client", "track", "show"})  # parameters of the package's own requester
_LEAVES_THE_PATH = frozenset("/\\?#%")


class ApiCallRecorder:
    """Wrap the client of a world's requester.

    The package puts a path parameter's text into the address as it is: one with slashes could reach another app's
    private APIs. Such a call is answered like an API that does not exist. Arguments become JSON values before they are
    read, so that a value cannot change between its check and its use.
    """

    def __init__(self, requester: Any) -> None:  # noqa: ANN401 - the package has no types
        self._calls: list[dict[str, Any]] = []
        self._request = requester.request
        self._check = requester.raise_if_failure
        requester.request = self._recorded
        requester.raise_if_failure = self._checked

    def take(self) -> list[dict[str, Any]]:
        """Return the calls since the last time: app, api, arguments, and the answer's HTTP status (None: no answer)."""
        calls, self._calls = self._calls, []
        return calls

    def _recorded(self, _app_name: str, _api_name: str, **data: Any) -> Any:  # noqa: ANN401
        if set(data) == {"track"} and data["track"] is False:  # the engine's own read of the task
            return self._request(_app_name, _api_name, track=False)
        raises = data.pop("raise_on_failure", None)
        given = _plain(data)
        self._calls.append({"app": _app_name, "api": _api_name, "arguments": given, "status": None})
        refused = _NOT_THE_AGENTS & set(data)
        if refused:
            raise Exception(f"Unexpected parameter: {', '.join(sorted(refused))}.")
        _keep_in_path(_app_name, _api_name, given)
        return self._request(_app_name, _api_name, raise_on_failure=None if raises is None else bool(raises), **given)

    def _checked(self, response: Any, raise_on_failure: bool | None = None) -> None:  # noqa: ANN401
        if self._calls:
            self._calls[-1]["status"] = response.status_code
        self._check(response, raise_on_failure)


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Convert the arguments to JSON values once: the same values are checked, sent and recorded."""
    given = {}
    for name, value in data.items():
        try:
            given[name] = as_json(value)
        except ValueError as error:
            raise Exception(f"The parameter {name} must be a JSON value: {error}.") from None
    return given


def _keep_in_path(app: str, api: str, data: dict[str, Any]) -> None:
    from appworld.requester import METHOD_NOT_ALLOWED_MESSAGE, _get_api_name_to_doc

    path = _get_api_name_to_doc(app, include_private_apis=True)[api]["path"]
    for name, value in data.items():
        text = str(value)
        if "{" + name + "}" in path and (_LEAVES_THE_PATH & set(text) or text.strip(".") == ""):
            raise Exception(f"Response status code is 404:\n{METHOD_NOT_ALLOWED_MESSAGE}")


class MemoryLimit:
    """Limit the growth of the process's address space; beyond it is a MemoryError.

    The limit holds inside ``applied``; outside, the engine has a reserve. Create it while there is a ``/proc``, which
    the sandbox removes.
    """

    def __init__(self) -> None:
        self._code = self._most = resource.RLIM_INFINITY
        self._size = open("/proc/self/statm", "rb", buffering=0)  # noqa: SIM115

    def set(self, megabytes: int) -> None:
        """Allow a growth of ``megabytes`` from the current size. Call once."""
        with self._size:
            used = int(self._size.read(100).split()[0]) * resource.getpagesize()
        self._code = used + megabytes * 1024 * 1024
        self._most = self._code + _RESERVE
        resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Hold the code's own limit while the block runs."""
        resource.setrlimit(resource.RLIMIT_AS, (self._code, self._most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (self._most, self._most))


class EngineWorld:
    """The operations of a worker's child; ``open`` comes first, once."""

    def __init__(self) -> None:
        self._memory = MemoryLimit()
        self._results: list[Any] = []

    def open(
        self,
        task_id: str,
        instruction: str | None,
        execute_seconds: int,
        api_calls: int,
        memory_megabytes: int,
    ) -> dict[str, Any]:
        """Start ``task_id``'s world; ``instruction`` replaces the task's own.

        ``execute_seconds`` and ``api_calls`` limit one execution, ``memory_megabytes`` the growth of the process.
        """
        from appworld import AppWorld

        self._world = AppWorld(
            task_id=task_id,
            experiment_name=str(Path.cwd()),
            load_ground_truth=False,
            max_interactions=10**9,
            max_api_calls_per_interaction=api_calls,
            timeout_seconds=execute_seconds,
        )
        if instruction is not None:
            self._replace_instruction(instruction)
        self._watch_shell()
        # The logs are not read, and not every text that code prints can be written.
        self._world.save_logs = lambda: None
        self._calls = ApiCallRecorder(self._world.requester)
        restrict(self._world.shell.user_ns, self._world.apis)
        self._memory.set(memory_megabytes)
        task = self._world.task
        who = ("first_name", "last_name", "email", "phone_number")
        return {"now": task.datetime.isoformat(), "supervisor": {field: task.supervisor[field] for field in who}}

    def execute(self, code: str) -> dict[str, Any]:
        """Run the code as the benchmark does; return its output or error, and the API calls it made.

        ``status``: ok, failed (it raised, timed out or is not Python), refused (by the code filter). Errors of the code
        are returned, never raised.
        """
        self._calls.take()
        reason = refusal(code.strip())
        if reason is None:
            output, status = self._run(code)
        else:
            output, status = _FAILED + reason, "refused"
        return {
            "output": _cut(encodable(output)),
            "status": status,
            "calls": self._calls.take()[:MAX_CALLS],
            "completed": bool(self._world.task_completed()),
        }

    def saved(self) -> dict[str, str]:
        """Return the databases' changes after the last execution, as the package's files by name."""
        folder = Path(self._world.output_db_home_path_on_disk)
        return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}

    def difference(self) -> dict[str, Any]:
        """Return how the world differs from its task's start, by business fields, with the task's status and answer."""
        from appworld.collections.models import ModelCollection

        world = self._world
        memory = world.output_db_home_path_in_memory
        start = ModelCollection.load(
            to_db_home_path=world.task.models_to_db_home_path,
            from_db_home_path=world.task.models_from_db_home_path,
            load_apps=[*world.task.allowed_apps, "admin"],
        )
        end = ModelCollection.load(
            to_db_home_path=memory,
            from_db_home_path=world.output_db_home_path_on_disk,
            load_apps=world.task.allowed_apps,
        )
        return serialized_difference(start, end, memory)

    def _run(self, code: str) -> tuple[str, str]:
        self._results.clear()
        try:
            output = self._world.execute(code)
        except BaseException as error:  # noqa: BLE001 - an exit, an interrupt, a text that no log can hold
            self._world.safety_guard.disable()  # as the package does after code that ends otherwise
            self._world._save_state(self._world.output_db_home_path_on_disk)
            self._world.requester.reset_request_count()
            return _FAILED + said(error), "failed"
        succeeded = bool(self._results) and self._results[-1] is not None and self._results[-1].success
        return str(output), "ok" if succeeded else "failed"

    def _replace_instruction(self, instruction: str) -> None:
        task = self._world.models.supervisor.Task.all()[0]
        task.instruction = instruction
        task.save()
        self._world._save_state(self._world.output_db_home_path_on_disk)

    def _watch_shell(self) -> None:
        """Keep each cell's result, and run the text as it is: the shell would take some of it for its commands."""
        shell, run = self._world.shell, self._world._shell_run_cell
        shell.automagic = False
        shell.transform_cell = lambda cell: cell if cell.endswith("\n") else cell + "\n"

        def kept(code: str) -> Any:  # noqa: ANN401 - the shell's result
            with self._memory.applied():
                result = run(code)
            self._results.append(result)
            return result

        self._world._shell_run_cell = kept


def _cut(output: str) -> str:
    left_out = len(output) - MAX_OUTPUT
    return output if left_out <= 0 else f"{output[:MAX_OUTPUT]}\n[{left_out} characters left out]"


_FIRST_CODE = """
profile = apis.supervisor.show_profile()
for account in apis.supervisor.show_account_passwords():
    app = account["account_name"]
    name = profile["phone_number" if app == "phone" else "email"]
    try:
        apis[app].login(username=name, password=account["password"])
    except Exception as error:
        print(f"{app}: {error}")
"""


def operations() -> dict[str, Operation]:
    """Return the operations of a child of the worker: those of one world."""
    world = EngineWorld()
    names = ("open", "execute", "difference", "saved")
    return {name: getattr(world, name) for name in names}


def _warm(root: Path) -> None:
    """Play a task's first moments, so that children have everything imported and built.

    The first sign-in to an app takes up to ten times what the next ones do: its models are bound and its routes built.
    A sign-in that fails is logged; it only makes the first use of that app in a world slower.
    """
    from appworld import AppWorld, requester

    # What serves the apps depends on their names alone; the package builds it anew in each world, for 40 ms.
    requester.build_main_app = cache(requester.build_main_app)
    first = min(folder.name for folder in (root / "data" / "tasks").iterdir())
    with tempfile.TemporaryDirectory() as folder:
        world = AppWorld(task_id=first, experiment_name=folder, load_ground_truth=False)
        _ = world.task.model_collection
        print(world.execute(_FIRST_CODE), file=sys.stderr)
        world.close()


if __name__ == "__main__":
    run(_warm, operations)
