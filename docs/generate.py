"""`python -m docs.generate`: writes docs/api.md's table of errors, from gateway/errors.py. `--check` only
says whether it is current.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import GatewayError, Retryable

PAGE = Path(__file__).parent / "api.md"
BEGIN = "<!-- errors: written by `python -m docs.generate` -->\n"
END = "<!-- errors end -->\n"
HEAD = "| status | `code` | SDK class | when, and what to do |\n|---|---|---|---|\n"
# By status, what the SDKs of OpenAI and Anthropic, for Python and JavaScript, all call alike.
SDK_CLASSES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    429: "RateLimitError",
}
SERVER_ERROR = "InternalServerError"
OTHER = "APIStatusError"


def raised(base: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    """Every class of the tree that is raised as itself."""
    if base is not Retryable:
        yield base
    for child in base.__subclasses__():
        yield from raised(child)


def sdk_class(status: int) -> str:
    """What the SDKs raise for a status."""
    return SDK_CLASSES.get(status, SERVER_ERROR if status >= 500 else OTHER)


def row(error: type[GatewayError]) -> str:
    """One line of the table. Raises ValueError for a class without a docstring of its own."""
    if not error.__doc__:
        raise ValueError(f"{error.__name__} does not say when it is raised")
    says = " ".join(inspect.cleandoc(error.__doc__).partition("\n\n")[0].split())
    return f"| {error.status} | `{error.code}` | `{sdk_class(error.status)}` | {says} |\n"


def table() -> str:
    """All errors, by status; within one in the order of the tree."""
    return HEAD + "".join(row(error) for error in sorted(raised(), key=lambda error: error.status))


def page(text: str) -> str:
    """The page with the table as it should be. Raises ValueError where the page has no place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN.strip()} and {END.strip()}")
    return before + begin + table() + end + after


def main() -> int:
    """Writes the page, or says with 1 that it is not current."""
    present = PAGE.read_text()
    wanted = page(present)
    if "--check" in sys.argv[1:]:
        if present != wanted:
            sys.stderr.write("docs/api.md is not current: run `python -m docs.generate`\n")
            return 1
        return 0
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
