"""The environment of an OpenEnv server: its tools, start states and own tasks, and attempts at tasks on it.

An environment of OpenEnv has tools, or actions of one form. The form then becomes one tool, ``act``, whose parameters
are the action's fields. A start is what ``reset(split, index)`` leads to; environments without tasks get ``index`` as
the seed.

``compare`` says what two attempts are compared by. ``state``: what the server's ``state`` holds beside the id and the
number of steps. ``reward``: the highest reward so far (0 at least) and whether the episode is over, for a server that
shows no state. That is weaker: a call that changes something and earns nothing seems to have no effect, so verification
sees results and rewards alone. With either, an attempt has to receive the results that the reference received.

A task of the server's own has no reference. It is solved when the reward reaches the ``threshold``.

A server may allow few sessions, one by default. One more is opened until the server refuses. From then on, sessions are
shared by episodes (``environments.served``), and the server has to repeat what it answered. A process that plays
nothing for ``IDLE_SECONDS`` gives its sessions up, because another one may need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pydantic import Field, JsonValue, ValidationError

from environments.addresses import Address, bound_token
from environments.base import Environment, EnvironmentFault, InputError, Outcome, TaskSpec, ToolSpec, TurnOutcome
from environments.benchmark import Benchmark, OfficialTask, OfficialTasks, Options
from environments.json_schema import notes_of_left_out
from environments.openenv import host as limits
from environments.openenv.host import Compare, Host, Session, Stepped, TaskPlace, as_text, read_tools
from environments.python_class.environment import PythonEpisode
from environments.served import Fleet, ServedEnvironment, ServerPlace, ServerWorld
from environments.verification.replay import bare_task

LOW_REWARD = "low_reward"
_REQUESTS = ("user", "prompt", "instruction", "question", "task", "text", "message")


class RewardedEpisode(PythonEpisode):
    """An attempt at a task of the server's own, without a reference: its reward decides."""

    def __init__(self, task: TaskSpec, world: partial[ServerWorld], threshold: float) -> None:
        super().__init__(task, world)
        self._threshold = threshold

    def outcome(self) -> Outcome:
        """Return the outcome so far."""
        turns = tuple(
            TurnOutcome(calls=turn.calls, malformed=turn.malformed, reference_calls=0) for turn in self._turns.played()
        )
        reward = getattr(self._live(), "reward", None)
        solved = reward is not None and reward >= self._threshold
        return Outcome(success=solved, turns=turns, failure=None if solved else LOW_REWARD)


class OpenEnvEnvironment(ServedEnvironment):
    """The environment of an OpenEnv server.

    Args:
        host: the server.
        places: where exploration begins. ``requests`` has what their own tasks ask for.
        compare: see the module.
        threshold: the reward from which a task of the server's own is solved.

    Raises InputError where the server cannot be asked, offers tools that cannot be used, or shows no state that can be
    compared though attempts are compared by it.
    """

    name = group = "openenv"
    repeats = True

    def __init__(self, host: Host, places: Sequence[TaskPlace], compare: Compare, threshold: float) -> None:
        tools: dict[str, ToolSpec] = {}
        new = partial(Session, host, compare)
        fleet = Fleet(new, limits.SESSIONS, limits.STEP_SECONDS, again=True, idle=limits.IDLE_SECONDS)
        super().__init__(fleet, tools)
        self._threshold = threshold
        self.requests: list[str] = []
        left_out: dict[str, str] = {}
        try:
            with fleet.at(ServerPlace(places[0])) as seat:
                if compare == "state":
                    self._check_state(seat.server, places[0])
                for place in places:
                    seat.server.begin(place)
                    self.requests.append(request_of(seat.server.first))
                    found = read_tools(seat.server, host, self.name, left_out)
                    for name, tool in found.items():
                        if tools.setdefault(name, tool) != tool:
                            raise EnvironmentFault(f"the server documents {name} in two ways, at {place.index}")
                    key = f"{place.split}-{place.index}"
                    self._starts += (self.start_state(key, place.model_dump(), found),)
                seat.place, seat.holder = None, self
            fleet.leave(self)
            self.notes = notes_of_left_out(tools.values(), left_out)
        except EnvironmentFault as fault:
            raise InputError(f"environment.options: {fault}") from None

    def read_start(self, given: JsonValue) -> TaskPlace:
        """Return the place that a task names. Raises InputError for what is none."""
        try:
            return TaskPlace.model_validate(given)
        except ValidationError:
            raise InputError(f"an initial state of {self.name} names split and index under {self.name!r}") from None

    def episode(self, task: TaskSpec, own: partial[ServerWorld], known: partial[ServerWorld]) -> PythonEpisode:
        """Return an episode of a task with a reference, or of the server's own."""
        return PythonEpisode(task, own, known) if any(task.reference) else RewardedEpisode(task, own, self._threshold)

    def _check_state(self, server: Session, place: TaskPlace) -> None:
        one = server.state()
        server.begin(place)
        if not one or one != server.state():
            what = "differs between two resets" if one else "holds nothing beside the number of steps"
            raise InputError(
                f"environment.options.compare: the server's state {what}, so it cannot be compared: set it to reward "
                "(verification then sees results and rewards alone, which is weaker)"
            )


def request_of(first: Stepped) -> str:
    """Return what a task of the server asks for: the text of its first observation, or all of it as JSON."""
    shown: dict[str, JsonValue] = {
        key: value for key, value in first.observation.items() if key != "metadata" and value not in (None, "")
    }
    texts = [shown[key] for key in _REQUESTS if isinstance(shown.get(key), str)]
    return str(texts[0]) if texts else as_text(shown)


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

    def notes(self, environment: Environment) -> tuple[str, ...]:
        """Return what of the server's tools is left out, with the reason."""
        return environment.notes if isinstance(environment, OpenEnvEnvironment) else ()

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
