"""Stands in for the `vllm` command: parses its arguments with vLLM's own parser, and prints them.

Run with a vLLM environment's Python. Ends as vLLM would where an option does not exist or has a wrong value.
"""

import argparse
import json
import os
import sys

# mypy does not see vLLM's environment.
from vllm.entrypoints.cli import serve  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]


def main() -> None:
    """Print every option as one JSON object; what is not JSON as its string."""
    parser = FlexibleArgumentParser()
    subparsers = parser.add_subparsers(required=True, dest="subparser")
    for command in serve.cmd_init():
        command.subparser_init(subparsers)
    options = parser.parse_args(sys.argv[1:])
    for command in serve.cmd_init():
        command.validate(options)
    assert isinstance(options, argparse.Namespace)
    print(
        json.dumps(
            {"options": vars(options), "key_is_set": bool(os.environ.get("VLLM_API_KEY"))}, default=str
        )
    )


if __name__ == "__main__":
    main()
