"""`prometheus.generate`: rules from templates and thresholds."""

from pathlib import Path

import pytest

from prometheus.generate import load_thresholds, render, threshold


def test_a_threshold_stands_where_its_name_stood() -> None:
    text = render('expr: x > @{limit}\nsummary: "{{ $value }}"\n', "a.yml.in", {"limit": 0.9})
    assert text.splitlines()[1:] == ["expr: x > 0.9", 'summary: "{{ $value }}"']


def test_a_template_that_names_an_unknown_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'limit' is missing: templates/a\.yml\.in needs it"):
        render("expr: x > @{limit}", "a.yml.in", {})


@pytest.mark.parametrize("text", ["", "[1, 2]", "limit: true", "limit: [1]", "limit:"])
def test_what_is_no_mapping_of_names_to_values_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(text)
    with pytest.raises(TypeError):
        load_thresholds(path)


def test_a_duration_is_no_number() -> None:
    with pytest.raises(ValueError, match="10m"):
        threshold({"window": "10m"}, "window")
