"""Define an OpenEnv server as a benchmark: its options, and its own tasks."""

from __future__ import annotations

from pydantic import Field, JsonValue

from environments.addresses import Address, bound_token
from environments.benchmark import Benchmark, OfficialTask, OfficialTasks, Options
from environments.openenv.environment import Compare, OpenEnvEnvironment, TaskPlace
from environments.openenv.host import Host
from environments.verification.replay import bare_task


class OpenEnvOptions(Options):
    """Options of the environment."""

    url: Address = Field(description="address of the server, for example http://127.0.0.1:8000")
    split: str = Field("train", max_length=100, description="split of the server's tasks")
    first: int = Field(0, ge=0, description="index of the first task of the server that exploration begins at")
    starts: int = Field(16, ge=1, le=10_000, description="how many tasks of the server exploration begins at")
    compare: Compare = Field(
        "state",
        description="what verification compares; state: the server's state, which two resets have to give alike; "
        "reward: the highest reward and whether the episode is over, for a server that shows no state (weaker: a call "
        "that changes something and earns nothing seems to have no effect)",
    )
    threshold: float = Field(1.0, description="reward from which a task of the server's own is solved")


class OpenEnv(Benchmark[OpenEnvOptions]):
    """The environment of one server. Official tasks are the server's own: text and reward, no reference."""

    name = OpenEnvEnvironment.name
    options_type = OpenEnvOptions

    def open(self, options: OpenEnvOptions) -> OpenEnvEnvironment:
        """Open the environment. Raises InputError where the server cannot be asked or is not bound."""
        places = [TaskPlace(split=options.split, index=options.first + number) for number in range(options.starts)]
        host = Host(options.url, bound_token(options.url, "environment.options.url"))
        return OpenEnvEnvironment(host, places, options.compare, options.threshold)

    def evaluation_options(self, options: OpenEnvOptions) -> dict[str, JsonValue]:
        """Return all options."""
        written: dict[str, JsonValue] = options.model_dump(mode="json")
        return written

    def verification_label(self, options: OpenEnvOptions) -> str | None:
        """Return the label of tasks that were compared by results and reward."""
        return None if options.compare == "state" else "tasks verified by results and reward alone, not by state"

    def official_tasks(self, options: OpenEnvOptions) -> OfficialTasks:
        """Return the server's tasks at which exploration begins, with the text of their first observation."""
        environment = self.open(options)
        tasks = tuple(
            OfficialTask(start.id, bare_task(start).model_copy(update={"turns": (request,)}))
            for start, request in zip(environment.starts(), environment.requests, strict=True)
        )
        return OfficialTasks(tasks=tasks, total=len(tasks))


BENCHMARK: Benchmark[OpenEnvOptions] = OpenEnv()
