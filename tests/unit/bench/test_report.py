import json
from pathlib import Path

from bench.measure import IDLE, WHOLE, Plan
from bench.report import Report, facts


def report() -> Report:
    results = {
        WHOLE: {"bare relay": [100.0, 102.0, 104.0], "gateway": [210.0, 204.0, 200.0]},
        IDLE: {"bare relay": [10.0], "gateway": [40.0]},
    }
    return Report("name", "A title", "bare relay", ["How it was done."], Plan(), results, facts())


def test_the_table_has_medians_ratios_and_their_range() -> None:
    table = report().markdown().splitlines()
    assert table[:4] == ["**A title**", "", "| CPU µs per | bare relay | gateway |", "|---|---:|---:|"]
    assert table[4] == "| non-streamed request | 102.0 | 204.0, 2.00x (1.96-2.05) |"
    assert table[5] == "| second without requests | 10.0 | 40.0 |"
    assert "How it was done." in table[-1]


def test_the_file_holds_method_machine_and_every_raw_number(tmp_path: Path) -> None:
    report().write(tmp_path)
    written = json.loads((tmp_path / "name.json").read_text(encoding="utf-8"))
    assert written["raw"][WHOLE]["gateway"] == [210.0, 204.0, 200.0]
    assert written["summary"][WHOLE]["gateway"]["ratio"] == 2.0
    assert written["method"] == ["How it was done."]
    assert written["plan"]["repetitions"] == Plan().repetitions
    assert {"date", "cores", "cpu", "python", "packages", "commit"} <= set(written["measured"])
