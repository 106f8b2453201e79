"""How many tasks a cluster is offered."""

import pytest

from ch_sink.spark.sessions import offered

_GROWING = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("now", "conf", "tasks"),
    [
        (0, {}, 1),
        (8, {}, 8),
        (8, {"spark.dynamicAllocation.maxExecutors": "9"}, 8),
        (0, _GROWING, 1),
        (8, _GROWING, 16),
        (8, {**_GROWING, "spark.dynamicAllocation.maxExecutors": "9"}, 9),
        (8, {**_GROWING, "spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "4"}, 12),
        (
            4,
            {
                **_GROWING,
                "spark.dynamicAllocation.maxExecutors": "3",
                "spark.executor.cores": "4",
                "spark.task.cpus": "2",
            },
            6,
        ),
        (8, {**_GROWING, "spark.dynamicAllocation.maxExecutors": "2", "spark.executor.cores": "4"}, 8),
    ],
)
def test_a_cluster_that_grows_is_offered_twice_as_many_tasks_as_run(now: int, conf: dict[str, str], tasks: int) -> None:
    assert offered(now, conf) == tasks
