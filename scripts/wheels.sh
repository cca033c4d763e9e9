#!/bin/sh
# scripts/wheels.sh DIR GROUP...: puts into DIR what an image needs to be built without a network: the wheels that the
# lock names for each group, for the image's Python on this machine's kind of processor, and GROUP.txt, the list that
# pip checks them against. The group "gateway" is the project's own dependencies; others are dependency groups.
# Needs `uv`, and a `python3` with pip, on PATH.
set -eu

python_version=3.13 # of the base image in gateway/Dockerfile
dir=$1
shift
mkdir -p "$dir"
# for_the_image FILE: takes the markers out of a list of requirements, and what they rule out for the image's Python: pip
# judges them by the Python that it runs on, which may be another.
for_the_image() {
    python3 - "$1" "$python_version" <<'PYTHON'
import pathlib
import sys
from pip._vendor.packaging.requirements import Requirement

path, version = pathlib.Path(sys.argv[1]), sys.argv[2]
there = {"python_version": version, "python_full_version": f"{version}.0"}
kept = []
for line in path.read_text().replace("\\\n", " ").splitlines():
    wanted, _, hashes = line.partition(" --hash=")
    requirement = Requirement(wanted)
    if requirement.marker is None or requirement.marker.evaluate(there):
        requirement.marker = None
        kept.append(f"{requirement} --hash={hashes}\n")
path.write_text("".join(kept))
PYTHON
}

# Every glibc generation that wheels are built for and that the base image (Debian 13, glibc 2.41) can load.
platforms=
for glibc in 2014 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34 _2_35 _2_38 _2_39; do
    platforms="$platforms --platform manylinux${glibc}_$(uname -m)"
done
for group; do
    only="--only-group $group"
    [ "$group" != gateway ] || only=--no-default-groups
    # shellcheck disable=SC2086 # the flags are words
    uv export --quiet --frozen --no-emit-project --no-annotate --no-header $only --output-file "$dir/$group.txt"
    for_the_image "$dir/$group.txt"
    # shellcheck disable=SC2086
    python3 -m pip download -qq --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        --implementation cp --python-version "$python_version" $platforms --dest "$dir" -r "$dir/$group.txt"
done
