#!/usr/bin/env bash
# scripts/env.sh GROUP...: gives the project its own environment, .venv, with the locked dependencies of the named
# groups; does nothing (quickly) when they are there. Groups of earlier runs stay. An interrupted run is repaired by
# the next one, and runs at the same time wait for each other.
#
# PYTHON=/path/to/python3 chooses the interpreter of a new environment.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
bootstrap=$root/build/bootstrap
ca_store=/etc/ssl/certs/ca-certificates.crt

die() { printf 'gatehouse: %s\n' "$1" >&2; exit 1; }
say() { printf 'gatehouse: %s\n' "$1" >&2; }

# What an installed group is stamped with: a change of any of these files installs again.
fingerprint() { cat "$root/uv.lock" "$root/pyproject.toml" "$root/scripts/bootstrap.txt" | sha256sum | cut -c1-64; }

installed() { # installed FINGERPRINT GROUP...
    local want=$1 group
    shift
    if [ ! -x "$venv/bin/python" ] || [ -e "$venv/.incomplete" ]; then return 1; fi
    for group; do [ "$(cat "$venv/.installed-$group" 2>/dev/null)" = "$want" ] || return 1; done
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or newer; on Debian or Ubuntu: sudo apt-get install python3 python3-venv"
}

ensure_venv_module() { # ensure_venv_module PYTHON: Debian ships venv and its pip apart from python3
    local package=python3-venv
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    case $(basename "$1") in python3.*) package=$(basename "$1")-venv ;; esac
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "Python's venv module is missing: run 'sudo apt-get install $package', then this again"
    fi
    say "installing the system package $package (apt-get)"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -yq --no-install-recommends "$package"; } >"$root/build/apt.log" 2>&1 ||
        die "apt-get could not install $package: see $root/build/apt.log"
}

install_uv() { # install_uv PYTHON: into build/bootstrap, whose pip also fetches wheels for images
    local want
    want=$(sha256sum "$root/scripts/bootstrap.txt" | cut -c1-64)
    [ "$(cat "$bootstrap/.installed" 2>/dev/null)" = "$want" ] && "$bootstrap/bin/uv" --version >/dev/null 2>&1 && return
    ensure_venv_module "$1"
    say "fetching uv, which installs the locked dependencies"
    rm -rf "$bootstrap"
    "$1" -m venv "$bootstrap" || die "could not make a virtual environment in $bootstrap"
    "$bootstrap/bin/pip" install -qq --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        -r "$root/scripts/bootstrap.txt" || die "could not fetch uv (see above): is a package index reachable?"
    printf '%s\n' "$want" >"$bootstrap/.installed"
}

install_groups() { # install_groups FINGERPRINT PYTHON GROUP...
    local want=$1 python=$2 group flags=()
    shift 2
    for group; do flags+=(--group "$group"); done
    # An environment that an interrupt left half installed is not repaired but made anew: that is certain, and quick.
    if [ -e "$venv/.incomplete" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
        rm -rf "$venv"
        "$bootstrap/bin/uv" venv --quiet --python "$python" "$venv" || die "could not make $venv"
    fi
    say "installing the locked dependencies ($*) into .venv"
    : >"$venv/.incomplete"
    # Bytecode now, once: otherwise every start is slow where the environment may not be written to.
    "$bootstrap/bin/uv" sync --quiet --compile-bytecode --frozen --inexact --no-default-groups "${flags[@]}" ||
        die "could not install the locked dependencies (see above): is a package index reachable?"
    for group; do printf '%s\n' "$want" >"$venv/.installed-$group"; done
    rm "$venv/.incomplete"
}

[ $# -gt 0 ] || die "usage: scripts/env.sh GROUP..."
want=$(fingerprint)
installed "$want" "$@" && exit

mkdir -p "$root/build"
exec 9>"$root/build/env.lock"
flock -n 9 || { say "waiting for another run that installs"; flock 9; }
installed "$want" "$@" && exit # the other run did it

cd "$root"
unset VIRTUAL_ENV
# Installers leave locks and half-done downloads in the temporary directory when they are interrupted.
mkdir -p "$root/build/tmp"
export UV_PROJECT_ENVIRONMENT=$venv UV_PYTHON_DOWNLOADS=never TMPDIR=$root/build/tmp
# What the machine trusts, pip and uv trust too: behind a company's proxy neither works otherwise.
[ ! -r $ca_store ] || export UV_SYSTEM_CERTS=true PIP_CERT="${PIP_CERT:-$ca_store}"
# Without a home to keep a cache in, the project's own folder does.
[ -w "${HOME:-/nowhere}" ] || export UV_CACHE_DIR=$root/build/uv-cache PIP_CACHE_DIR=$root/build/pip-cache

python=$(find_python)
install_uv "$python"
install_groups "$want" "$python" "$@"
