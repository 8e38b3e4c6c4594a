"""Moves what the engine counts to Triton's /metrics, from one thread: concurrent updates of one
metric crash the server.

Gets Triton's metric families handed over; imports none of its bindings.
"""

from __future__ import annotations

import math
import threading
from typing import Any, get_args

from specdec.speculation.metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    PER_POSITION,
    REASON,
    Metrics,
)
from specdec.speculation.pace import Reason
from specdec.speculation.state import FAMILIES, State

PREFIX = "specdec:"
PUBLISH_SECONDS = 0.25
STATE_PRECISION = 0.01  # a gauge of the controller's is as good as that


class MetricsPublisher:
    """Moves snapshots to Triton's /metrics a few times a second, from one thread.

    Values are checked before they are handed over: an error raised by the metrics API can take
    the whole server down.
    """

    def __init__(
        self, families: Any, metrics: Metrics, model_name: str, max_draft_tokens: int
    ) -> None:
        """`families`: `MetricFamily` of Triton's bindings."""
        self._make_family = families
        self._metrics = metrics
        self._families: list[Any] = []  # a family must outlive its metrics
        labels = {"model": model_name}
        self._counters = {
            name: self._family(name, text, families.COUNTER).Metric(labels=labels)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: self._family(name, text, families.GAUGE).Metric(labels=labels)
            for name, text in GAUGES.items()
        }
        self._histograms = {
            name: self._family(name, text, families.HISTOGRAM).Metric(labels, list(buckets))
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        text = "Committed draft tokens by their position in the proposal"
        positions = self._family(PER_POSITION, text, families.COUNTER)
        self._per_position = [
            positions.Metric(labels={**labels, "position": str(position)})
            for position in range(max_draft_tokens)
        ]
        decisions = self._family(REASON, "Draft lengths decided, by reason", families.COUNTER)
        self._reasons = {
            reason: decisions.Metric(labels={**labels, "reason": reason})
            for reason in get_args(Reason)
        }
        self._labels = labels
        self._state_families = {
            name: self._family(name, text, families.GAUGE) for name, text in FAMILIES.items()
        }
        self._states: dict[State, tuple[Any, float]] = {}  # the gauge, its last value
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PUBLISH_SECONDS):
            self._publish()
        self._publish()

    def _family(self, name: str, text: str, kind: Any) -> Any:
        family = self._make_family(name=PREFIX + name, description=text, kind=kind)
        self._families.append(family)
        return family

    def _publish(self) -> None:
        taken = self._metrics.take()
        for name, amount in taken.counters.items():
            if _is_safe(amount):
                self._counters[name].increment(amount)
        for position, count in taken.per_position.items():
            self._per_position[position].increment(count)
        for reason, count in taken.reasons.items():
            self._reasons[reason].increment(count)
        for name, value in taken.gauges.items():
            self._gauges[name].set(value)
        for state, value in taken.states.items():
            if _is_safe(value):
                self._set(state, value)
        for name, values in taken.observations.items():
            for value in filter(_is_safe, values):
                self._histograms[name].observe(value)

    def _set(self, state: State, value: float) -> None:
        """A gauge of the controller's; each call takes a trip to the server, so only news go."""
        if state not in self._states:
            labels = {**self._labels, **dict(state.labels)}
            gauge = self._state_families[state.family].Metric(labels=labels)
        else:
            gauge, last = self._states[state]
            if abs(value - last) <= STATE_PRECISION * last:
                return
        gauge.set(value)
        self._states[state] = gauge, value


def _is_safe(value: float) -> bool:
    return math.isfinite(value) and value >= 0
