"""What happens without bfcl-eval, and how little importing the environment costs."""

import importlib.metadata
import subprocess
import sys

import pytest

from environments.base import InputError
from environments.bfcl import official
from environments.settings import EnvironmentSettings


def test_without_the_package_there_is_one_sentence_with_the_command(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(InputError) as caught:
        EnvironmentSettings().open()
    assert str(caught.value) == (
        "bfcl-eval is not installed: run `pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0` "
        "(`make install` does it)"
    )


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2025.1.1")
    with pytest.raises(InputError, match=r"bfcl-eval 2025\.1\.1 is installed, .*2026\.3\.23: run `pip install"):
        official.require()


def test_without_mpmath_the_command_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpmath", None)
    for name in [name for name in sys.modules if name.endswith("func_source_code.math_api")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=r"need mpmath, which is not installed: run `pip install --no-deps"):
        official.simulator_class.__wrapped__("MathAPI")


@pytest.mark.process
def test_importing_the_environment_imports_neither_the_package_nor_its_settings():
    program = (
        "import sys; import environments.registry, environments.bfcl.benchmark, environments.bfcl.official;"
        "assert not [m for m in sys.modules if m.startswith(('bfcl_eval', 'mpmath'))];"
        "from environments.settings import EnvironmentSettings;"
        "e = EnvironmentSettings().open();"
        "s = e.starts()[0]; e.tools(s.tools);"
        "assert 'bfcl_eval.constants.eval_config' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
