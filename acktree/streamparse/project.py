"""A streamparse project: ``config.json``, its environments, and the files with topologies."""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from acktree import AcktreeError, ConfigError, errors
from acktree.streamparse.aliases import install
from acktree.streamparse.dsl import Topology
from acktree.system.stopped_by import StoppedBySignal

__all__ = ["environment_of", "options_of", "read_config", "topology_file", "topology_in"]

_OURS: Final = Path(errors.__file__).parent
_VIRTUALENV: Final = (
    "install_virtualenv", "use_virtualenv", "virtualenv_flags", "virtualenv_root", "virtualenv_name"
)  # fmt: skip


def read_config(config_file: TextIO | None = None, folder: Path | None = None) -> dict[str, Any]:
    """The project's configuration.

    Args:
        config_file: An open file. None: ``config.json`` of the folder.
        folder: The project. None: the working folder.

    Raises:
        ConfigError: There is no such file, or it is not a JSON object.
    """
    file = (folder or Path()) / "config.json"
    where = str(getattr(config_file, "name", file))
    try:
        config = json.loads(file.read_text("utf-8") if config_file is None else config_file.read())
    except OSError as error:
        fix = "run this in the folder of a project; `acktree sparse quickstart NAME` makes one"
        raise ConfigError(
            f"the project's configuration cannot be read: {error.strerror}", where, fix
        ) from error
    except ValueError as error:
        raise ConfigError(f"the project's configuration is not JSON: {error}", where, "correct it") from error
    if not isinstance(config, dict):
        raise ConfigError("the project's configuration is not a JSON object", where, 'write {"envs": {...}}')
    return config


def environment_of(config: Mapping[str, Any], name: str | None) -> tuple[str, dict[str, Any]]:
    """The environment of this name, or the only one.

    Raises:
        ConfigError: There is no such environment, or there are several and none is named.
    """
    environments: Mapping[str, dict[str, Any]] = config.get("envs", {})
    if name is None and len(environments) == 1:
        name = next(iter(environments))
    if name is None:
        what = f"the project has {len(environments)} environments, and none is named"
        raise ConfigError(what, "config.json, envs", f"name one with -e; {errors.nearest('', environments)}")
    if name not in environments:
        what = f"the project has no environment {name!r}"
        raise ConfigError(what, "config.json, envs", errors.nearest(name, environments))
    common = {"serializer": config["serializer"]} if "serializer" in config else {}
    return name, {**common, **environments[name]}


def topology_file(
    config: Mapping[str, Any], name: str | None, folder: Path | None = None
) -> tuple[str, Path]:
    """The name and the file of a topology: the one of this name, or the only one.

    Raises:
        ConfigError: There is no such file, or there are several and none is named.
    """
    specs = (folder or Path()) / str(config.get("topology_specs", "topologies/"))
    files = {file.stem: file for file in sorted(specs.glob("*.py"))}
    if name is None and len(files) == 1:
        name = next(iter(files))
    if name is None:
        what = f"there are {len(files)} topologies, and none is named" if files else "there is no topology"
        raise ConfigError(what, str(specs), f"name one with -n; {errors.nearest('', files)}")
    if name not in files:
        raise ConfigError(f"there is no topology {name!r}", str(specs), errors.nearest(name, files))
    return name, files[name]


def topology_in(file: Path, class_name: str | None = None) -> type[Topology]:
    """The topology class of a file, which is imported with the project's folders on ``sys.path``.

    Raises:
        ConfigError: There is no file, no such class, or more than one.
    """
    if not file.is_file():
        raise ConfigError(f"there is no file {file}", str(file), "name the file of a topology")
    install()
    module = _imported(file.absolute())
    classes = {
        name: each
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, Topology) and each.specs
    }
    own = {name: each for name, each in classes.items() if each.__module__ == module.__name__}
    if class_name is not None:
        if class_name not in classes:
            what = f"{file} has no topology class {class_name!r}"
            raise ConfigError(what, str(file), errors.nearest(class_name, classes))
        return classes[class_name]
    usable = own or classes
    if len(usable) != 1:
        what = f"{file} has {len(usable)} topology classes"
        fix = (
            f"name one: {file}:{next(iter(usable))}" if usable else "derive a class from streamparse.Topology"
        )
        raise ConfigError(what, str(file), fix)
    return next(iter(usable.values()))


def _imported(file: Path) -> Any:
    folders = [file.parent.parent / "src", file.parent, file.parent.parent]
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None, "it is a .py file"
    assert spec.loader is not None, "it is a .py file"
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except (AcktreeError, StoppedBySignal):  # they say enough
        del sys.modules[file.stem]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[file.stem]
        frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_of_user(each.filename)]
        shown = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
        lines = "\n".join(f"    {line}" for line in shown.rstrip().splitlines())
        what = f"{file.name} cannot be imported:\n{lines}"
        fix = "correct what the traceback shows; a package that is missing is to be installed"
        raise ConfigError(what, str(file), fix) from error
    return module


def _is_of_user(file: str) -> bool:
    """Whether a file is neither acktree's nor of the machinery of imports."""
    return not file.startswith("<frozen") and _OURS not in Path(file).parents


def options_of(
    options: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
    topology: Any,
    name: str,
) -> dict[str, Any]:
    """The settings of a topology: the environment's, the topology's, the options; later ones win."""
    settings: dict[str, Any] = dict(environment.get("options", {}))
    if "serializer" in environment:
        settings["topology.multilang.serializer"] = environment["serializer"]
    if environment.get("use_virtualenv", True) and "virtualenv_root" in environment:
        settings["topology.python.path"] = "/".join([environment["virtualenv_root"], name, "bin", "python"])
    log = environment.get("log", {})
    kinds = {"path": str, "file": str, "max_bytes": int, "backup_count": int, "level": str}
    for key, kind in kinds.items():
        value = log.get(key) or environment.get(f"log_{key}")
        if value and isinstance(value, kind):
            settings[f"pystorm.log.{key}"] = str(value).lower() if key == "level" else value
    settings |= {key: environment[key] for key in _VIRTUALENV if key in environment}
    settings["sudo_user"] = environment.get("user")
    settings |= {**topology.config, **(options or {})}
    if settings.get("topology.debug"):
        settings["pystorm.log.level"] = "debug"
    return settings
