"""Whatever a group of JSON records is, its batch is the same with and without the compiled scanner."""

import ctypes
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ch_sink.decode import Decoder
from ch_sink.decode.avro import definition
from ch_sink.decode.json import scanned
from ch_sink.decode.native import library as native
from tests.support.avro_fuzz import scanned_and_stepped
from tests.support.scan_fuzz import Group, decoded, differences, drawn, recorded, recorded_avro, with_scanner

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(Path(native.__file__).parent.glob("*.c"))
SANITIZE = ("-g", "-O1", "-std=c99", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC")
WAYS = [pytest.param(drawn, id="drawn"), pytest.param(recorded, id="recorded")]
Way = Callable[[object], Group]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_few_groups_mean_the_same(way: Way, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    read = [0, 0]
    whole = scanned.Scanner.read

    def counted(self: scanned.Scanner, *given: object) -> object:
        columns = whole(self, *given)  # type: ignore[arg-type]
        read[columns is not None] += 1
        return columns

    monkeypatch.setattr(scanned.Scanner, "read", counted)
    for seed in range(20):
        assert not differences(way(seed), library), seed
    assert all(read)  # both what the scanner takes and what it leaves to the layouts


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_thousands_of_groups_mean_the_same(way: Way, library: ctypes.CDLL) -> None:
    first = random.randrange(1 << 40)
    print(f"seeds from {first} on")  # noqa: T201
    for seed in range(first, first + 4000):
        assert not differences(way(seed), library), seed


@pytest.mark.long
def test_threads_with_one_decoder_do_not_see_each_other(library: ctypes.CDLL) -> None:
    found: list[str] = []

    def turn(decoder: Decoder, given: Group, expected: list[str], end: float) -> None:
        while not found and time.monotonic() < end:
            for records, text in zip(given.groups, expected, strict=True):
                if decoded(decoder, records)[0] != text:
                    found.append(f"{records.values}")

    for seed in range(20):
        given = recorded(f"threads {seed}")
        with with_scanner(None):
            plain = Decoder(given.table, given.policy, want_before=given.before)
            expected = [decoded(plain, records)[0] for records in given.groups]
        with with_scanner(library):
            shared = Decoder(given.table, given.policy, want_before=given.before)
            end = time.monotonic() + 1
            threads = [threading.Thread(target=turn, args=(shared, given, expected, end)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not found, seed


@pytest.mark.long
@pytest.mark.parametrize("fuzzer", ["scan_fuzz", "document_fuzz"])
def test_nothing_is_read_or_written_out_of_bounds(fuzzer: str, tmp_path: Path) -> None:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    made = tmp_path / "sanitized.so"
    try:
        subprocess.run([*compiler, *SANITIZE, "-o", made, *SOURCES], check=True, capture_output=True, text=True)
        asked = [*compiler, "-print-file-name=libasan.so"]
        runtime = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler with sanitizers: {getattr(error, 'stderr', error)}")
    if not Path(runtime).is_absolute():
        pytest.skip(f"the compiler has no {runtime}")
    # Each object and each buffer gets memory of its own, whose ends are watched.
    watched = {
        "LD_PRELOAD": runtime,
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    seed = random.randrange(1 << 40)
    command = [sys.executable, "-m", f"tests.support.{fuzzer}", str(made), str(seed), "120"]
    environment = os.environ | watched | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-2000:]}{done.stderr[-6000:]}"


def test_datums_of_drawn_schemas_are_the_same(library: ctypes.CDLL) -> None:
    taken = [0, 0]
    for seed in range(600):
        found, took = scanned_and_stepped(random.Random(seed), library)
        assert not found, seed
        taken[took] += 1
    assert min(taken) > 100  # both what it takes and what it leaves


@pytest.mark.long
def test_a_few_recorded_groups_are_the_same(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    read = [0, 0]
    whole = definition.scan

    def counted(*given: object, **more: object) -> object:
        found = whole(*given, **more)  # type: ignore[arg-type]
        read[found is not None] += 1
        return found

    monkeypatch.setattr(definition, "scan", counted)
    for seed in range(12):
        assert not differences(recorded_avro(seed), library), seed
    assert all(read)


@pytest.mark.long
def test_datums_of_many_drawn_schemas_are_the_same(library: ctypes.CDLL) -> None:
    first = random.randrange(1 << 40)
    print(f"seeds from {first} on")  # noqa: T201
    for seed in range(first, first + 100_000):
        assert not scanned_and_stepped(random.Random(seed), library)[0], seed


@pytest.mark.long
def test_many_recorded_groups_are_the_same(library: ctypes.CDLL) -> None:
    first = random.randrange(1 << 40)
    print(f"seeds from {first} on")  # noqa: T201
    for seed in range(first, first + 2000):
        assert not differences(recorded_avro(seed), library), seed
