from pathlib import Path

import pytest

from bench.pages import DOCS, publish
from bench.report import RESULTS
from bench.runs import BENCHES

PAGE = (
    "Before\n<!-- bench: one -->\nold\n<!-- /bench -->\nbetween\n<!-- bench: two -->\nkept\n<!-- /bench -->\n"
)


def test_a_table_replaces_what_stands_in_its_place_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "decisions/page.md"
    page.parent.mkdir()
    page.write_text(PAGE, encoding="utf-8")
    assert publish("one", "| new \\1 |\n", tmp_path) == [page]
    assert page.read_text(encoding="utf-8") == PAGE.replace("old", "| new \\1 |")


def test_a_page_that_is_up_to_date_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    assert publish("two", "kept", tmp_path) == []


@pytest.mark.parametrize("name", BENCHES)
def test_the_documentation_shows_the_committed_result(name: str) -> None:
    table = (RESULTS / f"{name}.md").read_text(encoding="utf-8").strip()
    place = f"<!-- bench: {name} -->\n"
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    shown = [page for page in pages if place in page]
    assert shown
    assert all(f"{place}{table}\n<!-- /bench -->" in page for page in shown)
