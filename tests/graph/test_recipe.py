"""Recipes: what is read, and the one sentence that each mistake gets."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.testing import CliRunner

from environments.base import InputError
from graph.export.content import stated_settings
from graph.recipe import QUICKSTART, difference, load_recipe
from graph.run_iteration import app
from graph.settings import RunSettings, changed, dotted
from memory.former import FORMER_DEFAULTS, FORMER_NAMES, give_former_names
from memory.records import SignalKind
from memory.run import RunDirectory
from training.seal.settings import SealSettings

MISTAKES = [
    ("a: [1", [], "not YAML: line 1"),
    ("- 1", [], "a recipe is a mapping of sections"),
    ("seed: 1\nseed: 2", [], "the key 'seed' occurs twice"),
    ("training: {stepz: 5}", [], "unknown key 'training.stepz': did you mean 'steps'?"),
    ("nonsense: 1", [], "unknown key 'nonsense': choose from seed, iterations"),
    ("base: quickstart.yaml\narms: {}", [], "not the recipe of a run, but a study's recipe, which coevolve study runs"),
    ("compute_environment: LOCAL_MACHINE", [], "not the recipe of a run, but a configuration of the launcher"),
    ("", ["training.lend_refrence=none"], "'training.lend_refrence': did you mean 'experimental.lend_reference'?"),
    (
        "tasks: {sampling: learnability, experimental: {sampling: uniform}}",
        [],
        "tasks.sampling is the former name of tasks.experimental.sampling: remove one of them",
    ),
    ("", ["tasks.sampling=rare"], "tasks.experimental.sampling: input should be 'uniform' or 'learnability'"),
    ("training: {steps: ten}", [], "training.steps: input should be a valid integer"),
    ("training: {steps: true}", [], "training.steps: input should be a valid integer"),
    ("training: {steps: '5'}", [], "training.steps: input should be a valid integer"),
    ("training: {steps: 0}", [], "training.steps: input should be greater than or equal to 1"),
    ("training: 5", [], "training: input should be an object"),
    ("signals: {share_rare: 0.9}", [], "signals: share_forgetting + share_boundary + share_rare is 1.7"),
    (
        "training: {expert: {replay_by: failure}}",
        [],
        "'replay_by' is for replay above 0, replay: 0 would ignore it: remove it, or set replay above 0",
    ),
    (
        "training: {expert: {passes: 1, reword: true}}",
        [],
        "'reword' is for passes above 1 or replay above 0, and there is none: remove it, or set one",
    ),
    ("signals: {coverage_by: need}", [], "'coverage_by' is for contexts: coverage or uncovered above 0, and"),
    ("signals: {kinds: []}", [], "signals.kinds: tuple should have at least 1 item"),
    (
        "signals: {kinds: [stuck]}",
        [],
        "signals.kinds.0: input should be 'forgetting', 'boundary', 'rare' or 'unsolved'",
    ),
    ("signals: {kinds: [rare, rare]}", [], "signals: 'kinds' lists a kind twice: rare, rare"),
    (
        "signals: {kinds: [rare], share_rare: 0, share_boundary: 0.7}",
        [],
        "signals: 'kinds' lists only kinds whose share is 0: rare",
    ),
    (
        "signals: {contexts: random, experimental: {novelty: true}}",
        [],
        "signals: 'experimental.novelty' is for contexts: signals, random would ignore it: remove it",
    ),
    ("signals: {contexts: unguided, kinds: [rare]}", [], "signals: 'kinds' is for contexts: signals, unguided would"),
    (
        "signals: {contexts: random, share_rare: 0.3, share_boundary: 0.4}",
        [],
        "signals: 'share_boundary' is for contexts: signals, random would ignore it: remove it",
    ),
    (
        "signals: {contexts: guided}",
        [],
        "signals.contexts: input should be 'signals', 'random', 'unguided' or 'coverage'",
    ),
    (
        "signals: {unsolved_rounds: 5}",
        [],
        "'unsolved_rounds' is for kinds: unsolved, kinds: [forgetting, boundary, rare] would ignore it",
    ),
    (
        "signals: {share_unsolved: 0.2}",
        [],
        "'share_unsolved' is for kinds: unsolved, kinds: ",
    ),
    (
        "signals: {definition: group, kinds: [rare, unsolved]}",
        [],
        "signals: 'kinds' lists unsolved, which definition: group cannot find",
    ),
    ("signals: {contexts: coverage, kinds: [rare]}", [], "signals: 'kinds' is for contexts: signals, coverage would"),
    ("signals: {contexts: random, uncovered: 2}", [], "signals: 'uncovered' is for contexts: signals, random would"),
    ("signals: {contexts: coverage, contexts_per_iteration: null}", [], "contexts: coverage needs a number: give one"),
    (
        "signals: {uncovered: 4, contexts_per_iteration: 4}",
        [],
        "signals: 'uncovered' is 4 of contexts_per_iteration: 4, and leaves none for signals: make it smaller",
    ),
    (
        "{signals: {contexts: coverage}, roles: {reflector: {kind: chat, model: m}}}",
        [],
        "'roles.reflector' is for signals.contexts: signals, coverage would ignore it: remove it, or set",
    ),
    (
        "memory: {deduplicate: false, recur_after: 5}",
        [],
        "memory: 'recur_after' is for deduplicate: true, deduplicate: false would ignore it: remove it",
    ),
    (
        "signals: {definition: group, pattern: called}",
        [],
        "signals: 'pattern' is for definition: paper, group would ignore it: remove it",
    ),
    ("", ["signals.pattern_length=3"], "signals: 'pattern_length' is for definition: group, paper would ignore it"),
    (
        "signals: {contexts: unguided, contexts_per_iteration: null}",
        [],
        "signals: 'contexts_per_iteration' is null, and contexts: unguided needs a number: give one",
    ),
    (
        "signals: {context_per: task}",
        [],
        "signals: 'context_per' is for contexts_per_iteration: null, contexts_per_iteration: 24 would ignore it",
    ),
    (
        "signals: {last_steps: 5}\ntraining: {steps: 4}",
        [],
        "signals.last_steps is 5 and a round has 4 steps (training.steps): make it 4 at most",
    ),
    (
        "verification: {experimental: {perturbed: 1.5}}",
        [],
        "verification.experimental.perturbed: input should be less than or equal to 1",
    ),
    ("iterations: 2\ntasks: {admissions: [3]}", [], "tasks.admissions has 1 numbers and the run 2 iterations"),
    ("iterations: 1\ntasks: {admissions: [-3]}", [], "tasks.admissions.0: input should be greater than or equal to 0"),
    (
        "signals: {contexts: random}\nroles: {reflector: {kind: chat}}",
        [],
        "'roles.reflector' is for signals.contexts: signals, random would ignore it",
    ),
    (
        "signals: {contexts: unguided}\nroles: {reflector: {kind: chat}}",
        [],
        "'roles.reflector' is for signals.contexts: signals, unguided would",
    ),
    ("verification: {mode: agent}", [], "verification.mode is agent, which needs a chat model that carries out drafts"),
    ("verification: {mode: both}", [], "verification.mode is both, which needs a chat model"),
    (
        "roles: {validator: {kind: chat}}",
        [],
        "'roles.validator' is for verification.mode: agent or both, deterministic would ignore it",
    ),
    (
        "{training: {expert: {reword: true}}, roles: {abstractor: {kind: chat, model: m}}}",
        [],
        "training.expert.reword writes user turns anew by rules",
    ),
    ("roles: {validator: {kind: scripted}}", [], "roles: validator.kind must be chat: no scripted validator exists"),
    (
        "roles: {validator_actions: 5}",
        [],
        "roles: 'validator_actions' is for validator, validator: null would ignore it: remove it, or set validator",
    ),
    ("verification: {completion: outcome}", [], "verification: 'completion' is for mode: agent or both"),
    (
        "roles: {exploration: {min_reference_calls: 4}}",
        [],
        "roles.exploration: 'min_reference_calls' (4) is above 'max_reference_calls' (3): no draft could be made",
    ),
    (
        "roles: {exploration: {min_reference_calls: 7, max_reference_calls: 9}}",
        [],
        "roles.exploration.min_reference_calls (7) is above verification.max_calls (6): every draft would be refused",
    ),
    ("roles: {explorer: {temperature: 0.5}}", [], "roles.explorer: 'temperature' is for kind: chat"),
    ("roles: {budget: {calls: 5}}", [], "roles: 'budget' is for reflector.kind: chat or explorer.kind: chat or "),
    ("", ["foo"], "--set foo: write it as key=value"),
    ("", ["=1"], "--set =1: write it as key=value"),
    ("", ["training..steps=1"], "--set training..steps=1: write it as key=value"),
    ("", ["training.steps=ten"], "--set training.steps=ten: training.steps: input should be a valid integer"),
    ("", ["training.stepz=1"], "--set training.stepz=1: unknown key 'training.stepz'"),
    ("", ["training.steps=[1"], "--set training.steps=[1: not YAML: line 1"),
    ("seed: 3", ["seed.x=1"], "--set seed.x=1: 'seed' is a value, not a section"),
    ("", ["signals.share_rare=0.9"], "--set signals.share_rare=0.9: signals: share_forgetting"),
]


@pytest.mark.parametrize(("text", "overrides", "message"), MISTAKES)
def test_each_mistake_is_told_in_one_sentence(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_recipe(path, overrides)
    told = str(caught.value)
    assert message in told
    assert "\n" not in told
    assert told.startswith(f"--set {overrides[0]}" if overrides else str(path))


@pytest.mark.parametrize("override", ["training.stepz=1", "training.steps=ten"])
def test_the_command_exits_with_2_and_writes_nothing(tmp_path: Path, override: str) -> None:
    result = CliRunner().invoke(app, ["--run", str(tmp_path / "run"), "--set", override])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert override in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.yaml: cannot read this recipe"):
        load_recipe(tmp_path / "none.yaml")


def test_overrides_reach_nested_sections_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("training:\n  learning_rate: 1e-5\n")
    overrides = ["roles.exploration.rounds=9", "tasks.initial=tasks.jsonl", "environment.classes=[TravelAPI]"]
    settings = load_recipe(path, [*overrides, "evaluation.set=null", "seed=1", "seed=2"])
    assert settings.training.learning_rate == 1e-5
    assert settings.roles.exploration.rounds == 9
    assert settings.tasks.initial == "tasks.jsonl"
    assert settings.environment.options["classes"] == ["TravelAPI"]
    assert settings.evaluation.set is None
    assert settings.seed == 2


def test_the_settings_of_an_arm_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("iterations: 2\nsignals: {kinds: [rare, forgetting]}\ntasks: {admissions: [3, 0]}\n")
    settings = load_recipe(path)
    assert settings.signals.kinds == (SignalKind.RARE, SignalKind.FORGETTING)
    assert settings.tasks.admissions == (3, 0)
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    assert load_recipe(path) == settings


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("# nothing\n")
    assert load_recipe(path) == RunSettings()


# A study's recipe holds arms; tests/evaluation checks the settings of each. recipes/launch/ is accelerate's.
SHIPPED = QUICKSTART.parent.rglob("*.yaml")
RECIPES = sorted(
    path for path in SHIPPED if not path.name.startswith("study") and path.parent.name not in ("papers", "launch")
)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_shipped_recipes_are_valid_and_strict(path: Path) -> None:
    assert difference(load_recipe(path), load_recipe(path)) is None
    for unknown in ("training.stepz", "signals.window_size", "nonsense"):
        with pytest.raises(InputError, match=f"unknown key '{unknown}'"):
            load_recipe(path, [f"{unknown}=1"])


def test_a_shipped_recipe_warns_of_nothing_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load_recipe(Path("recipes/quickstart.yaml"))
    assert capsys.readouterr().err == ""


MOVING = "training.seal.weights={dynamic: true}"
STATIC = "training.seal.interface={recovery_hints: false, constraint_cues: false}"
MODES = {
    "rl": ["training.seal=null"],
    "seal": [],
    "seal-no-interface": [MOVING, "training.seal.interface=null"],
    "seal-no-weights": ["training.seal.weights=null", STATIC],
    "seal-no-loop": [STATIC],
    "seal-as-released": [MOVING, STATIC],
    "seal-cap-abstention": ["training.seal.weights={dynamic: true, cap_abstention: true}", STATIC],
    "coevolve-seal": [
        "tasks.evolved_share=0.5",
        "signals.contexts_per_iteration=32",
        "roles.chat.model=qwen3-max",
        "roles.reflector.kind=chat",
        "roles.explorer.kind=chat",
        "roles.abstractor.kind=chat",
        "roles.exploration={rounds: 3, steps: 10, max_reference_calls: 6}",
    ],
}
"""How each mode of SEAL's protocol differs from its recipe."""


