"""How many clients the commits of consumer groups open, counted without a broker."""

import time
from collections.abc import Mapping

import pytest
from confluent_kafka import TopicPartition

from ch_sink.kafka import GroupCommits, GroupOffsets, group


class Cluster:
    """Stands for the clients of all groups; notes what they are asked."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.commits: list[str] = []
        self.offsets: dict[str, int] = {}

    def client(self, settings: Mapping[str, str], name: str, timeout: float) -> "Client":
        self.opened.append(name)
        return Client(self, name)


class Client:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(p.topic, p.partition, self.cluster.offsets.get(self.name, -1001)) for p in places]

    def commit(self, places: list[TopicPartition]) -> None:
        self.cluster.commits.append(self.name)
        self.cluster.offsets[self.name] = places[0].offset

    def close(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(group, "_GroupClient", made.client)
    return made


def put(commits: GroupCommits, groups: int, end: int) -> list[str]:
    names = [f"group-{number}" for number in range(groups)]
    for name in names:
        GroupOffsets(commits, name).commit("t", {0: end})
    return names


def test_a_witness_and_the_commit_after_it_share_a_client(cluster: Cluster) -> None:
    commits, seen = GroupCommits({"bootstrap.servers": "none"}, every=3600), list[dict[int, int]]()
    cluster.offsets = {f"group-{number}": number for number in range(50)}
    for number in range(50):
        GroupOffsets(commits, f"group-{number}").before_commit("t", [0], seen.append)
    names = put(commits, 50, 100)
    assert commits.flush()
    assert cluster.opened == cluster.commits == names
    assert seen == [{0: number} for number in range(50)]
    commits.close()


def test_each_of_many_groups_is_committed_once_in_twelve_rounds(cluster: Cluster) -> None:
    commits = GroupCommits({"bootstrap.servers": "none"}, every=3600)
    names = put(commits, 240, 1)
    for end in range(2, 14):
        assert commits.flush(20)
        assert len(cluster.commits) == 20 * (end - 1)
        put(commits, 240, end)
    assert cluster.commits == names, "in turn, although all of them went on"
    commits.close()
    assert set(cluster.offsets.values()) == {13}, "the end of a job commits what is left"


@pytest.mark.long
def test_a_burst_of_commits_is_spread(cluster: Cluster) -> None:
    commits, every = GroupCommits({"bootstrap.servers": "none"}, every=0.3), 0.3
    put(commits, 240, 1)
    until = time.monotonic() + 20
    while not cluster.commits and time.monotonic() < until:
        time.sleep(every / 10)
    time.sleep(every / 10)
    assert len(cluster.commits) == 20
    while len(cluster.commits) < 240 and time.monotonic() < until:
        time.sleep(every)
    assert len(cluster.commits) == 240, "all of them, in the end"
    commits.close()
