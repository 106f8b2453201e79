"""The lag of streams that nothing reads now: what came in their topics meanwhile counts."""

from tests.support.job import MemoryJob


def test_the_lag_of_a_paused_stream_grows_until_it_is_resumed() -> None:
    job = MemoryJob()
    job.add("a", 10, 5)
    job.add("b", 10)
    seen: dict[int, tuple[int | None, int]] = {}
    """Second → the lag that is shown, and what is unread indeed."""

    def stopping() -> bool:
        assert job.job is not None
        moment = int(job.lanes.clock)
        if moment not in seen:
            there = sum(job.streams["a"].topic.ends.values())
            seen[moment] = job.job.streams[0].summary.lag, there - sum(job.covered("a").values())
            job.grow("a", 2, moment % 2)
            if moment in (10, 30):
                job.ask("pause" if moment == 10 else "resume", "a")
        return moment > 40

    assert job.run(stopping=stopping) == {}
    for moment in range(18, 30):
        shown, unread = seen[moment]
        assert shown is not None
        assert unread - 2 * 6 <= shown <= unread, "of five seconds ago at most"
    assert seen[29][1] > 30
    assert (seen[40][0] or 0) <= 2


def test_a_stopped_stream_counts_what_it_did_not_read_and_what_comes() -> None:
    job = MemoryJob()
    job.add("a", 30)
    job.add("b", 10)
    job.broken["a"] = 12
    seen: list[int | None] = []

    def stopping() -> bool:
        assert job.job is not None
        if job.job.roster.standing("a").state == "stopped":
            if not seen:
                job.grow("a", 1000)
            seen.append(job.job.streams[0].summary.lag)
        return job.lanes.clock > 20

    assert set(job.run(stopping=stopping)) == {"a"}
    assert (seen[0], seen[-1]) == (30, 1030)
