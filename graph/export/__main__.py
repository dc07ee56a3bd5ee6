"""The command ``coevolve export``: a run's tasks, trajectories or policy as a folder that others can use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, check_output, exit_statuses

if TYPE_CHECKING:
    from graph.settings import RunSettings
    from memory.run import RunDirectory

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Format(StrEnum):
    """Formats of an export without the policy."""

    DATASET = "dataset"
    OPENAI = "openai"


@app.command(cls=OneSentence)
def main(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    output: Annotated[Path, typer.Option(help="new folder to write")],
    form: Annotated[
        Format, typer.Option("--format", help="dataset: a Hugging Face data set; openai: JSON lines of conversations")
    ] = Format.DATASET,
    policy: Annotated[bool, typer.Option("--policy", help="the policy with a model card, instead of data")] = False,
    iteration: Annotated[
        int | None, typer.Option(min=0, help="with --policy: the round that made it; the newest finished one if none")
    ] = None,
    successes: Annotated[
        bool, typer.Option("--successes", help="only trajectories that met the official rule")
    ] = False,
    license_: Annotated[
        str | None,
        typer.Option("--license", help="identifier of the licence that you publish under, such as apache-2.0"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="title of the card; the run's name if none")] = None,
    push: Annotated[str | None, typer.Option(help="OWNER/NAME of a new repository on the hub to upload to")] = None,
    public: Annotated[bool, typer.Option("--public", help="with --push: a public repository; private if not")] = False,
) -> None:
    """Write the tasks and trajectories of RUN, or its policy, as a folder with a card. Nothing is overwritten.

    Content whose environment forbids it is never exported, and such a run's policy is never pushed.

    Exit status: 0, 2 for a user's mistake, 1 when the hub refused an upload.
    """
    from graph.export.hub import HubFailure

    with exit_statuses(HubFailure):
        given = _Given(output, form, policy, iteration, successes, license_, push, public)
        given.check()
        for line in _export(run, given, title):
            print(line, flush=True)


@dataclass(frozen=True)
class _Given:
    """The options of one command."""

    output: Path
    form: Format
    policy: bool
    iteration: int | None
    successes: bool
    licence: str | None
    push: str | None
    public: bool

    def check(self) -> None:
        """Raise InputError for options that do not fit together, before anything is read."""
        from graph.export.cards import check_licence
        from graph.export.hub import check_push

        data = not self.policy and self.form is Format.DATASET
        for wrong, sentence in (
            (self.policy and self.form is not Format.DATASET, "--format is for data, --policy would ignore it"),
            (self.policy and self.successes, "--successes is for trajectories, --policy would ignore it"),
            (self.iteration is not None and not self.policy, "--iteration is for --policy, data are of all iterations"),
            (
                self.licence is not None and not (data or self.policy),
                "--license is for what has a card: a data set, or --policy",
            ),
            (self.public and self.push is None, "--public is for --push"),
            (
                self.push is not None and not (data or self.policy),
                "--push is for what has a card: a data set, or --policy",
            ),
        ):
            if wrong:
                raise InputError(f"{sentence}: leave it out")
        check_licence(self.licence)
        if self.push is not None:
            check_push(self.push)
        check_output("--output", self.output, "folder")


def _export(root: Path, given: _Given, title: str | None) -> Iterator[str]:
    """Write the folder and yield what there is to say of it."""
    from graph.export.content import refuse_unpublishable
    from graph.export.hub import push_folder
    from graph.recipe import load_recipe
    from memory.run import RunDirectory

    run = RunDirectory.open(root)
    settings = load_recipe(run.settings_path)
    run.check_settings()
    if given.push is not None:
        refuse_unpublishable(settings)
    name = title or f"CoEvolve {run.root.resolve().name}"
    with _new_folder(given.output) as folder:
        if given.policy:
            said = _policy(run, settings, folder, given, name)
        else:
            said = _data(run, settings, folder, given, name)
    yield f"{given.output}: {said}"
    if given.push is not None:
        kind = "model" if given.policy else "dataset"
        yield push_folder(given.output, given.push, kind, public=given.public)  # type: ignore[arg-type]


def _policy(run: RunDirectory, settings: RunSettings, folder: Path, given: _Given, title: str) -> str:
    from graph.export.policy import export_policy

    record = export_policy(run, settings, folder, given.iteration, given.licence, title)
    return f"the policy of round {record.iteration}, {record.last_step} steps, with a model card"


def _data(run: RunDirectory, settings: RunSettings, folder: Path, given: _Given, title: str) -> str:
    from graph.export.cards import dataset_card
    from graph.export.content import RunContent
    from graph.export.dataset import TASKS, TRAJECTORIES, write_conversations, write_tables

    content = RunContent(run, settings)
    if given.form is not Format.DATASET:
        return f"{write_conversations(content, folder / 'conversations.jsonl', given.successes)} trajectories"
    if equal := content.contaminated():
        raise InputError(
            f"{run.tasks_path}: {len(equal)} tasks equal held-out ones, {equal[0]} first: a data set with them would "
            "spoil the evaluation of whoever trains on it, remove them"
        )
    tables = write_tables(content, folder, given.successes)
    card = dataset_card(content, tables, given.licence, title, given.successes)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return f"{tables[TASKS]} tasks and {tables[TRAJECTORIES]} trajectories with a card"


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside ``path`` that becomes it when the block ends well, and is removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    made.mkdir()
    try:
        yield made
        # Renaming replaces an empty folder only: one that somebody made meanwhile stays.
        made.rename(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
