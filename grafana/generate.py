"""Writes grafana/dashboards/ with Grafana's own SDK.

``python -m grafana.generate`` writes the files; with ``--check`` it writes nothing and exits 1 when one
is out of date.
"""

import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

from grafana.panels import OVERVIEW, Panel, Row
from prometheus.generate import Thresholds, run, threshold

HERE = Path(__file__).resolve().parent
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="prometheus")
RANGE = ("now-1h", "now")
HEIGHT, WIDTH = 7, 8  # three panels side by side on the grid's 24 columns


def queries(panel: Panel) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id(ref)
        .range()
        .datasource(DATASOURCE)
        for ref, query in zip(ascii_uppercase, panel.queries, strict=False)
    ]


def colours(panel: Panel, thresholds: Thresholds) -> dashboard.ThresholdsConfig:
    """Green below the panel's threshold and red above it; red below 1 for a state."""
    if panel.kind == "state":
        steps = [models.Threshold(None, "red"), models.Threshold(1, "green")]
    else:
        steps = [models.Threshold(None, "green")]
        if panel.threshold is not None:
            steps.append(models.Threshold(threshold(thresholds, panel.threshold), "red"))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def state(panel: Panel, thresholds: Thresholds) -> stat.Panel:
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    return (
        stat.Panel()
        .thresholds(colours(panel, thresholds))
        .reduce_options(last)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.BACKGROUND)
    )


def lines(panel: Panel, thresholds: Thresholds) -> timeseries.Panel:
    mode = common_models.GraphThresholdsStyleMode
    style = common.GraphThresholdsStyleConfig().mode(mode.OFF if panel.threshold is None else mode.LINE)
    builder = timeseries.Panel().thresholds(colours(panel, thresholds)).thresholds_style(style).min(0)
    legend = common.VizLegendOptions().show_legend(True).display_mode(common_models.LegendDisplayMode.LIST)
    builder.legend(legend.placement(common_models.LegendPlacement.BOTTOM))
    builder.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    return builder if panel.maximum is None else builder.max(panel.maximum)


def build(panel: Panel, number: int, thresholds: Thresholds) -> stat.Panel | timeseries.Panel:
    builder = state(panel, thresholds) if panel.kind == "state" else lines(panel, thresholds)
    builder.id(number).title(panel.title).description(panel.description).unit(panel.unit)
    builder.datasource(DATASOURCE).height(HEIGHT).span(WIDTH).no_value("no data")
    for query in queries(panel):
        builder.with_target(query)
    return builder


def overview(rows: Sequence[Row], thresholds: Thresholds) -> dashboard.Dashboard:
    board = (
        dashboard.Dashboard("Gatehouse overview")
        .uid("gatehouse-overview")
        .description("Is the service well, and if not, is it the gateway, the engine or the host?")
        .tags(["gatehouse"])
        .time(*RANGE)
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
    )
    numbers = count(1)
    for row in rows:
        board.with_row(dashboard.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            board.with_panel(build(panel, next(numbers), thresholds))
    return board


def dashboards(thresholds: Thresholds) -> dict[Path, str]:
    """Path and content of every dashboard."""
    board = overview(OVERVIEW, thresholds).build()
    encoded = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(board)
    return {HERE / "dashboards" / "overview.json": encoded + "\n"}


def main(argv: Sequence[str] | None = None) -> int:
    return run("grafana.generate", dashboards, argv)


if __name__ == "__main__":
    sys.exit(main())
