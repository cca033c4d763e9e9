"""`make ca`: writes the root certificate that clients of this host must trust, and says how."""

import os
from collections.abc import Mapping
from pathlib import Path

from ops.docker import Docker, explain
from ops.errors import OpsError
from ops.site import Site

# Where Caddy keeps its internal authority's root: https://caddyserver.com/docs/caddyfile/directives/tls#internal
_IN_CONTAINER = "/data/caddy/pki/authorities/local/root.crt"
_BEGIN = "-----BEGIN CERTIFICATE-----"


def root_path(root: Path) -> Path:
    """Where the root certificate is written."""
    return root / "build" / "ca" / "root.crt"


def is_internal(variables: Mapping[str, str]) -> bool:
    """Whether clients must be told to trust this host's own authority."""
    return (variables.get("TLS_MODE") or "internal") == "internal"


def export(site: Site) -> Path:
    """Writes the running Caddy's root certificate and returns its path. Raises OpsError."""
    variables = site.variables()
    if not is_internal(variables):
        raise OpsError(
            f"TLS_MODE={variables.get('TLS_MODE')}: this host's certificates are not from its own authority.",
            "There is nothing to trust by hand.",
        )
    docker = Docker(site.commands)
    result = docker.capture("exec", "-T", "caddy", "cat", _IN_CONTAINER)
    if "is not running" in result.err or "no container found" in result.err.lower():
        raise OpsError("Caddy is not running.", "Run `make up` first.")
    if "No such file" in result.err or "can't open" in result.err:
        raise OpsError(
            "Caddy has not made its authority yet.", "Open the site once, then run `make ca` again."
        )
    if not result.ok:
        raise explain(result, "docker compose exec caddy")
    if not result.out.startswith(_BEGIN):
        raise OpsError("Caddy's root certificate is not one.", "Run `make logs ARGS=caddy`.")
    return _write(root_path(site.root), result.out)


def instructions(path: Path) -> list[str]:
    """How to trust the certificate, one line for each kind of client."""
    debian = "/usr/local/share/ca-certificates/gatehouse.crt"
    keychain = "/Library/Keychains/System.keychain"
    return [
        f"Python, curl, this shell:  export SSL_CERT_FILE={path}",
        f"Node.js:                   export NODE_EXTRA_CA_CERTS={path}",
        f"Debian, Ubuntu:            sudo cp {path} {debian} && sudo update-ca-certificates",
        f"macOS:                     sudo security add-trusted-cert -d -r trustRoot -k {keychain} {path}",
        "Windows (as administrator): certutil -addstore -f ROOT root.crt",
    ]


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text, encoding="ascii")
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise OpsError(f"{path} cannot be written ({error.strerror}).", "Check who owns build/.") from None
    return path
