"""The processes behind a local Kafka, which end with their parent.

``python -m ch_sink.local.daemons keep COMMAND…`` starts the command and waits. The command is ended when this
process's standard input closes (the parent ended, however it did) or when it gets SIGTERM; on Linux also when this
process itself is killed. Exits with the command's code.

``python -m ch_sink.local.daemons mock`` is librdkafka's mock cluster, in place of a broker on machines without Java. It
prints its address in one line, then takes commands from standard input, one a line: ``topic NAME PARTITIONS``, each
answered by one line (``ok`` or a reason). It ends when its input closes. Unlike a broker it has no admin calls,
transactions or compaction, and keeps at most 5 MiB or 100,000 records per partition. A topic that does not exist is
created with four partitions by the first record produced to it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_PRODUCER = 0


def keep(command: Sequence[str]) -> int:
    """Run the command until it ends or the parent does; returns its exit code."""
    # Ignored in this process only: Ctrl-C is for the parent, which closes the pipe when it is ready.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], 0.5)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                break
    except SystemExit:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _end(child)


def _end(child: "subprocess.Popen[bytes]") -> int:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _library() -> Any:
    """The library inside confluent-kafka, whose Python interface cannot create a mock topic."""
    import confluent_kafka

    home = Path(confluent_kafka.__file__).parent
    found = [*(home.parent / "confluent_kafka.libs").glob("librdkafka*"), *home.rglob("librdkafka*.dylib")]
    return ctypes.CDLL(str(found[0]) if found else "librdkafka.so.1")


def mock() -> int:
    """Run the mock cluster until standard input closes; returns the exit code."""
    library = _library()
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_err2str": (text, [number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    reason = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    # The library wants some address and never uses it: the mock's host instance connects to nothing.
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", b"127.0.0.1:9", reason, 512)
    library.rd_kafka_conf_set(conf, b"log_level", b"0", reason, 512)
    host = library.rd_kafka_new(_PRODUCER, conf, reason, 512)
    if not host:
        sys.stderr.write(f"librdkafka gave no instance: {reason.value.decode()}\n")
        return 1
    cluster = library.rd_kafka_mock_cluster_new(host, 1)
    _answer(library.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    for line in sys.stdin:
        _command, name, partitions = line.split()
        code = library.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
        _answer("ok" if code == 0 else library.rd_kafka_err2str(code).decode())
    return 0


def _answer(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[2:]) if sys.argv[1] == "keep" else mock())