def test_the_modes_of_seals_protocol_differ_in_their_mode_alone() -> None:
    folder = QUICKSTART.parent / "seal-bfcl"
    assert sorted(path.stem for path in folder.iterdir()) == sorted(MODES)
    for name, overrides in MODES.items():
        asked = load_recipe(folder / "seal.yaml", overrides)
        assert difference(load_recipe(folder / f"{name}.yaml"), asked) is None, name
    recipe = load_recipe(folder / "seal.yaml")
    assert recipe.training.seal == SealSettings(), "what is written out are the defaults"
    assert recipe.iterations * recipe.training.steps == 72
    assert SealSettings().weights.window_steps == recipe.training.steps, "an epoch is an iteration"


@pytest.mark.slow
@hypothesis_settings(max_examples=25)  # each is YAML of every setting; numbers alone: tests/memory/test_strict_yaml.py
@given(
    seed=st.integers(min_value=0, max_value=2**40),
    rate=st.floats(min_value=1e-9, max_value=1.0),
    steps=st.integers(min_value=1, max_value=1000),
)
def test_settings_written_by_a_run_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rate: float, steps: int
) -> None:
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "recipe.yaml"
    path.write_text("")
    overrides = [f"seed={seed}", f"training.learning_rate={rate!r}", f"training.steps={steps}"]
    settings = load_recipe(path, overrides)
    assert (settings.seed, settings.training.learning_rate, settings.training.steps) == (seed, rate, steps)
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    assert load_recipe(path) == settings


