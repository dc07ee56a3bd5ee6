"""What is installed is pinned: with the hash of each file where `make install` fetches it, and outside known faults."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from support import ROOT
from support.pins import APART, CONSTRAINTS, FOLDER, WITHOUT_PINS, canonical, hashes, pins

LISTS = [FOLDER / f"{name}.txt" for name in ("build", "torch-cpu", "torch", "run", "develop")]
OTHERS = ("environments/bfcl/requirements.txt", "training/models/requirements.txt", "docs/requirements.txt")
EVERY = [CONSTRAINTS, *LISTS, *(ROOT / path for path in (*APART, *WITHOUT_PINS, *OTHERS))]
ADVISORIES = yaml.safe_load((FOLDER / "advisories.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("path", [*LISTS, *(ROOT / path for path in OTHERS[:2])], ids=str)
def test_every_package_has_hashes(path: Path) -> None:
    found = hashes(path)
    assert found
    assert all(found.values())
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(re.match(r"[a-z0-9-]+==|    --hash=sha256:[0-9a-f]{64}( \\)?$", line) for line in lines)


def test_the_lists_have_the_versions_of_the_constraints_and_all_that_the_project_asks_for() -> None:
    build, cpu, torch, run, develop = map(pins, LISTS)
    kept = pins(CONSTRAINTS)
    for found in (build, run, develop):
        assert found.items() <= kept.items()
    assert not {*run} & {*develop}
    assert {*torch} & {*kept} == {*cpu} == {"torch"}
    assert (torch["torch"], cpu["torch"]) == (kept["torch"], f"{kept['torch']}+cpu")
    asked = {"dependencies": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    names = {key: {canonical(re.split(r"[^\w.-]", line)[0]) for line in lines} for key, lines in asked.items()}
    assert names["dependencies"] | names["studio"] <= {*build, *torch, *run}
    assert names["dev"] <= {*build, *run, *develop}
    shared = pins(ROOT / "environments" / "bfcl" / "requirements.txt")
    assert shared.items() <= kept.items()


@pytest.mark.parametrize("path", APART)
def test_an_environment_apart_is_pinned_whole(path: str) -> None:
    lines = [line for line in (ROOT / path).read_text().splitlines() if line and line[0] != "#"]
    assert all(re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+", line) for line in lines)
    assert len(lines) > len(re.findall(r"^[\w\"-]", (ROOT / APART[path]).read_text(), re.MULTILINE))


def test_the_makefile_fetches_by_hash_and_installs_with_these_lists() -> None:
    text = (ROOT / "Makefile").read_text()
    assert "HASHED := $(PIP) install --require-hashes --no-deps --no-build-isolation -r\n" in text
    fetched = set(re.findall(r"\$\(HASHED\) ([\w./-]+)", text))
    assert fetched == {*(f"requirements/{path.name}" for path in LISTS), *OTHERS[:2]}
    others = re.findall(r"(?<!HASHED := )\$\(PIP\) install (.+)", text)
    assert others == ["--no-deps --no-build-isolation -e ."]
    for path in APART:
        assert re.search(rf"install -c (\$\(<D\)/constraints\.txt|{re.escape(path)}) ", text)


def faults(package: str, version: str) -> list[dict[str, object]]:
    """The advisories whose range has this version."""
    return [
        one
        for one in ADVISORIES["advisories"]
        if one["package"] == package and SpecifierSet(one["affected"], prereleases=True).contains(version)
    ]


def test_every_pin_is_outside_every_advisory_or_excused() -> None:
    found = {(str(path.relative_to(ROOT)), name, version) for path in EVERY for name, version in pins(path).items()}
    assert len(found) > 900
    reached = [(*pin, one["ids"]) for pin in sorted(found) for one in faults(*pin[1:]) if not one.get("excused")]
    assert not reached


def test_an_advisory_is_whole_and_an_excuse_is_needed() -> None:
    assert isinstance(ADVISORIES["date"], datetime.date)
    pinned = {pin for path in EVERY for pin in pins(path).items()}
    for one in ADVISORIES["advisories"]:
        assert one.keys() - {"excused"} == {"package", "ids", "affected"}
        assert all(re.fullmatch(r"CVE-\d{4}-\d+|GHSA(-[0-9a-z]{4}){3}", name) for name in one["ids"])
        assert one["package"] in {name for name, _ in pinned}
        if "excused" in one:
            assert len(one["excused"]) > 20
            assert any(one in faults(*pin) for pin in pinned), f"{one['ids']}: no pin is in its range any more"
    assert faults("chromadb", "1.5.9")
    assert not faults("chromadb", "1.6.0")


def test_actions_are_pinned_by_commit() -> None:
    for path in (ROOT / ".github" / "workflows").iterdir():
        used = re.findall(r"uses: (\S+)(.*)", path.read_text())
        assert used
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) and re.search(r"# v\d", rest) for name, rest in used)
