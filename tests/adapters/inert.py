"""Frameworks' own configuration code without their heavy packages: what is named becomes an inert module.

Only for processes that do nothing else (`make test-frameworks`): the finder stays installed.
"""

from __future__ import annotations

import abc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path


class _BaseType(abc.ABCMeta):
    """Class attributes that a base would have had are inert too. Abstract bases may be mixed in."""

    def __getattr__(cls, name: str) -> object:
        if _is_special(name):
            raise AttributeError(name)
        value = Inert()
        setattr(cls, name, value)
        return value


class _Base(metaclass=_BaseType):
    """What classes inherit from where their base is inert."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __init_subclass__(cls, **_: object) -> None:
        pass


class Inert:
    """Stands for any value: can be called, subclassed, iterated, entered, compared and computed with.

    Called with one function or class it gives that back, as a decorator does. An attribute is the same one each time.
    """

    def __getattr__(self, name: str) -> object:
        if _is_special(name):
            raise AttributeError(name)
        value = Inert()
        setattr(self, name, value)
        return value

    def __call__(self, *values: object, **named: object) -> object:
        is_decorated = len(values) == 1 and not named and isinstance(values[0], (types.FunctionType, type))
        return values[0] if is_decorated else Inert()

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        return (_Base,)

    def __instancecheck__(self, _: object) -> bool:
        return False

    def __subclasscheck__(self, _: type) -> bool:
        return False

    def __getitem__(self, _: object) -> Inert:
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __or__(self, _: object) -> Inert:
        return self

    def __lt__(self, _: object) -> bool:
        return False

    __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __or__
    __le__ = __gt__ = __ge__ = __lt__


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _InertModule(types.ModuleType):
    """A module of inert values; its version is newer than any that is asked for."""

    __path__: list[str] = []  # noqa: RUF012 - import machinery reads it from the module
    __version__ = "99.0"

    def __getattr__(self, name: str) -> object:
        if _is_special(name):
            raise AttributeError(name)
        value = Inert()
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
