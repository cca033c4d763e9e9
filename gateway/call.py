"""`python -m gateway.call METHOD PATH [ACTOR]`: one call to the admin API of the process beside it.

PATH may have a query. A JSON body is read from stdin for POST and PATCH. ACTOR is who asks, for the audit
log. Prints `{"status": …, "body": …}` on one line. Exit code 0: there was an answer, whatever its status; 2:
the command line or the settings are wrong; 3: the gateway does not answer.
"""

import http.client
import json
import os
import re
import sys

from gateway.settings import LOOPBACK, ConfigurationError, Settings, read_secret

TIMEOUT_SECONDS = 30
_METHODS = ("GET", "POST", "PATCH")
_TARGET = re.compile(r"/[!-~]*")


def main(arguments: list[str]) -> int:
    if not 2 <= len(arguments) <= 3 or arguments[0] not in _METHODS or not _TARGET.fullmatch(arguments[1]):
        print(__doc__, file=sys.stderr)
        return 2
    method, target, *actor = arguments
    body = None if method == "GET" else sys.stdin.buffer.read()
    try:
        settings = Settings.read(os.environ)
        token = read_secret(settings.secrets_dir, "admin_token")
    except ConfigurationError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if actor:
        headers["X-Gatehouse-Actor"] = _header_text(actor[0])
    return _call(settings.admin_port, method, target, body or None, headers)


def _call(port: int, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        print(json.dumps({"status": answer.status, "body": json.loads(answer.read())}))
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"gateway: the admin API does not answer: {error}", file=sys.stderr)
        return 3
    finally:
        connection.close()
    return 0


def _header_text(name: str) -> str:
    """The name's UTF-8 bytes as a header may hold them; http.client sends the text as Latin-1."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in name)
    return printable.encode(errors="replace").decode("latin-1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
