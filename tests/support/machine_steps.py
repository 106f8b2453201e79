"""The steps of a random sequence: each is a name and a number from which it draws what else it needs."""

from collections.abc import Callable
from random import Random

from tests.support.machine import Stand
from tests.support.machine_letters import Refused, backup, restore
from tests.support.machine_looks import explain, into
from tests.support.machine_outside import erase, fail_over, forget, mend, partition, purge, recreate, retention, retry
from tests.support.machine_reading import again, all_of_it, dies, flow, killed, read, snapshot, truncate, write
from tests.support.machine_trust import (
    defect,
    repair,
    repair_source,
    resync_source,
    resync_topic,
    verify,
    verify_source,
)

__all__ = ["STEPS", "Refused", "Step"]

Step = tuple[str, int]

STEPS: dict[str, tuple[int, Callable[[Stand, Random], None]]] = {
    "write": (8, write),
    "read": (7, read),
    "all": (4, all_of_it),
    "flow": (6, flow),
    "killed": (4, killed),
    "dies": (2, dies),
    "again": (2, again),
    "verify": (2, verify),
    "verify source": (2, verify_source),
    "repair": (1, repair),
    "repair source": (1, repair_source),
    "resync source": (3, resync_source),
    "resync topic": (2, resync_topic),
    "defect": (4, defect),
    "purge": (3, purge),
    "erase": (2, erase),
    "mend": (2, mend),
    "retry": (2, retry),
    "forget": (1, forget),
    "retention": (2, retention),
    "recreate": (2, recreate),
    "partition": (2, partition),
    "fail over": (2, fail_over),
    "snapshot": (1, snapshot),
    "truncate": (3, truncate),
    "explain": (4, explain),
    "into": (2, into),
    "backup": (2, backup),
    "restore": (3, restore),
}
