"""Documents about hangtop itself: its config file, its versions, the scenarios of its demo."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigOption(Struct):
    """An option that the config file may set."""

    help: str
    default: Value
    """What holds where nothing else is said."""
    value: Value
    """What the file makes of it; the command line may still say something else."""
    set: bool
    """Whether the file sets it."""


class ConfigKeys(Struct):
    """The keys of an action of the app."""

    help: str
    group: str
    """Under which heading `?` shows it."""
    screens: tuple[str, ...]
    """Where it can be done; everywhere where that is empty."""
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
    """Whether there is such a file."""
    options: dict[str, ConfigOption]
    """By their names in the file."""
    keys: dict[str, ConfigKeys]
    """By action."""


class Version(Struct):
    """`hangtop --version --json`, with `--verbose` all that a report about a bug needs."""

    schema: Literal["hangtop.version/1"]
    hangtop: str
    facts: dict[str, str]
    """With `--verbose`: versions of libraries and programs with their places, and the terminal."""


class DemoScenario(Struct):
    """One way to hang."""

    name: str
    description: str
    """What goes wrong in it."""
    cause: str | None
    """The [cause](causes.md) that is to be found; null where nothing hangs."""
    culprits: tuple[int, ...]
    """Ranks to blame."""
    ranks: int
    """How many are started."""
    needs: tuple[str, ...]
    """Programs that must be installed."""


class Scenarios(Struct):
    """`hangtop demo --list --json`."""

    schema: Literal["hangtop.scenarios/1"]
    hangtop: str
    scenarios: tuple[DemoScenario, ...]
    """In the order of the list; the first is what `hangtop demo` starts."""
