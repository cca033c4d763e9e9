"""`python -m docs.generate`: writes the tables that the code says, docs/api.md's of errors and
docs/parameters.md's of fields. `--check` only says whether they are current.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs import parameter_tables
from gateway.errors import GatewayError, Retryable

DOCS = Path(__file__).parent
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


@dataclass(frozen=True)
class Table:
    """A table between two marks of a page."""

    page: str
    name: str
    made: Callable[[], str]

    def placed(self, text: str) -> str:
        """The page with the table as it should be. Raises ValueError where the page has no place for it."""
        begin_mark = f"<!-- {self.name}: written by `python -m docs.generate` -->\n"
        end_mark = f"<!-- {self.name} end -->\n"
        before, begin, rest = text.partition(begin_mark)
        _, end, after = rest.partition(end_mark)
        if not begin or not end:
            raise ValueError(f"{self.page} has no lines {begin_mark.strip()} and {end_mark.strip()}")
        return before + begin + self.made() + end + after


TABLES: Sequence[Table] = (
    Table("api.md", "errors", table),
    Table("parameters.md", "plan", parameter_tables.plan_table),
    Table("parameters.md", "refused", parameter_tables.refused_table),
    Table("parameters.md", "routes", parameter_tables.routes_table),
)
PAGES = tuple(dict.fromkeys(table.page for table in TABLES))


def page(name: str, text: str) -> str:
    """A page with its tables as they should be."""
    for one in TABLES:
        if one.page == name:
            text = one.placed(text)
    return text


def main() -> int:
    """Writes the pages, or says with 1 which is not current."""
    stale = [name for name in PAGES if page(name, present := (DOCS / name).read_text()) != present]
    if "--check" in sys.argv[1:]:
        for name in stale:
            sys.stderr.write(f"docs/{name} is not current: run `python -m docs.generate`\n")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(page(name, (DOCS / name).read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
