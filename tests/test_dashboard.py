"""The Grafana dashboard asks for metrics and labels that the service has, and leaves none of its own metrics out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase

from letterwise_service import metrics

FILE = Path(__file__).parents[1] / "charts" / "letterwise" / "dashboards" / "letterwise.json"
DASHBOARD = json.loads(FILE.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]

# What of an expression in PromQL is no metric: its functions and operators.
WORDS = {"sum", "by", "rate", "increase", "histogram_quantile", "instance", "le"}
# Labels that Prometheus itself, or a histogram's form, gives.
GIVEN = {"instance", "le"}


OURS = [one for one in set(metrics.REGISTRY._collector_to_names) if isinstance(one, MetricWrapperBase)]
# The samples of each type, by what is put after the metric's name.
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"], "info": ["_info"]}


def samples() -> dict[str, set[str]]:
    """Every sample's name with its labels, as a scrape has them, whether anything was counted yet or not."""
    found = {sample.name: set(sample.labels) for family in metrics.REGISTRY.collect() for sample in family.samples}
    for metric in OURS:
        found.update({metric._name + suffix: set(metric._labelnames) for suffix in SUFFIXES[metric._type]})
    return found


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that it is chosen by."""
    for name, chosen in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", chosen))


SAMPLES = samples()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_names_metrics_that_are_there(expression: str) -> None:
    """Each name is a sample's, each label that chooses or groups is one of that metric's."""
    found = dict(used(expression))
    assert found, "every metric is chosen by its server"
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\$\w+', " ", expression)
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", bare) for label in re.split(r",\s*", group)}
    words = set(re.findall(r"[a-zA-Z_]\w*", re.sub(r"by \([^)]*\)", " ", bare)))
    assert words - WORDS == set(found)
    for name, chosen in found.items():
        assert name in SAMPLES, name
        assert "instance" in chosen
        assert chosen | grouped <= SAMPLES[name] | GIVEN, name


def test_legends_use_labels_that_the_expression_keeps() -> None:
    """`{{label}}` of a legend is grouped by, or of a metric that is not summed."""
    for panel in PANELS:
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))) | {"instance"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, panel["title"]


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    """One that is added later is shown, too."""
    shown = {name for expression in EXPRESSIONS for name, _ in used(expression)}
    for metric in OURS:
        if metric._name != "grpc_server_started":  # the ended ones say it with their codes
            assert shown & {metric._name + suffix for suffix in SUFFIXES[metric._type]}, metric._name


def test_panels_are_whole_and_lie_apart() -> None:
    """Each has a title, an own id, one data source, and a place that no other covers."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
