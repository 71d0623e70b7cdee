"""From a failing scenario to the smallest one that still fails in the same way: what remains is what matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parley.sim.twins.executor import Verdict, execute
from parley.sim.twins.scenario import Scenario, View, normal, whole


def shrink(scenario: Scenario) -> Scenario:
    """Take away whatever can be taken away, until nothing can."""
    verdict = execute(scenario).verdict
    assert verdict is not Verdict.HOLDS, "only a failure can be shrunk"
    while (
        smaller := next((s for s in _smaller(scenario) if execute(s).verdict is verdict), None)
    ) is not None:
        scenario = smaller
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    views = scenario.views
    for at in reversed(range(len(views))):
        yield replace(scenario, views=views[:at] + views[at + 1 :])
    for at, view in enumerate(views):
        for simpler in _simpler(view):
            yield replace(scenario, views=(*views[:at], simpler, *views[at + 1 :]))
    for member in scenario.crashed:
        yield replace(scenario, crashed=tuple(other for other in scenario.crashed if other != member))


def _simpler(view: View) -> Iterator[View]:
    """Each of them lacks something that the view has, so shrinking ends."""
    calm = whole(len(view.propose))
    if view.leap:
        yield replace(view, leap=False)
    if view.late:
        yield replace(view, late=False)
    for seat in view.restart:
        yield replace(view, restart=tuple(other for other in view.restart if other != seat))
    if view.timeout not in (view.propose, calm):
        yield replace(view, timeout=view.propose)
        yield replace(view, timeout=calm)
    if view.propose != calm:
        yield replace(view, propose=calm, timeout=calm if view.timeout == view.propose else view.timeout)
    # A seat alone, or outside the first group, joins the first.
    for seat, group in enumerate(view.propose):
        if group:
            joined = normal((*view.propose[:seat], 0, *view.propose[seat + 1 :]))
            timeout = joined if view.timeout == view.propose else view.timeout
            if sum(joined) < sum(view.propose):
                yield replace(view, propose=joined, timeout=timeout)
