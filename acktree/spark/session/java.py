"""Looks for the Java that Spark's start script will run, to name what is missing before the script fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from acktree.errors import ConfigError

FIX = "install Java 17 or newer, and set JAVA_HOME to its folder, or add the folder of `java` to PATH"


def java_folder() -> Path | None:
    """The folder of the Java that the script runs; None if its program is not found."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return None if program is None else Path(program).resolve().parent.parent


def where_is_java() -> str:
    """Which Java the script runs, for an error."""
    home = os.environ.get("JAVA_HOME")
    return f"JAVA_HOME={home}" if home else f"java={shutil.which('java')}, found by PATH"


def refuse_missing_java() -> None:
    """Check that there is a program to run: ``JAVA_HOME/bin/java``, or without JAVA_HOME ``java`` of PATH.

    Raises:
        ConfigError: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        if os.access(program, os.X_OK) and program.is_file():
            return
        other = shutil.which("java")
        hint = f"; {other} is there: unset JAVA_HOME to use it" if other else ""
        raise ConfigError(
            f"JAVA_HOME is wrong: there is no program {program}", f"JAVA_HOME={home}", FIX + hint
        )
    if shutil.which("java") is None:
        raise ConfigError("Spark needs Java, and none is found", f"PATH={os.environ.get('PATH', '')}", FIX)
