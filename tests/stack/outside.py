"""Another machine: a network namespace that one cable joins to the host."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Addresses for documentation (RFC 5737): no network that a test machine is on has them.
HOST_ADDRESS = "198.51.100.1"
OUTSIDE_ADDRESS = "198.51.100.2"


@dataclass(frozen=True)
class Outside:
    """Like any machine beside the host it has no route to what is behind the host, unless it is given one."""

    namespace: str
    address: str = OUTSIDE_ADDRESS
    host: str = HOST_ADDRESS

    def command(self, *command: str | Path) -> tuple[str | Path, ...]:
        return ("nsenter", f"--net=/run/netns/{self.namespace}", *command)

    def connects(self, address: str, port: int) -> bool:
        """Whether a TCP connection opens from here."""
        code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5).close()"
        done = subprocess.run(
            self.command(sys.executable, "-c", code, address, str(port)), capture_output=True, check=False
        )
        return done.returncode == 0

    @contextmanager
    def route_behind_host(self, network: str) -> Iterator[None]:
        """As an attacker would: whatever is in `network` is asked for at the host."""
        route = ("route", "add", network, "via", self.host)
        ip("-n", self.namespace, *route)
        try:
            yield
        finally:
            ip("-n", self.namespace, "route", "del", network)


@contextmanager
def own_addresses_only(networks: Iterable[str]) -> Iterator[None]:
    """Packets for `networks` that no bridge of this host takes end here: they don't take the default route.

    Where an isolated network has no address on the host, they would; and some networks answer any connection.
    """
    for network in networks:
        ip("route", "replace", "unreachable", network)
    try:
        yield
    finally:
        for network in networks:
            ip("route", "del", "unreachable", network)


def ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True)


@contextmanager
def machine(name: str) -> Iterator[Outside]:
    """Another machine for as long as the context lasts; `name` has at most 10 characters."""
    cable = f"{name}-h"
    ip("netns", "add", name)
    try:
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", cable)
        ip("link", "set", cable, "up")
        ip("-n", name, "addr", "add", f"{OUTSIDE_ADDRESS}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "up")
        yield Outside(name)
    finally:
        ip("netns", "del", name)
