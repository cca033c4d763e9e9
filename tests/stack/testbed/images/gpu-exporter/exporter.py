"""Serves metrics.txt at /metrics."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = Path(__file__).with_name("metrics.txt").read_bytes()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing: one line a scrape would fill the log."""


if __name__ == "__main__":
    HTTPServer(("", 9835), Handler).serve_forever()
