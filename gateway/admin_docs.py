"""The admin API's page: its OpenAPI schema as one plain HTML document that loads nothing."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]

# The page has no scripts; its own style is all that a browser may use.
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { border-bottom: 1px solid; margin-top: 2.5rem; }
h3 code { font-size: 1.05rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8885; padding: .2rem .8rem .2rem 0; text-align: left; }
nav a { margin-right: 1rem; }
"""


def page(openapi: Schema) -> str:
    """The document. `openapi`: the application's schema."""
    parts = list(_operations(openapi))
    links = "\n".join(
        f'<a href="#{anchor}"><code>{escape(title)}</code></a><br>' for anchor, title, _ in parts
    )
    schemas = "\n".join(
        f'<h3 id="{escape(name)}">{escape(name)}</h3>\n{_text(schema)}\n{_fields(schema)}'
        for name, schema in sorted(openapi["components"]["schemas"].items())
        if name not in ("HTTPValidationError", "ValidationError")
    )
    operations = "\n".join(html for _, _, html in parts)
    title = escape(openapi["info"]["title"])
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>
<h1>{title}</h1>
<p>Every request wants <code>Authorization: Bearer …</code> with the token in
<code>secrets/admin_token</code>; for GET, a browser may send it as a password, under any name.
Refusals have the form of the public API's.
<a href="openapi.json">openapi.json</a> is the same for programs.</p>
<nav>{links}</nav>
<h2>Operations</h2>
{operations}
<h2>Objects</h2>
{schemas}
</html>
"""


def _operations(openapi: Schema) -> Iterator[tuple[str, str, str]]:
    """Each operation's anchor, title and HTML."""
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            title = f"{method.upper()} {path}"
            anchor = escape(operation["operationId"])
            html = [f'<h3 id="{anchor}"><code>{escape(title)}</code></h3>', _text(operation)]
            html.append(_parameters(operation.get("parameters", ())))
            if body := operation.get("requestBody"):
                html.append(f"<p>Takes {_body(body)}.</p>")
            html += [
                f"<p>{escape(status)}: {_body(response)}</p>"
                for status, response in operation["responses"].items()
                if status.startswith("2")
            ]
            yield anchor, title, "\n".join(part for part in html if part)


def _text(described: Schema) -> str:
    text = described.get("description", "")
    return f"<p>{escape(text)}</p>" if text else ""


def _parameters(parameters: Any) -> str:
    rows = [
        (
            f"{parameter['name']} ({parameter['in']})",
            _type(parameter["schema"]),
            parameter.get("description", ""),
        )
        for parameter in parameters
    ]
    return _table(rows)


def _body(described: Schema) -> str:
    """What a body is, for the one content type that there is."""
    for content in described.get("content", {}).values():
        return _type(content.get("schema", {}))
    return escape(described.get("description", ""))


def _fields(schema: Schema) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (name, _type(field) + (", required" if name in required else ""), field.get("description", ""))
        for name, field in schema.get("properties", {}).items()
    ]
    return _table(rows)


def _table(rows: list[tuple[str, str, str]]) -> str:
    """Rows of a name, a type that is HTML already, and a meaning."""
    cells = "\n".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(meaning)}</td></tr>"
        for name, kind, meaning in rows
    )
    return f"<table>\n{cells}\n</table>" if rows else ""


def _type(schema: Schema) -> str:
    """A schema in a few words, with links to the objects it names."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(_type(choice) for choice in choices)
    if names := schema.get("enum"):
        return " | ".join(f"<code>{escape(str(name))}</code>" for name in names)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = schema.get("format") or schema.get("type") or "any value"
    return escape(f"{kind}{_bounds(schema)}")


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f" ({'' if low is None else low}…{'' if high is None else high})"
