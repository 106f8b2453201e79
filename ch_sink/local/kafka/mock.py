"""librdkafka's mock cluster as a process of its own, in place of a broker on machines without Java.

``python -m ch_sink.local.kafka.mock`` prints its address in one line, then takes commands from standard input,
one a line: ``topic NAME PARTITIONS``, each answered by one line (``ok`` or a reason). It ends when its input closes.

Unlike a broker it has no admin calls, transactions or compaction, and keeps at most 5 MiB or 100,000 records per
partition. A topic that does not exist is created with four partitions by the first record produced to it.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

_PRODUCER = 0


def _library() -> Any:
    """The library inside confluent-kafka, whose Python interface cannot create a mock topic."""
    import confluent_kafka

    home = Path(confluent_kafka.__file__).parent
    found = [*(home.parent / "confluent_kafka.libs").glob("librdkafka*"), *home.rglob("librdkafka*.dylib")]
    return ctypes.CDLL(str(found[0]) if found else "librdkafka.so.1")


def serve() -> int:
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
    sys.exit(serve())
