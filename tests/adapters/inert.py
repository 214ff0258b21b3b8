"""Frameworks' own configuration code without their heavy packages: what is named becomes an inert module.

Only for processes that do nothing else (`make test-frameworks`): the finder stays installed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock


class _InertModule(types.ModuleType):
    """Every attribute is a mock that can be called, entered, subclassed by name only and compared."""

    __path__: list[str] = []  # noqa: RUF012 - import machinery reads it from the module
    __version__ = "99.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[:1].isupper() else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for the named modules and everything below them, before anything that may be installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_named = any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_named else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(*names: str) -> None:
    """Modules with these names, and everything below, become inert."""
    sys.meta_path.insert(0, _Finder(names))


def bare_package(name: str, directory: Path) -> None:
    """A package whose `__init__` is not run, so that only the modules that are asked for are imported."""
    module = types.ModuleType(name)
    module.__path__ = [str(directory)]
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


def package_root(name: str, variable: str, environment: dict[str, str]) -> Path | None:
    """The directory of a package: below the one that `variable` names, or of an installed distribution."""
    given = environment.get(variable)
    if given:
        directory = Path(given) / name
        return directory if directory.is_dir() else None
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None
