"""Imports the application that ``MODULE:APP`` names."""

from __future__ import annotations

import functools
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from affinity.composed.app import App
from affinity.errors import InvalidApp
from affinity.user_code import leads_to_code


def load_app(target: str) -> App:
    """Import the app that ``MODULE:APP`` names; modules in the working directory are found first.

    Raises:
        InvalidApp: the form, the import, the attribute or what it holds is wrong; the message names it, and its place.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise InvalidApp(f"{target!r}: use MODULE:APP, for example support:app for the variable `app` in support.py")
    if "/" in module_name or module_name.endswith(".py"):
        raise InvalidApp(f"{target!r}: {module_name!r} is a path; name the module as an import would, without .py")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return _app_in(_import(module_name), attribute)


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            where = f"in {Path.cwd()} or on the import path"
            raise InvalidApp(f"there is no module {error.name!r} {where}") from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> InvalidApp:
    """The error of a module that was found but does not import, with the last line of a traceback that is of the
    application, if there is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if not leads_to_code(frame.filename)] or frames)[-1]
    place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
    return InvalidApp(f"module {name!r} does not import: {type(error).__name__}: {error} ({place})")


def _app_in(module: ModuleType, attribute: str) -> App:
    try:
        found = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has {', '.join(apps)}" if apps else ""
        raise InvalidApp(f"module {module.__name__!r} has no {attribute!r}{hint}") from None
    if not isinstance(found, App):
        raise InvalidApp(f"{module.__name__}:{attribute} is not an affinity.App, but of type {type(found).__name__}")
    return found
