"""Parses command lines with the `vllm` command's own parser: those of the JSON list on standard input.

Run with a vLLM environment's Python, whose import of vLLM takes seconds: hence all at once. Prints a list, of
each command line either {"options": …}, values that are not JSON as strings, or {"error": …}, its last words.
"""

import contextlib
import io
import json
import sys
from typing import Any

# mypy does not see vLLM's environment.
from vllm.entrypoints.cli import serve  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]


def parse(arguments: list[str]) -> dict[str, Any]:
    """What `vllm ARGUMENTS` would make of its arguments."""
    parser = FlexibleArgumentParser()
    subparsers = parser.add_subparsers(required=True, dest="subparser")
    commands = serve.cmd_init()
    for command in commands:
        command.subparser_init(subparsers)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = parser.parse_args(arguments)
            for command in commands:
                command.validate(options)
    except (SystemExit, ValueError) as error:
        return {"error": f"{complaint.getvalue()}{error}"}
    return {"options": vars(options)}


if __name__ == "__main__":
    print(json.dumps([parse(arguments) for arguments in json.load(sys.stdin)], default=str))
