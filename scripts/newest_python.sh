#!/usr/bin/env bash
# The wheel on the newest Python and with the oldest PySpark: unit tests, the word count, and Spark's agreement with
# LocalCluster. They run in a Debian 13 in a folder, which has Python 3.13 and Java 21. Needs Linux and root.
#
#   scripts/newest_python.sh make FOLDER          install that system there; fails where it cannot be
#   scripts/newest_python.sh test FOLDER WHEEL    run the tests, from the root of a checkout
set -euo pipefail

PYSPARK=4.2.0  # the oldest that pyproject.toml allows
ROOT=$(realpath -m "$2")

inside() { # in a mount namespace of its own, so that no mount is left behind
    unshare --mount --propagation private sh -euc '
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        exec chroot "$0" env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 "$@"' "$ROOT" "$@"
}

make() {
    debootstrap --variant=minbase --include=python3,python3-venv,openjdk-21-jre-headless,ca-certificates,procps \
        trixie "$ROOT" http://deb.debian.org/debian >"$ROOT.log" 2>&1 || { tail -n 5 "$ROOT.log"; exit 1; }
    cp /etc/resolv.conf "$ROOT/etc/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
    printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$ROOT/etc/hosts"
    inside python3 --version
}

run() {
    mkdir -p "$ROOT/root/acktree"
    cp -R pyproject.toml conftest.py README.md docs tests examples "$1" "$ROOT/root/acktree/"
    sed "s/^pyspark==.*/pyspark==$PYSPARK/" requirements-dev.lock >"$ROOT/root/acktree/versions.txt"
    inside sh -euc '
        cd /root/acktree
        python3 -m venv /root/venv
        /root/venv/bin/python -m pip install --quiet --disable-pip-version-check -c versions.txt "$(echo ./*.whl)[spark]" \
            pytest pytest-xdist pytest-timeout hypothesis
        /root/venv/bin/python -m pytest -q -n 2 --dist loadfile --timeout=600 -p no:cacheprovider \
            tests/unit examples/word_count tests/spark/test_agreement.py'
}

case $1 in
    make) make ;;
    test) run "$3" ;;
    *) sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
esac
