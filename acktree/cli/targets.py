"""What a command is to run, and with which settings: the arguments for it, and how they are read.

A target is a Python module with a topology, a file of streamparse, or a YAML file of Storm's Flux.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from acktree.cli.answers import UsageError
from acktree.config import Config, dotted_key
from acktree.core.programs import run_module
from acktree.driver.importing import importing
from acktree.errors import AcktreeError, ConfigError, nearest
from acktree.logs.private_urls import masked_text
from acktree.system.stopped_by import StoppedBySignal
from acktree.topology import Topology, TopologyBuilder

if TYPE_CHECKING:
    from acktree.multilang.loaded import LoadedTopology

YAML: Final = (".yaml", ".yml")
"""How the names of Flux files end."""
_CONFIG: Final = "CONFIG"
"""The name of a module's own settings."""
_IMPORTS_STREAMPARSE: Final = re.compile(r"^\s*(?:from|import)\s+streamparse\b", re.MULTILINE)


def add_target(parser: ArgumentParser, metavar: str, about: str, kind: Callable[[str], str] = str) -> None:
    """Add the arguments that name a topology and its settings; ``kind`` refuses other targets."""
    parser.add_argument("target", metavar=metavar, help=about, type=kind)
    parser.set_defaults(usage_error=parser.error)
    parser.add_argument(
        "-c", dest="settings", action="append", default=[], metavar="KEY=VALUE",
        help="a setting by Storm's dotted key or its name in Config; @FILE: those in the lines of a file",
    )  # fmt: skip
    ours = parser.add_argument_group("of a file of streamparse")
    ours.add_argument("-e", "--environment", help="the environment of config.json; the only one unless given")
    ours.add_argument("--name", help="the topology's name; the file's unless given")
    ours.add_argument(
        "-o", dest="options", action="append", default=[], metavar="KEY=VALUE",
        help="a setting of Storm or of the user, which its components get",
    )  # fmt: skip
    ours = parser.add_argument_group("of a YAML file of Flux")
    ours.add_argument("--filter", metavar="FILE", help="the properties for its ${key}")
    ours.add_argument("--env-filter", action="store_true", help="replace ${ENV-NAME} by the environment's")
    ours.add_argument(
        "--class", dest="classes", action="append", default=[], metavar="JAVA=MODULE:CLASS",
        help="the Python class that takes the place of a Java class",
    )  # fmt: skip


def options_of(arguments: Namespace) -> list[str]:
    """The target and its options as arguments for another process; without the settings."""
    options = {"--environment": arguments.environment, "--name": arguments.name, "--filter": arguments.filter}
    return [
        arguments.target,
        *(f"-o{option}" for option in arguments.options),
        *(f"--class={each}" for each in arguments.classes),
        *(f"{option}={value}" for option, value in options.items() if value is not None),
        *(["--env-filter"] if arguments.env_filter else []),
    ]


def load_target(options: Namespace) -> tuple[Config, Topology]:
    """What a command is to run: a topology with its settings. See :func:`loaded_target`."""
    config, topology, _ = loaded_target(options)
    return config, topology


def loaded_target(options: Namespace) -> tuple[Config, Topology, LoadedTopology | None]:
    """What a command is to run, and how it was read if it is a file of streamparse or Flux.

    Raises:
        ConfigError: There is no such target, or it is no topology.
        UsageError: An option that is none.
    """
    settings = [*with_those_of_files(options.settings)]  # stdin is read once
    config_of(settings)  # a wrong one is refused before anything is imported
    file = Path(options.target.partition(":")[0])
    if file.suffix in YAML:
        loaded = _from_flux(options)
    elif file.suffix == ".py" and file.is_file() and _IMPORTS_STREAMPARSE.search(file.read_text()):
        loaded = _from_streamparse(options)
    else:
        config, topology = in_module(options.target)
        return config_of(settings, config), topology, None
    return config_of(settings, loaded.config), loaded.topology, loaded


