"""`python -m gateway.call METHOD PATH`: one call to the admin API of the process beside it.

A JSON body is read from stdin for POST. Prints `{"status": …, "body": …}` on one line. Exit code 0: there was
an answer, whatever its status; 2: the settings are wrong; 3: the gateway does not answer.
"""

import http.client
import json
import os
import sys

from gateway.settings import LOOPBACK, ConfigurationError, Settings, read_secret


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    method, path = arguments
    body = sys.stdin.buffer.read() if method == "POST" else None
    try:
        settings = Settings.read(os.environ)
        token = read_secret(settings.secrets_dir, "admin_token")
    except ConfigurationError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(LOOPBACK, settings.admin_port, timeout=10)
    try:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        print(json.dumps({"status": answer.status, "body": json.loads(answer.read())}))
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"gateway: the admin API does not answer: {error}", file=sys.stderr)
        return 3
    finally:
        connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
