"""From ``module:attribute`` on the command line to the catalogs that it means."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from sparkport.catalog import Catalog
from sparkport.errors import InvalidArgument, SparkportError

__all__ = ["load_catalogs"]

_DEFAULT_ATTRIBUTE = "catalog"


def load_catalogs(target: str) -> list[Catalog]:
    """The catalogs behind ``module:attribute`` or ``path/file.py:attribute``; the attribute is ``catalog`` if left out.

    It is a catalog, several of them, or a function that returns either. All that is wrong with it is InvalidArgument:
    it was named on the command line.
    """
    name, colon, attribute = target.rpartition(":")
    if not colon:
        name, attribute = target, _DEFAULT_ATTRIBUTE
    if not name or not attribute:
        raise InvalidArgument(f"'{target}' is not of the form MODULE:ATTRIBUTE")
    value: object = _import(name)
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as exc:
            raise InvalidArgument(f"module '{name}' has no attribute '{attribute}'") from exc
    if not isinstance(value, Catalog) and callable(value):
        try:
            value = value()
        except Exception as exc:
            raise InvalidArgument(f"'{target}' failed: {_reason(exc)}") from exc
    return _catalogs(value, target)


def _catalogs(value: object, target: str) -> list[Catalog]:
    catalogs: list[Catalog] = []
    for item in value if isinstance(value, Iterable) and not isinstance(value, Catalog) else (value,):
        if not isinstance(item, Catalog):
            raise InvalidArgument(f"'{target}' is no catalog: it gave {type(item).__name__}")
        catalogs.append(item)
    if not catalogs:
        raise InvalidArgument(f"'{target}' gave no catalogs")
    return catalogs


def _import(name: str) -> ModuleType:
    is_path = name.endswith(".py")
    # Python does this for `python -m` and for scripts, not for a console script.
    folder = str(Path(name).resolve().parent if is_path else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _import_path(Path(name)) if is_path else importlib.import_module(name)
    except ModuleNotFoundError as exc:
        # A module that is there but imports one that is not has another problem.
        if exc.name is not None and f"{name}.".startswith(f"{exc.name}."):
            raise InvalidArgument(f"module '{name}' not found") from exc
        raise InvalidArgument(f"'{name}' cannot be imported: {_reason(exc)}") from exc
    except SparkportError as exc:
        raise InvalidArgument(f"'{name}' cannot be imported: {exc.message}") from exc
    except Exception as exc:
        raise InvalidArgument(f"'{name}' cannot be imported: {_reason(exc)}") from exc


def _import_path(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidArgument(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _reason(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"
