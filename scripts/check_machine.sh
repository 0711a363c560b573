#!/bin/sh
# Checks this machine before anything is downloaded: prints what is missing and how to install it.
# POSIX sh, since it must run where Python and Java are missing.
#
#   check_machine.sh python   Python 3.11 or newer ($PYTHON, default python3), able to make virtual environments
#   check_machine.sh java     Java 17 or newer ($JAVA_HOME, else java on the path): what Spark runs on
set -u

PYTHON=${PYTHON:-python3}

refuse() { # what, where, fix
    printf '%s\n  where: %s\n  fix:   %s\n' "$1" "$2" "$3" >&2
    exit 1
}

newer_python() { # prints the name of a Python >= 3.11 on the path, if there is one
    for name in python3.13 python3.12 python3.11; do
        if "$name" -c '' 2>/dev/null; then echo "$name"; return; fi
    done
}

check_python() {
    command -v "$PYTHON" >/dev/null 2>&1 || refuse \
        "acktree needs Python 3.11 or newer; there is no '$PYTHON' on the path" "PYTHON=$PYTHON" \
        "install Python (Debian, Ubuntu: sudo apt-get install python3 python3-venv; macOS: brew install python)"
    if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        other=$(newer_python)
        fix="install Python 3.11 or newer, then: make PYTHON=python3.11 ..."
        [ -z "$other" ] || fix="use the newer one on the path: make PYTHON=$other ..."
        refuse "acktree needs Python 3.11 or newer; '$PYTHON' is $("$PYTHON" --version 2>&1)" \
            "$(command -v "$PYTHON")" "$fix"
    fi
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || refuse \
        "this Python cannot make virtual environments: its module 'venv' or 'ensurepip' is missing" \
        "$(command -v "$PYTHON")" \
        "Debian, Ubuntu: sudo apt-get install python3-venv; elsewhere use a Python from python.org, pyenv or brew"
}

java_fix="Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless (or default-jre-headless); macOS: brew install openjdk@17;
         others: https://adoptium.net. Then put java on the path or set JAVA_HOME. (LocalCluster needs no Java: make test-unit)"

check_java() {
    if [ -n "${JAVA_HOME:-}" ]; then java="$JAVA_HOME/bin/java" where="JAVA_HOME=$JAVA_HOME"
    else java=java where="java on the path"; fi
    said=$("$java" -version 2>&1) || refuse "Spark needs Java 17 or newer; no Java was found" "$where" "$java_fix"
    # 'openjdk version "17.0.15" 2025-04-15' -> 17; the old '"1.8.0_392"' -> 1, which is too old all the same
    major=$(printf '%s\n' "$said" | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1)
    [ -n "$major" ] || refuse "Spark needs Java 17 or newer; this one prints no version: $said" "$where" "$java_fix"
    [ "$major" -ge 17 ] || refuse "Spark needs Java 17 or newer; this is Java $said" "$where" "$java_fix"
}

for what in "${@:-python}"; do
    case "$what" in
        python) check_python ;;
        java) check_java ;;
        *) echo "usage: check_machine.sh [python] [java]" >&2; exit 2 ;;
    esac
done
