"""Stands in for grafana-server where none can be had.

It refuses to start unless the provisioning is what Grafana accepts: data sources complete, dashboard folders
present, each dashboard with a title and a uid of its own, each panel's data source provisioned. Then it
answers /api/health and /metrics to anyone, and searches, dashboards and data sources to the administrator.
It draws nothing.
"""

import base64
import hmac
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

BUILT_IN_SOURCES = {"-- Grafana --", "-- Mixed --", "-- Dashboard --", "grafana"}


@dataclass
class Provisioned:
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def expand(value: Any) -> Any:
    """Grafana puts the environment's $NAME and ${NAME} into provisioning files; $$ is a dollar sign."""
    if isinstance(value, str):
        found = r"\$(\$|\{(\w+)\}|(\w+))"
        return re.sub(found, lambda m: "$" if m[1] == "$" else os.environ.get(m[2] or m[3], ""), value)
    if isinstance(value, dict):
        return {key: expand(item) for key, item in value.items()}
    return [expand(item) for item in value] if isinstance(value, list) else value


def documents(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(folder.glob("*.y*ml")):
        yield path, expand(yaml.safe_load(path.read_text())) or {}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board.get("panels", []):
        yield panel
        yield from panels(panel)


def load_sources(folder: Path, found: Provisioned) -> None:
    for path, document in documents(folder):
        if document.get("apiVersion") != 1:
            found.errors.append(f"{path}: apiVersion must be 1")
        for source in document.get("datasources", []):
            missing = [key for key in ("name", "type", "url") if not source.get(key)]
            if missing:
                found.errors.append(f"{path}: a data source without {', '.join(missing)}")
            found.sources[source.get("uid") or source["name"]] = source


def load_dashboards(folder: Path, found: Provisioned) -> None:
    for path, document in documents(folder):
        for provider in document.get("providers", []):
            home = Path((provider.get("options") or {}).get("path") or "/nowhere")
            if not home.is_dir():
                found.errors.append(f"{path}: {home} is no folder in the container")
            for file in sorted(home.rglob("*.json")):
                add_dashboard(file, json.loads(file.read_text()), found)


def add_dashboard(file: Path, board: dict[str, Any], found: Provisioned) -> None:
    uid = board.get("uid") or ""
    if not uid or not board.get("title"):
        found.errors.append(f"{file}: no uid or no title")
    if uid in found.dashboards:
        found.errors.append(f"{file}: uid {uid} is used twice")
    found.dashboards[uid] = board
    for panel in panels(board):
        for holder in [panel, *panel.get("targets", [])]:
            source = holder.get("datasource")
            name = source.get("uid") if isinstance(source, dict) else source
            if name and not name.startswith("$") and name not in {*found.sources, *BUILT_IN_SOURCES}:
                found.errors.append(f"{file}: panel {panel.get('title')!r}: no data source {name!r}")


def administrator() -> str:
    """The Authorization header that the configured administrator sends."""
    user = os.environ.get("GF_SECURITY_ADMIN_USER", "admin")
    file = os.environ.get("GF_SECURITY_ADMIN_PASSWORD__FILE")
    word = Path(file).read_text().strip() if file else os.environ.get("GF_SECURITY_ADMIN_PASSWORD", "admin")
    return "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()


class Server(ThreadingHTTPServer):
    """`found` is what is served, under the path `root`, to who sends `authorization`."""

    def __init__(self, port: int, found: Provisioned, root: str, authorization: str) -> None:
        super().__init__(("", port), Handler)
        self.found = found
        self.root = root
        self.authorization = authorization


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self, status: int, body: Any, content_type: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if not self.path.startswith(self.server.root + "/"):
            self.send_response(301)
            self.send_header("Location", self.server.root + "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = self.path.removeprefix(self.server.root)
        if path == "/api/health":
            self.answer(200, {"database": "ok", "version": "stand-in"})
        elif path == "/metrics":
            up = b'# TYPE grafana_build_info gauge\ngrafana_build_info{version="stand-in"} 1\n'
            self.answer(200, up, "text/plain; version=0.0.4")
        elif path in {"/", "/login"}:
            self.answer(200, b"<title>Grafana stand-in</title>", "text/html")
        elif not hmac.compare_digest(self.headers.get("Authorization", ""), self.server.authorization):
            self.answer(401, {"message": "Unauthorized"})
        else:
            self.answer_administrator(path)

    def answer_administrator(self, path: str) -> None:
        found = self.server.found
        if path.startswith("/api/search"):
            self.answer(200, [{"uid": uid, "title": b["title"]} for uid, b in found.dashboards.items()])
        elif path == "/api/datasources":
            self.answer(200, [{"uid": uid, "url": source["url"]} for uid, source in found.sources.items()])
        elif (m := re.fullmatch(r"/api/dashboards/uid/([^/?]+)", path)) and m[1] in found.dashboards:
            self.answer(200, {"dashboard": found.dashboards[m[1]]})
        elif (m := re.fullmatch(r"/api/datasources/proxy/uid/([^/]+)(/.*)", path)) and m[1] in found.sources:
            self.ask(found.sources[m[1]]["url"].rstrip("/") + m[2])
        else:
            self.answer(404, {"message": "Not found"})

    def ask(self, url: str) -> None:
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                self.answer(reply.status, reply.read())
        except urllib.error.HTTPError as error:
            self.answer(error.code, error.read())
        except OSError as error:
            self.answer(502, {"message": str(error)})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing: health checks would fill the log."""


def main() -> int:
    provisioning = Path(os.environ.get("GF_PATHS_PROVISIONING", "/etc/grafana/provisioning"))
    found = Provisioned()
    load_sources(provisioning / "datasources", found)
    load_dashboards(provisioning / "dashboards", found)
    for error in found.errors:
        print("provisioning error:", error, file=sys.stderr)
    if found.errors:
        return 1
    root = urllib.parse.urlparse(os.environ.get("GF_SERVER_ROOT_URL", "/")).path.rstrip("/")
    sub_path = os.environ.get("GF_SERVER_SERVE_FROM_SUB_PATH", "false") == "true"
    port = int(os.environ.get("GF_SERVER_HTTP_PORT", "3000"))
    print(f"provisioned {len(found.sources)} data source(s), {len(found.dashboards)} dashboard(s)")
    Server(port, found, root if sub_path else "", administrator()).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
