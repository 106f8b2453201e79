"""Hypothesis strategies over the same drawing functions as the long seeded runs."""

from typing import Any

from hypothesis import strategies as st

from tests.model.history import History, draw_history
from tests.model.plans import Batch, draw_plan


@st.composite
def histories(draw: st.DrawFn, /, **choices: Any) -> History:
    """Histories; ``choices`` are those of ``draw_history`` (connector, identity, layout, knobs)."""
    return draw_history(draw, **choices)


@st.composite
def runs(
    draw: st.DrawFn, /, *, faults: bool = True, aligned: bool = False, **choices: Any
) -> tuple[History, list[Batch]]:
    """A history and a plan of batches, chunks and faults for it."""
    history = draw_history(draw, **choices)
    return history, draw_plan(draw, history, faults=faults, aligned=aligned)
