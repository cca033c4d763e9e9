"""A webhook receiver: keeps each JSON body that is posted to it, and shows them all to who GETs."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

PORT = 8080


class Server(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("", PORT), Handler)
        self.received: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.received).encode())


if __name__ == "__main__":
    Server().serve_forever()
