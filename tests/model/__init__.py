"""The independent truth: a model of source databases, their connectors and Kafka, and what a sink must hold.

It shares no code with the product and imports nothing of it.

- ``draw_history(source, connector=, identity=, layout=, knobs=)`` gives a ``History``: Kafka records per partition,
  the source's final rows (``truth``), the table, and a count of the interesting cases in it (``features``).
  ``source`` is a seed, a ``random.Random``, or Hypothesis' ``draw`` or ``data``; one seed always gives one history.
- ``Knobs`` forces or forbids each feature; by default the ordinary ones are drawn and the rare ones are off.
- ``draw_plan(source, history)`` cuts it into batches and chunks, interleaves the partitions, and lets runs fail.
- ``strategies.histories`` and ``strategies.runs`` are the same for ``@given``.
- ``reference`` says what targets of each kind must hold, and compares.
- ``peer.Peer`` is a slow consumer of any plan by the same rules as the product's: where it reaches the truth and the
  product does not, the fault is the product's.
- ``history.listing()`` prints a failing case.

How it is built: ``source`` (rows, locks, transactions) is driven by ``script``; ``connectors`` turns its committed
transactions into events with positions and images; ``delivery`` puts them into partitions, kills the connector and
sends stretches again; ``wire`` has the bytes.
"""

from tests.model.connectors import CONNECTORS
from tests.model.delivery import KafkaRecord
from tests.model.history import History, draw_history
from tests.model.knobs import Knobs
from tests.model.plans import Batch, Chunk, Fault, draw_plan
from tests.model.shapes import LAYOUTS, SHAPES, Column, Layout, TableShape

__all__ = [
    "CONNECTORS",
    "LAYOUTS",
    "SHAPES",
    "Batch",
    "Chunk",
    "Column",
    "Fault",
    "History",
    "KafkaRecord",
    "Knobs",
    "Layout",
    "TableShape",
    "draw_history",
    "draw_plan",
]