def _from_streamparse(arguments: Namespace) -> LoadedTopology:
    from acktree import streamparse  # noqa: PLC0415  # other targets do not need it

    options = dict(map(parsed, arguments.options))
    with importing(arguments.target), _users_errors(f"{arguments.target} cannot be loaded", arguments.target):
        return streamparse.load(
            arguments.target, name=arguments.name, environment=arguments.environment, options=options
        )


def _from_flux(options: Namespace) -> LoadedTopology:
    from acktree import flux  # noqa: PLC0415  # other targets do not need it

    pairs = [each.partition("=") for each in options.classes]
    if not all(java and python for java, _, python in pairs):
        options.usage_error("--class needs JAVA=MODULE:CLASS")
    sys.path.insert(0, str(Path(options.target).absolute().parent))
    with importing(options.target):
        return flux.load(
            options.target,
            properties=options.filter,
            environment=options.env_filter,
            classes={java: python for java, _, python in pairs},
        )


def in_module(target: str) -> tuple[Config, Topology]:
    """What ``MODULE[:NAME]`` names: a topology, and the settings that its module has for it.

    Imports the module. The settings are those that a function returns beside the topology, or else ``CONFIG``
    of the module, or else the defaults.

    Raises:
        ConfigError: There is no such module or name, it is no topology, or the settings are none.
        MisuseError: The module submits a topology when it is imported.
        TopologyError: It is invalid.
    """
    with importing(target):
        return _in_module(target)


def _in_module(target: str) -> tuple[Config, Topology]:
    place, _, name = target.partition(":") if not target.endswith(".py") else (target, "", "")
    module = _module(place, target)
    name = name or "topology"
    known = [each for each, value in vars(module).items() if _is_usable(value, module.__name__)]
    if not hasattr(module, name):
        raise ConfigError(f"module {place!r} has no {name!r}", target, nearest(name, known))
    found, config_name, config = getattr(module, name), _CONFIG, getattr(module, _CONFIG, Config())
    if inspect.isfunction(found) and not _takes_no_arguments(found):
        what = f"{name}() of module {place!r} needs arguments, and is given none"
        raise ConfigError(what, target, f"name one that needs none; {nearest(name, known)}")
    if callable(found):
        with _users_errors(f"{name}() of module {place!r} raises", target):
            found = found()
    if isinstance(found, tuple) and len(found) == 2:  # noqa: PLR2004  # a topology, and its settings
        (found, config), config_name = found, f"the second of {name!r}"
    if isinstance(found, TopologyBuilder):
        found = found.create_topology()
    if not isinstance(found, Topology):
        raise ConfigError(
            f"{name!r} is {type(found).__name__}, and no topology",
            target,
            "name what create_topology() returns, a TopologyBuilder, or a function without arguments "
            "that returns one, or (topology, Config)",
        )
    if not isinstance(config, Config):
        raise ConfigError(
            f"{config_name} is {type(config).__name__}, and no acktree.Config",
            target,
            f"write Config(...) there; give a {_CONFIG} of something else another name",
        )
    return config, found


def function_at(target: str) -> Any:  # noqa: ANN401  # its caller knows what it takes
    """The function that ``MODULE:NAME`` names.

    Raises:
        ConfigError: There is no such module or name, or it is no function.
    """
    place, _, name = target.rpartition(":")
    with importing(target):
        module = _module(place or target, target)
    found = getattr(module, name, None)
    if not callable(found):
        known = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"module {place or target!r} has no function {name!r}", target, nearest(name, known)
        )
    return found


def _is_usable(value: object, module: str) -> bool:
    """Whether a value of a module may be meant: a topology, or a function of its own without arguments."""
    if inspect.isfunction(value) and value.__module__ == module:
        return _takes_no_arguments(value)
    return isinstance(value, (Topology, TopologyBuilder))


def _takes_no_arguments(function: FunctionType) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function, follow_wrapped=False).bind()
    except TypeError:
        return False
    return True