def test_a_run_of_an_earlier_version_keeps_its_signals(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """Its settings.yaml has every section and not the key, which would mean something else by default."""
    made = RunSettings().model_dump(mode="json")
    assert made["signals"].pop("definition") == "paper"
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(made))
    assert load_recipe(path).signals.definition == "group"
    assert capsys.readouterr().err == (
        f'warning: {path}: an earlier version made this run: it goes on with signals.definition="group"\n'
    )
    path.write_text("signals: {window: 5}\n")
    assert load_recipe(path).signals.definition == "paper"
    assert capsys.readouterr().err == ""


def section_of(key: str) -> type[BaseModel]:
    """The section that a dotted key is in."""
    model: type[BaseModel] = RunSettings
    for name in key.split(".")[:-1]:
        annotation = model.model_fields[name].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return model


@pytest.mark.parametrize(("former", "today"), FORMER_NAMES.items())
def test_a_setting_that_moved_is_in_its_section_of_today_alone(former: str, today: str) -> None:
    assert today.rpartition(".")[2] in section_of(today).model_fields
    assert former.rpartition(".")[2] not in section_of(former).model_fields


FORMER = {
    "signals.novelty": True,
    "tasks.sampling": "learnability",
    "tasks.sampling_floor": 0.2,
    "tasks.retire_above": 0.9,
    "tasks.retest_every": 2,
    "tasks.newest_groups": 4,
    "training.lend_reference": "supervised",
    "training.lend_at_most": 5,
    "training.lend_weight": 0.7,
    "verification.perturbed": 0.25,
}
"""What moved to the experimental sections, none at its default."""


