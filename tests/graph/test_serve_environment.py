"""`coevolve environment serve`: what it refuses, and that a run names the hosts it plays on."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from support.commands import run_here
from support.environment_host import DEPOT, serving

from environments.base import InputError
from environments.hosts.environment import HostedEnvironment, open_for_play
from environments.hosts.messages import TOKEN
from environments.learning_interface.environment import LearningInterface
from environments.settings import EnvironmentSettings
from graph.command import main
from graph.preflight import check_run
from graph.recipe import QUICKSTART, load_recipe, with_raised_budget
from graph.run.stages import _hosts as evaluation_hosts
from graph.run.stages import scoring_settings
from graph.serve_environment import _check_address, _chosen
from memory.run import RunDirectory

OWN = ["environment.name=environments.example:depot", "evaluation.set=null"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "other machines could reach this server, which executes what agents decide: add --net"),
        (["--host", "node7"], "--host node7 is not an address: write one as 127.0.0.1 or 0.0.0.0"),
        (["--network"], "--network has no effect with --host 127.0.0.1: leave it out"),
        (["--environment", "nowhere"], "--environment: 'nowhere' is not an environment: write"),
        (["--environment", "nowhere:shop"], "there is no module 'nowhere'"),
        (["--option", "max_step=3"], "--option: 'max_step' is not an option"),
        (["--option", "max_steps"], "--option max_steps: write it as key=value"),
        (["--recipe", str(QUICKSTART), "--environment", "bfcl"], "--recipe names the environment and its options"),
        (["--recipe", "nothing.yaml"], "nothing.yaml: cannot read this recipe"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], says: str) -> None:
    done = run_here("graph.serve_environment", "serve", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert says in done.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_here("graph.serve_environment", "serve", "--environment", DEPOT.name, "--port", port)
    assert done.returncode == 2
    assert f"error: --port {port}: 127.0.0.1 cannot be listened on" in done.stderr


def test_a_token_that_is_too_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "short")
    done = run_here("graph.serve_environment", "serve")
    assert f"error: {TOKEN} is not a token: set it to 16 or more plain characters" in done.stderr


def test_an_address_that_others_can_reach_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _check_address("0.0.0.0", True, None)
    assert "can be reached from other machines: whoever reaches it (no token is set) plays" in capsys.readouterr().err
    for address in ("127.0.0.1", "localhost", "::1"):
        _check_address(address, False, None)
    assert capsys.readouterr().err == ""


def test_it_is_a_command_of_coevolve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["coevolve", "environment", "serve", "--host", "0.0.0.0"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "error: --host 0.0.0.0" in capsys.readouterr().err


def test_a_host_serves_the_environment_of_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("environment: {options: {max_steps: 7}, hosts: [http://127.0.0.1:9], host_deadline: 5.0}\n")
    chosen = _chosen(recipe, None, [])
    assert (chosen.name, chosen.options["max_steps"], chosen.hosts) == ("bfcl", 7, ())
    assert not isinstance(open_for_play(chosen), HostedEnvironment)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"hosts": ["node7:8765"]}, "'node7:8765' is not the base URL of a host: write it as http://localhost:8765"),
        ({"hosts": ["http://a:1", "http://a:1/"]}, "http://a:1 is named twice: name it once"),
        ({"host_deadline": 3.0}, "'host_deadline' is for hosts, hosts: [] would ignore it: remove it, or set hosts"),
    ],
)
def test_hosts_that_cannot_be(section: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match="validation error") as refusal:
        EnvironmentSettings.model_validate(section)
    assert says in str(refusal.value)


def test_preflight_asks_every_host_and_a_run_plays_there() -> None:
    with serving() as host:
        settings = load_recipe(QUICKSTART, [*OWN, "environment.options={starts: 4}", f"environment.hosts=[{host.url}]"])
        check_run(settings, trains=False)
        opened = open_for_play(settings.environment)
        assert isinstance(opened, HostedEnvironment)
        assert LearningInterface(opened).in_flight == 64
        other = load_recipe(QUICKSTART, [*OWN, "environment.options={starts: 5}", f"environment.hosts=[{host.url}]"])
        with pytest.raises(InputError, match=f'{host.url} serves options {{"starts": 4}} instead of {{"starts": 5}}'):
            check_run(other, trains=False)
    with pytest.raises(InputError, match=f"start {host.url} with `coevolve environment serve`, or leave it out"):
        check_run(settings, trains=False)


def test_a_runs_evaluations_are_started_with_its_hosts() -> None:
    """By options: they are not in the file of settings, so that records do not depend on where episodes are played."""
    settings = load_recipe(QUICKSTART, [*OWN, "environment.hosts=[http://a:1, http://b:2]"])
    assert evaluation_hosts(settings) == ["--hosts", "http://a:1", "--hosts", "http://b:2", "--host-deadline", "120"]
    assert scoring_settings(settings).hosts == ()
    assert evaluation_hosts(load_recipe(QUICKSTART, [*OWN])) == []


def test_a_resumed_run_may_play_elsewhere(tmp_path: Path) -> None:
    before = load_recipe(QUICKSTART, [*OWN, "environment.hosts=[http://a:1]"])
    run = RunDirectory.create(tmp_path / "run", before)
    asked = load_recipe(QUICKSTART, [*OWN, "environment.hosts=[http://b:1, http://c:1]", "environment.host_deadline=9"])
    after = with_raised_budget(before, asked)
    assert after == asked
    run.settings_path.write_text(run.settings_path.read_text().replace("http://a:1", "http://d:1"))
    run.check_settings()
    run.settings_path.write_text(run.settings_path.read_text().replace("depot", "dopot"))
    with pytest.raises(InputError, match=r"environment\.name"):
        run.check_settings()
