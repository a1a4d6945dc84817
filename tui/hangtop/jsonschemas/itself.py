"""Documents about hangtop itself: its config file, its versions, the scenarios of its demo."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigOption(Struct):
    """An option that the config file may set."""

    help: str
    default: Value
    """The default of the option."""
    value: Value
    """The value with the config file applied; the command line may still override it."""
    set: bool
    """Whether the file sets it."""


class ConfigKeys(Struct):
    """The keys of an action of the app."""

    help: str
    group: str
    """Heading under which `?` shows it."""
    screens: tuple[str, ...]
    """Screens on which it is available; empty for all screens."""
    default: tuple[str, ...]
    """Its keys without the file."""
    value: tuple[str, ...]
    """Its keys."""
    set: bool
    """Whether the file changes them."""


class Config(Struct):
    """`hangtop config --json`."""

    schema: Literal["hangtop.config/1"]
    hangtop: str
    path: str
    exists: bool
    """Whether the file exists."""
    options: dict[str, ConfigOption]
    """By their names in the file."""
    keys: dict[str, ConfigKeys]
    """By action."""


class Version(Struct):
    """`hangtop --version --json`; with `--verbose` everything that a bug report needs."""

    schema: Literal["hangtop.version/1"]
    hangtop: str
    facts: dict[str, str]
    """With `--verbose`: versions of libraries and programs with their paths, and the terminal."""


class DemoScenario(Struct):
    """One way to hang."""

    name: str
    description: str
    """What goes wrong in it."""
    cause: str | None
    """The expected [cause](causes.md); null where nothing hangs."""
    culprits: tuple[int, ...]
    """Culprit ranks."""
    ranks: int
    """Number of ranks that are started."""
    needs: tuple[str, ...]
    """Programs that must be installed."""


class Scenarios(Struct):
    """`hangtop demo --list --json`."""

    schema: Literal["hangtop.scenarios/1"]
    hangtop: str
    scenarios: tuple[DemoScenario, ...]
    """In the order of the list; the first is what `hangtop demo` starts."""
