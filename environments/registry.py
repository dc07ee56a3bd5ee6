"""Opens the environment that the settings name: BFCL, AppWorld, or a user's own by import path."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from environments.base import Environment, InputError
from environments.settings import APPWORLD, BFCL, EnvironmentSettings


def open_environment(settings: EnvironmentSettings) -> Environment:
    """The environment that ``settings`` names.

    An own environment is what the callable ``module:callable`` returns when it is given ``settings.options``; the
    module is looked for where Python looks, the current folder included. Raises InputError when what is needed is not
    installed, cannot be imported, or does not return an Environment.
    """
    if settings.is_own:
        return _own(settings.name, settings.options)
    assert settings.max_steps is not None
    if settings.name == APPWORLD:
        from environments.appworld.environment import AppWorldEnvironment

        if settings.servers is None:
            return AppWorldEnvironment(settings.max_steps, trust_agent_code=settings.trust_agent_code is True)
        from environments.appworld.servers import AppWorldServers

        return AppWorldEnvironment(settings.max_steps, AppWorldServers(settings.servers))
    from environments.bfcl.environment import BFCLEnvironment

    assert settings.classes is not None
    return BFCLEnvironment(settings.classes, settings.max_steps)


def open_named(
    name: str, max_steps: int | None = None, *, trust_agent_code: bool = False, **of_bfcl: object
) -> Environment:
    """The environment that a command's ``--environment`` names; ``of_bfcl`` are options if that is BFCL.

    ``max_steps`` is an option of BFCL and AppWorld; a user's own environment is opened without it, and so is one that
    runs no agents' code without ``trust_agent_code``.

    Raises InputError like ``open_environment``, and for what is neither bfcl nor appworld nor module:callable.
    """
    options: dict[str, object] = {"max_steps": max_steps} if name in (BFCL, APPWORLD) else {}
    if name == APPWORLD and trust_agent_code:
        options["trust_agent_code"] = True
    try:
        settings = EnvironmentSettings.model_validate({"name": name} | options | (of_bfcl if name == BFCL else {}))
    except ValidationError as error:
        raise InputError(f"--environment: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    return open_environment(settings)


def _own(name: str, options: Mapping[str, JsonValue]) -> Environment:
    factory = find_factory(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        raise InputError(f"environment.options: {name} does not take them ({error})") from error
    except ValueError:  # a callable without a signature says itself what it does not take
        pass
    try:
        opened = factory(**options)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: no run was made, which the user has to hear
        raise InputError(f"environment.name: {name} failed: {_where(error)}") from error
    if not isinstance(opened, Environment):
        raise InputError(
            f"environment.name: {name} returned a {type(opened).__name__}: return an Environment (environments/base.py)"
        )
    if opened.name in (BFCL, APPWORLD):
        raise InputError(f"environment.name: what {name} returns calls itself {opened.name!r}: give it another name")
    return opened


def find_factory(name: str) -> Callable[..., Any]:
    """The callable that ``module:callable`` names. Raises InputError that names the module which is not there, or what
    failed in it."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"environment.name: {module} cannot be imported: {_where(error)}") from error
        raise InputError(
            f"environment.name: there is no module {error.name!r}: start the command in the folder that holds it, or "
            "put that folder on PYTHONPATH"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(f"environment.name: {module} cannot be imported: {_where(error)}") from error
    if not callable(found):
        what = "has no" if found is None else "cannot call"
        raise InputError(f"environment.name: {module} {what} {attribute!r}: name a callable of this module")
    return found  # type: ignore[no-any-return]


def _where(error: BaseException) -> str:
    """The error in one line, with the place in the user's code that raised it."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if len(frames) > 1 else said
