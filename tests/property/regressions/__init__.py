"""Cases that the model found wrong once: the seed, and what it showed. They run in the quick tier."""

from dataclasses import dataclass

from tests.support.cases import Case


@dataclass(frozen=True, slots=True)
class Regression:
    """A case, and what was wrong with it."""

    case: Case
    showed: str

    def __str__(self) -> str:
        return f"{self.case.seed}-{self.case.engine}-{self.case.knobs}".replace(" ", "_")


def _of(seed: int, engine: str, knobs: str, showed: str, decoder: str = "product") -> Regression:
    return Regression(Case(seed, engine, knobs, decoder), showed)


REGRESSIONS = (
    _of(17, "append without key", "ordinary", "rows of a snapshot share one position and counted as repeats"),
    _of(29, "append without key", "long", "the same, with streamed rows behind"),
    _of(47, "append without key", "ordinary", "two rows at one position in MySQL's snapshot", "plain"),
    _of(2050, "collapsing", "ordinary", "a swap that was stored already, met again by a second attempt"),
    _of(36, "replacing", "adverse", "the key's columns were learned from a BEGIN record in the table's own topic"),
    _of(100724, "collapsing", "deferred swaps", "a released create half opened a swap, and the state forgot it"),
    _of(118, "append", "long", "a stored delete row passed for a live one"),
    _of(140, "collapsing", "deferred swaps", "a swap in the stream's first transaction, which states no commit"),
    _of(256, "append", "ordinary", "the delete of a swapped key's former owner was missing in the history", "plain"),
    _of(292, "append", "adverse", "the same, over partitions"),
    _of(400, "append", "ordinary", "a chunk run again parked what stood before the first waiting change", "plain"),
    _of(838, "append", "long", "released changes were stored again under the chunk's own token"),
    _of(906, "replacing", "adverse", "a repeat without commit position, lifted to the highest one", "plain"),
    _of(101818, "append", "long", "the newest stored version says nothing of older changes in other table partitions"),
    _of(102250, "append", "ordinary", "one swap carried into a chunk excused two deletes", "plain"),
    _of(102258, "replacing", "ordinary", "the same"),
    _of(106962, "replacing", "deferred swaps", "a second attempt left a swap open whose closing delete was stored"),
    _of(1000018, "append", "long", "the same, as a delete stored twice"),
    _of(1002075, "versioned", "truncates inside", "a repeated truncate alone in a chunk passed for a new one"),
    _of(1002682, "append", "adverse", "the model sent rows of before a failover again behind rows of after it"),
    _of(20018, "collapsing", "oracle, adverse", "two keys exchanged twice in one transaction: one former row for both"),
    _of(20018, "replacing", "oracle, adverse", "the same"),
    _of(9031, "versioned", "deferred swaps", "halves of a swap that state no commit position share none either"),
    _of(4071395724299534835, "collapsing", "truncates", "killed before a truncate, the next attempt began behind it"),
    _of(1299156958758700559, "versioned", "truncates inside", "the same"),
    _of(2100681, "versioned", "swaps", "a chunk that ends with a repeat without position forgot the swap it opened"),
    _of(2106739, "sign", "swaps, adverse", "the same"),
    _of(2005699, "sign", "deferred swaps", "a swap without position, open at a chunk's end behind changes with one"),
    _of(2015698, "append", "swaps, adverse", "the same"),
    _of(2019976, "append", "ordinary", "run again, a chunk did not look up a key of which a change waited since"),
)