def _module(place: str, target: str) -> Any:  # noqa: ANN401  # a module
    file = Path(place)
    if place.endswith(".py"):
        if not file.is_file():
            raise ConfigError(f"there is no file {place}", target, "name a module or a .py file")
        sys.path.insert(0, str(file.absolute().parent))
        place = file.stem
    elif "/" in place or place.startswith("."):
        found = file.with_name(f"{file.name}.py")
        fix = (
            f"name the file: {found}"
            if found.is_file()
            else "name a module, such as package.module, or a .py file"
        )
        raise ConfigError(f"{place!r} is no name of a module", target, fix)
    try:
        with _users_errors(f"{place or 'nothing'} cannot be imported", target):
            module = importlib.import_module(place)
            run_module(module)
            return module
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{place} cannot be imported: {error}", target, "install what it needs, or run it elsewhere"
            ) from error
        raise ConfigError(
            f"there is no module {place!r}", target, "run this where the module is, or name its .py file"
        ) from error
    except ImportError as error:
        raise ConfigError(f"{place} cannot be imported: {error}", target, "see the error") from error


@contextmanager
def _users_errors(what: str, target: str) -> Iterator[None]:
    """Make errors of the user's code a ConfigError with their traceback; ``sys.exit`` is one too."""
    try:
        yield
    except (AcktreeError, ImportError, StoppedBySignal):  # they say enough
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        users = [each for each in frames if not each.filename.startswith("<frozen")]
        users = [each for each in users if each.filename not in (__file__, importlib.__file__)]
        shown = "".join([*traceback.format_list(users), *traceback.format_exception_only(error)])
        lines = "\n".join(f"    {line}" for line in shown.rstrip().splitlines())
        raise ConfigError(f"{what}:\n{lines}", target, "correct what the traceback shows") from error


def config_of(settings: Iterable[str], others: Config | None = None) -> Config:
    """The settings that ``-c key=value`` gives; a value is JSON, or else a text.

    Args:
        settings: What was given.
        others: The other settings. None: the defaults.

    Raises:
        UsageError: A setting that does not exist, a value that it cannot have, or a file that cannot be read.
    """
    known = {setting.name for setting in fields(Config)}
    dotted: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for setting in with_those_of_files(settings):
        key, value = parsed(setting)
        if key in known:
            key = dotted_key(key)  # read as one: a value may be the name of a class
        (dotted if "." in key else named)[key] = value
    try:
        read = Config.from_mapping(dotted)
        named |= {name: getattr(read, name) for name in known if dotted_key(name) in dotted}
        return replace(others or Config(), **named)
    except ConfigError as error:
        raise UsageError(error.what, error.where, error.fix) from error


def parsed(setting: str) -> tuple[str, Any]:
    """The key and the value of ``key=value``."""
    key, equals, text = setting.partition("=")
    if not equals:
        shown = masked_text(setting, setting.rsplit(maxsplit=1)[-1] if setting.split() else "")
        raise UsageError(f"{shown!r} is no setting", "-c", "write -c key=value, or -c @FILE")
    with suppress(ValueError):
        return key, json.loads(text)
    return key, text


def with_those_of_files(settings: Iterable[str]) -> Iterator[str]:
    """The settings, those of each ``@FILE`` in its place: one a line; ``@-`` is stdin."""
    for setting in settings:
        if not setting.startswith("@"):
            yield setting
            continue
        try:
            text = sys.stdin.read() if setting == "@-" else Path(setting[1:]).read_text("utf-8")
        except (OSError, ValueError, AttributeError) as error:  # the last where stdin is closed
            raise UsageError(
                f"the settings cannot be read: {error}",
                f"-c {setting}",
                "name a file with key=value in each line",
            ) from error
        for number, line in enumerate(map(str.strip, text.split("\n")), 1):
            if line and not line.startswith("#"):
                if "=" not in line:  # and is not shown: it may be the secret
                    raise UsageError(f"line {number} is no setting", f"-c {setting}", "write key=value there")
                yield line
