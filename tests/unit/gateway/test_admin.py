"""The admin API as a whole: every operation is on its page, and the page loads nothing."""

import re
from pathlib import Path

import pytest

from tests.fakes.administration import Administration


@pytest.fixture
async def admin(tmp_path: Path) -> Administration:
    return await Administration.start(tmp_path)


async def test_the_page_describes_every_operation_and_loads_nothing(admin: Administration) -> None:
    client = await admin.raw("GET", "/admin/docs")
    html = client.body.decode()
    assert client.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in client.headers["content-security-policy"]
    _, schema = await admin.ask("GET", "/admin/openapi.json")
    operations = [(method, path) for path, methods in schema["paths"].items() for method in methods]
    assert len(operations) >= 16
    for method, path in operations:
        assert f"<code>{method.upper()} {path}</code>" in html
    assert re.findall(r"<(?:script|link|img|iframe)|https?://|url\(", html) == []
    anchors, links = set(re.findall(r'id="([^"]+)"', html)), set(re.findall(r'href="#([^"]+)"', html))
    assert links <= anchors
