"""Puts the tables of results into the documentation, between `<!-- bench: NAME -->` and `<!-- /bench -->`."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def publish(name: str, table: str, docs: Path = DOCS) -> list[Path]:
    """Puts a result's table into every page of `docs` that has a place for it; the pages that changed."""
    place = re.compile(rf"(<!-- bench: {re.escape(name)} -->\n).*?(<!-- /bench -->)", re.DOTALL)
    changed = []
    for page in sorted(docs.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        fresh = place.sub(lambda found: f"{found[1]}{table.strip()}\n{found[2]}", text)
        if fresh != text:
            page.write_text(fresh, encoding="utf-8")
            changed.append(page)
    return changed