def test_former_keys_work_with_one_warning(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """Of a file one line, whatever the number of its former keys; of overrides one each."""
    assert {key for key, today in FORMER_NAMES.items() if ".experimental." in today} == set(FORMER)
    path = tmp_path / "recipe.yaml"
    path.write_text("")
    today = load_recipe(path, [f"{FORMER_NAMES[key]}={value}" for key, value in FORMER.items()])
    assert today.verification.experimental.perturbed == 0.25
    assert capsys.readouterr().err == ""
    by_option = load_recipe(path, [f"{key}={value}" for key, value in FORMER.items()])
    assert capsys.readouterr().err.splitlines() == [
        f"warning: --set {key}={value}: {key} is called {FORMER_NAMES[key]} now, the old name works for one release"
        for key, value in FORMER.items()
    ]
    sections: dict[str, dict[str, object]] = {}
    for key, value in FORMER.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    path.write_text(yaml.safe_dump(sections))
    by_file = load_recipe(path)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {path}: signals.novelty is called signals.experimental.novelty now, ")
    assert warning.endswith(", the old names work for one release")
    assert all(f"{key} is called {FORMER_NAMES[key]} now" in warning for key in FORMER)
    by_section = load_recipe(QUICKSTART, [f"tasks={sections['tasks']}".replace("'", "")])
    assert by_file == by_option == today
    assert by_section.tasks == today.tasks


def test_former_keys_in_the_settings_of_a_run_are_read_in_silence(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """A run has written out every key, and nobody may rename one there."""
    (tmp_path / "recipe.yaml").write_text("")
    made = load_recipe(tmp_path / "recipe.yaml", [f"{FORMER_NAMES[key]}={value}" for key, value in FORMER.items()])
    for settings in (RunSettings(), made):
        tree = settings.model_dump(mode="json")
        give_former_names(tree)
        assert tree["training"]["lend_reference"] == settings.training.experimental.lend_reference
        path = tmp_path / "settings.yaml"
        path.write_text(yaml.safe_dump(tree))
        assert load_recipe(path) == settings
        assert capsys.readouterr().err == ""


def test_difference_names_the_setting() -> None:
    settings = RunSettings()
    other = settings.model_copy(update={"training": settings.training.model_copy(update={"kl": 0.5})})
    assert difference(settings, other) == "training.kl"
    assert difference(settings, settings) is None


def test_difference_of_an_own_environments_options(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("environment: {name: 'shop:open'}\nevaluation: {set: null}\n")
    one, more = load_recipe(path, ["environment.options.a=1"]), load_recipe(path, ["environment.options={a: 1, b: 2}"])
    for left, right in ((one, more), (more, one), (load_recipe(path), one)):
        assert difference(left, right) == "environment.options"
    assert difference(one, load_recipe(path, ["environment.options.a=2"])) == "environment.options.a"


def test_an_own_environment_has_no_evaluation_set(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("environment: {name: 'environments.example:depot'}\n")
    with pytest.raises(InputError, match=r"depot has no evaluation set templated-dev: set evaluation.set to null"):
        load_recipe(path)
    assert load_recipe(path, ["evaluation.set=null"]).evaluation.set is None


def test_the_old_names_of_a_benchmarks_options_work_with_a_warning(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("environment: {classes: [TravelAPI], max_steps: 7}\n")
    new.write_text("environment: {options: {classes: [TravelAPI], max_steps: 7}}\n")
    assert load_recipe(new, ["environment.options.max_steps=8"]) == load_recipe(
        new, ["environment.options={classes: [TravelAPI], max_steps: 8}"]
    )
    assert capsys.readouterr().err == ""
    assert load_recipe(old) == load_recipe(new)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"warning: {old}: environment.classes is now environment.options.classes: rename it")
    assert "environment.max_steps is now environment.options.max_steps" in second
    assert load_recipe(new, ["environment.max_steps=9"]).environment.max_actions == 9
    assert "--set environment.max_steps=9: environment.max_steps is now" in capsys.readouterr().err
    assert load_recipe(old, ["environment.options.max_steps=9"]).environment.max_actions == 9
    old.write_text("environment: {max_steps: 7, options: {max_steps: 8}}\n")
    with pytest.raises(InputError, match=r"old.yaml: environment.max_steps is the old name of .*: give one of them"):
        load_recipe(old)


def test_the_shipped_recipes_do_not_warn(capsys) -> None:  # type: ignore[no-untyped-def]
    settings = load_recipe(QUICKSTART)
    assert settings.environment.options["classes"] == ["GorillaFileSystem", "VehicleControlAPI"]
    assert capsys.readouterr().err == ""


EXPERIMENTAL_OFF = {
    "signals": {"novelty": False},
    "tasks": {"sampling": "uniform", "retire_above": None},
    "training": {"dynamic_sampling": None, "lend_reference": "none"},
    "verification": {"perturbed": 0.0},
}
"""The switches of the experimental sections; their other options have no effect without these."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_what_no_study_has_shown_to_help_is_off(path: Path) -> None:
    """Rule 9: by default, and in every shipped recipe but one of ours, which says why."""
    on = []
    for settings in (RunSettings(seed=0), load_recipe(path)):
        sections = {name: getattr(settings, name).experimental for name in EXPERIMENTAL_OFF}
        on += [
            f"{name}.{key}"
            for name, switches in EXPERIMENTAL_OFF.items()
            for key, off in switches.items()
            if getattr(sections[name], key) != off
        ]
    assert on == (["training.lend_reference"] if path.name == "appworld-quickstart.yaml" else [])


BASES_OF_RECORDED_STUDIES = {"grpo-base.yaml", "world.yaml"}


def test_a_copy_of_a_shipped_recipe_does_not_warn(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """But for those whose content recorded hashes are of: the bases of the studies in ``results/``."""
    warned = set()
    for path in RECIPES:
        copy = tmp_path / path.name
        copy.write_text(path.read_text())
        load_recipe(copy)
        if capsys.readouterr().err:
            warned.add(path.name)
    assert warned == BASES_OF_RECORDED_STUDIES


def test_a_run_of_an_earlier_release_goes_on_as_it_was_made(tmp_path: Path) -> None:
    """Its settings.yaml has every key of its release, and none of those whose defaults differ from what it did."""
    path = tmp_path / "settings.yaml"
    tree = load_recipe(QUICKSTART).model_dump(mode="json")
    for key in ("independent", "order"):
        del tree["roles"]["exploration"][key]
    path.write_text(yaml.safe_dump(tree))
    kept = load_recipe(path).roles.exploration
    assert (kept.independent, kept.order) == (False, "easy_first")
    (tmp_path / "recipe.yaml").write_text(path.read_text())
    fresh = load_recipe(tmp_path / "recipe.yaml").roles.exploration
    assert (fresh.independent, fresh.order) == (True, "long_first")


@pytest.mark.parametrize("key", FORMER_DEFAULTS)
def test_todays_defaults_of_the_table_are_those_of_the_settings(key: str) -> None:
    """The table is read where the settings of a run are not known."""
    assert section_of(key).model_fields[key.rpartition(".")[2]].default == FORMER_DEFAULTS[key].now


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("roles.exploration.two_turns", "roles: {exploration: {two_turns: 0.5}}"),
        ("roles.exploration.unguided", "roles: {exploration: {unguided: same_rules}}"),
        ("training.expert.reword", "training: {expert: {reword: true}}"),
    ],
)
def test_an_option_of_the_general_rules_is_refused_where_a_benchmark_has_rules_of_its_own(
    tmp_path: Path, key: str, section: str
) -> None:
    recipe = tmp_path / "own.yaml"
    text = f"environment: {{name: NAME}}\nevaluation: {{set: null}}\n{section}\n"
    recipe.write_text(text.replace("NAME", "bfcl"))
    assert dotted(load_recipe(recipe))[key]
    recipe.write_text(text.replace("NAME", "appworld"))
    with pytest.raises(InputError, match=rf"{re.escape(key)}: appworld has scripted roles of its own"):
        load_recipe(recipe)


SECRET = "secret-of-the-user"


def test_options_of_a_users_own_environment_are_shown_by_their_names_alone(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    environment = f"{{name: 'environments.example:depot', options: {{api_key: {SECRET}}}}}"
    recipe.write_text(f"environment: {environment}\nevaluation: {{set: null}}\n")
    settings = load_recipe(recipe)
    assert settings.environment.options == {"api_key": SECRET}
    for shown in (dotted(settings), changed(settings), stated_settings(settings)):
        assert "environment.options.api_key" in shown
        assert SECRET not in str(shown)
    recipe.write_text("environment: {name: bfcl, options: {classes: [TradingBot]}}")
    assert "TradingBot" in str(stated_settings(load_recipe(recipe)))


@pytest.mark.parametrize("url", [f"http://user:{SECRET}@host", f"http://host/?key={SECRET}", f"http://host/#{SECRET}"])
@pytest.mark.parametrize(
    "section",
    [
        "environment: {hosts: ['URL']}",
        "environment: {name: appworld, options: {servers: ['URL'], trust_agent_code: true}}",
        "roles: {explorer: {kind: chat, base_url: 'URL'}}",
        "sampling: {engine: vllm_server, servers: ['URL']}",
    ],
)
def test_no_address_of_a_recipe_holds_a_secret(
    tmp_path: Path, section: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVOLVE_TRUST_AGENT_CODE", "1")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(section.replace("URL", url))
    with pytest.raises(InputError) as refused:
        load_recipe(recipe)
    assert SECRET not in str(refused.value)


def test_a_role_of_a_recipe_names_no_variable_of_a_key_and_that_of_an_old_run_is_left_out(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("roles: {explorer: {kind: chat, key_variable: HF_TOKEN}}")
    with pytest.raises(InputError, match=r"roles\.explorer\.key_variable': an address decides its key.*COEVOLVE_KEYS"):
        load_recipe(recipe)
    run = RunDirectory.create(tmp_path / "run", load_recipe(QUICKSTART))
    tree = yaml.safe_load(run.settings_path.read_text())
    for role in ("reflector", "explorer"):
        tree["roles"][role]["key_variable"] = "OPENAI_API_KEY"
    run.settings_path.write_text(yaml.safe_dump(tree))
    assert load_recipe(run.settings_path) == load_recipe(QUICKSTART)
