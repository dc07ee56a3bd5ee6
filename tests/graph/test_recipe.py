"""Recipes: what is read, and the one sentence that each mistake gets."""

import re
from pathlib import Path

import pytest
import yaml

from environments.base import InputError
from environments.checkout import QUICKSTART
from graph.export.cards import stated_settings
from graph.settings import RunSettings, changed, dotted, load_recipe
from memory.jsonl import read_recipe
from memory.records import SignalKind
from memory.run import first_change
from training.seal.seal import WINDOW_STEPS, SealSettings

MISTAKES = [
    ("a: [1", [], "not YAML: line 1"),
    ("- 1", [], "a recipe is a mapping of sections"),
    ("seed: 1\nseed: 2", [], "the key 'seed' occurs twice"),
    ("training: {stepz: 5}", [], "unknown key 'training.stepz': did you mean 'steps'?"),
    ("nonsense: 1", [], "unknown key 'nonsense': choose from seed, iterations"),
    ("base: quickstart.yaml\narms: {}", [], "not the recipe of a run, but a study's recipe, which coevolve study runs"),
    ("compute_environment: LOCAL_MACHINE", [], "not the recipe of a run, but a configuration of accelerate, which"),
    (
        "{}",
        ["evaluation.tasks=t.jsonl"],
        "evaluation: 'tasks' is for set: null, templated-dev would ignore it: remove it",
    ),
    ("training: {steps: true}", [], "training.steps: input should be a valid integer"),
    ("training: 5", [], "training: input should be an object"),
    (
        "training: {expert: {passes: 1, reword: true}}",
        [],
        "'reword' is for passes above 1 or replay above 0 or tokens, and there is none: remove it, or set one",
    ),
    ("signals: {coverage_by: need}", [], "'coverage_by' is for contexts: coverage, signals would"),
    ("signals: {kinds: []}", [], "signals.kinds: tuple should have at least 1 item"),
    ("signals: {kinds: [rare, rare]}", [], "signals: 'kinds' lists a kind twice: rare, rare"),
    ("signals: {contexts: coverage, kinds: [rare]}", [], "signals: 'kinds' is for contexts: signals, coverage would"),
    (
        "{signals: {contexts: coverage}, roles: {reflector: {kind: chat, model: m}}}",
        [],
        "'roles.reflector' is for signals.contexts: signals, coverage would ignore it: remove it, or set",
    ),
    (
        "memory: {deduplicate: false, duplicate_above: 0.5}",
        [],
        "memory: 'duplicate_above' is for deduplicate: true, deduplicate: false would ignore it: remove it",
    ),
    (
        "signals: {contexts: unguided, contexts_per_iteration: null}",
        [],
        "signals: 'contexts_per_iteration' is null, and contexts: unguided needs a number: give one",
    ),
    (
        "signals: {last_steps: 5}\ntraining: {steps: 4}",
        [],
        "signals.last_steps is 5 and a round has 4 steps (training.steps): make it 4 at most",
    ),
    ("iterations: 2\ntasks: {admissions: [3]}", [], "tasks.admissions has 1 numbers and the run 2 iterations"),
    ("verification: {mode: agent}", [], "verification.mode is agent, which needs a chat model that carries out drafts"),
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
    (
        "{training: {expert: {passes: 2, reword: true}}, roles: {abstractor: {kind: local}}}",
        [],
        "which would replace those of roles.abstractor of kind local: set it to false",
    ),
    ("roles: {validator: {kind: scripted}}", [], "roles: validator.kind must be chat: no scripted validator exists"),
    (
        "roles: {validator_actions: 5}",
        [],
        "roles: 'validator_actions' is for validator, validator: null would ignore it: remove it, or set validator",
    ),
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


def test_overrides_reach_nested_sections_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("training:\n  learning_rate: 1e-5\n")
    overrides = ["roles.exploration.rounds=9", "tasks.initial=tasks.jsonl", "environment.options.classes=[TravelAPI]"]
    settings = load_recipe(path, [*overrides, "evaluation.set=null", "seed=1", "seed=2"])
    assert settings.training.learning_rate == 1e-5
    assert settings.roles.exploration.rounds == 9
    assert settings.tasks.initial == "tasks.jsonl"
    assert settings.environment.options["classes"] == ["TravelAPI"]
    assert settings.evaluation.set is None
    assert settings.seed == 2


def test_a_file_of_settings_counts_like_each_of_them_in_its_place(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("policy: {lora: {rank: 4}}\ntraining: {micro_batch: 2, seal: null}\n")
    asked = load_recipe(QUICKSTART, ["training.micro_batch=4", f"@{file}", "policy.lora.alpha=8"])
    assert asked.policy.lora is not None
    assert (asked.training.micro_batch, asked.policy.lora.rank, asked.policy.lora.alpha) == (2, 4, 8)
    file.write_text("training: {micro_batches: 2}\n")
    with pytest.raises(InputError, match=rf"^--set @{file}: unknown key 'training.micro_batches': did you mean"):
        load_recipe(QUICKSTART, [f"@{file}"])
    with pytest.raises(InputError, match=r"nowhere\.yaml does not exist"):
        load_recipe(QUICKSTART, ["@nowhere.yaml"])


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


# A study's recipe holds arms; tests/evaluation checks the settings of each. recipes/launch/ has none.
SHIPPED = QUICKSTART.parent.rglob("*.yaml")
RECIPES = sorted(path for path in SHIPPED if path.parent.name != "launch" and "base" not in read_recipe(path))


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
    assert recipe.training.steps == WINDOW_STEPS, "an epoch is an iteration"


def difference(left: RunSettings, right: RunSettings) -> str | None:
    found = first_change(left.model_dump(), right.model_dump())
    return found and found[0]


def test_difference_names_the_setting() -> None:
    settings = RunSettings()
    other = settings.model_copy(update={"training": settings.training.model_copy(update={"kl": 0.5})})
    assert difference(settings, other) == "training.kl"
    assert difference(settings, settings) is None


def test_difference_of_an_own_environments_options(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("environment: {name: 'shop:open'}\nevaluation: {set: null}\n")
    one, more = load_recipe(path, ["environment.options.a=1"]), load_recipe(path, ["environment.options={a: 1, b: 2}"])
    for left, right, key in ((one, more, "b"), (more, one, "b"), (load_recipe(path), one, "a")):
        assert difference(left, right) == f"environment.options.{key}"
    assert difference(one, load_recipe(path, ["environment.options.a=2"])) == "environment.options.a"


def test_an_own_environment_has_no_evaluation_set(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("environment: {name: 'environments.example:depot'}\n")
    with pytest.raises(InputError, match=r"depot has no evaluation set templated-dev: set evaluation.set to null"):
        load_recipe(path)
    assert load_recipe(path, ["evaluation.set=null"]).evaluation.set is None


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("roles.exploration.two_turns", "roles: {exploration: {two_turns: 0.5}}"),
        ("roles.exploration.absent", "roles: {exploration: {absent: 0.5}}"),
        ("roles.exploration.unguided", "roles: {exploration: {unguided: same_rules}}"),
        ("roles.exploration.guidance", "roles: {exploration: {guidance: context}}"),
        ("roles.exploration.references", "roles: {abstractor: {kind: chat}, exploration: {references: cut}}"),
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
        "environment: {name: appworld, options: {servers: ['URL']}}",
        "roles: {explorer: {kind: chat, base_url: 'URL'}}",
        "sampling: {engine: vllm_server, servers: ['URL']}",
    ],
)
def test_no_address_of_a_recipe_holds_a_secret(tmp_path: Path, section: str, url: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(section.replace("URL", url))
    with pytest.raises(InputError) as refused:
        load_recipe(recipe)
    assert SECRET not in str(refused.value)


def test_a_role_of_a_recipe_names_no_variable_of_a_key(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("roles: {explorer: {kind: chat, key_variable: HF_TOKEN}}")
    with pytest.raises(InputError, match=r"roles\.explorer\.key_variable': an address decides its key.*COEVOLVE_KEYS"):
        load_recipe(recipe)
