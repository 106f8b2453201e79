"""Made-up MySQL change events of about 770 bytes, the same for the same seed.

20 % snapshot rows, 33 % creates, 37 % updates, 10 % deletes with their tombstones left out; keys are spread over
the partitions by number, so that the events of one key stay in one partition.
"""

import base64
import random
from collections.abc import Iterator

__all__ = ["COLUMNS", "events"]

COLUMNS = (
    "`id` Int64, `customer` Int32, `status` LowCardinality(String), `amount` Decimal(12, 2), `note` Nullable(String), "
    "`sku` String, `quantity` Int32, `created` DateTime64(6, 'UTC')"
)
_STATUS = ("new", "paid", "packed", "sent", "returned")
_NOTE = (
    "a note of ordinary length about this order, as people write them into such fields: leave it with the neighbour "
    "if nobody opens, and do not ring twice, the dog barks; turn"
)


def _row(key: int, turn: int, rng: random.Random) -> str:
    cents = rng.randrange(-(10**9), 10**9)
    raw = cents.to_bytes(5, "big", signed=True)
    return (
        f'{{"id":{key},"customer":{rng.randrange(10**6)},"status":"{_STATUS[turn % 5]}",'
        f'"amount":"{base64.b64encode(raw).decode()}","note":"{_NOTE} {turn}","sku":"SKU-{key % 9973:08d}",'
        f'"quantity":{turn},"created":{1_700_000_000_000_000 + key}}}'
    )


def events(count: int, partitions: int, *, seed: int = 7) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (partition, key, value) of ``count`` change events in commit order."""
    rng = random.Random(seed)
    live: list[int] = []
    next_key = 1
    snapshot = count // 5
    for i in range(count):
        draw = rng.random()
        position = 4_000 + i * 310
        if i < snapshot or not live or draw < 0.41:
            op, key, turn = ("r" if i < snapshot else "c"), next_key, 0
            next_key += 1
            live.append(key)
        elif draw < 0.875:
            op, key, turn = "u", live[rng.randrange(len(live))], i % 100
        else:
            at = rng.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            op, key, turn = "d", live.pop(), 0
        image = _row(key, turn, rng)
        ms = 1_795_000_000_000 + i // 10
        before, after = ("null", image) if op in "rcu" else (image, "null")
        value = (
            f'{{"before":{before},"after":{after},"source":{{"version":"3.5.0.Final","connector":"mysql","name":"shop",'
            f'"ts_ms":{ms},"snapshot":"{"true" if i < snapshot else "false"}","db":"shop",'
            f'"sequence":null,"ts_us":{ms * 1000},"ts_ns":{ms * 10**6},'
            f'"table":"orders","server_id":223344,"gtid":null,"file":"binlog.{3 + i // 500_000:06d}","pos":{position},'
            f'"row":0,"thread":42,"query":null}},"transaction":null,"op":"{op}","ts_ms":{ms + 100},'
            f'"ts_us":{(1_795_000_000_100 + i // 10) * 1000},"ts_ns":{(1_795_000_000_100 + i // 10) * 10**6}}}'
        )
        yield key % partitions, f'{{"id":{key}}}'.encode(), value.encode()
