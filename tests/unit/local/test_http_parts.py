"""Bodies in every encoding, forms, locks and error codes, each against an independent peer."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import lz4.frame
import pytest
from urllib3.filepost import encode_multipart_formdata

from ch_sink.errors import ConfigError
from ch_sink.local.clickhouse import http_encoding
from ch_sink.local.clickhouse.directory_lock import DirectoryLock
from ch_sink.local.clickhouse.http_errors import QueryError, status_of
from ch_sink.local.clickhouse.http_form import boundary_of, read_form
from ch_sink.local.clickhouse.http_request import BodyStream, Request
from ch_sink.local.clickhouse.native_blocks import BlockEncoder, decode_blocks
from ch_sink.local.clickhouse.spool import Spool

zstd = http_encoding.zstd_module()
PLAIN = b"".join(b"%d,%d\n" % (n, n * n) for n in range(20_000))


def cut(body: bytes, size: int = 1000) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


PEERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "lz4": lz4.frame.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("name", PEERS)
def test_bodies_are_decoded_however_they_are_cut(name: str) -> None:
    body = PEERS[name](PLAIN)
    for size in (1, 997, len(body)):
        assert b"".join(http_encoding.decode(name, cut(body, size))) == PLAIN


@pytest.mark.parametrize("name", ["gzip", "zstd", "lz4"])
def test_frames_one_after_the_other_are_one_body(name: str) -> None:
    body = PEERS[name](PLAIN[:5000]) + PEERS[name](PLAIN[5000:])
    assert b"".join(http_encoding.decode(name, cut(body))) == PLAIN


def test_raw_deflate_is_accepted_too() -> None:
    raw = zlib.compressobj(wbits=-15)
    assert b"".join(http_encoding.decode("deflate", cut(raw.compress(PLAIN) + raw.flush()))) == PLAIN


@pytest.mark.parametrize("name", PEERS)
def test_a_cut_off_body_is_an_error(name: str) -> None:
    with pytest.raises(QueryError):
        b"".join(http_encoding.decode(name, cut(PEERS[name](PLAIN)[:-9])))


def test_an_unknown_encoding_is_an_error() -> None:
    with pytest.raises(QueryError) as caught:
        list(http_encoding.decode("rot13", cut(PLAIN)))
    assert caught.value.status == 501


@pytest.mark.parametrize(
    ("name", "decompress"),
    [("gzip", gzip.decompress), ("deflate", zlib.decompress), ("zstd", zstd.decompress), ("lz4", lz4.frame.decompress)],
)
def test_answers_can_be_read_by_the_peer(name, decompress) -> None:  # type: ignore[no-untyped-def]
    encoder = http_encoding.encoder(name)
    body = b"".join([*(encoder.compress(piece) for piece in cut(PLAIN)), encoder.flush()])
    assert decompress(body) == PLAIN


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("gzip, deflate", "gzip"),
        ("lz4,zstd,gzip", "lz4"),
        ("zstd;q=0, gzip;q=0.5", "gzip"),
        ("identity", None),
        ("", None),
    ],
)
def test_choice_of_encoding(accepted: str, chosen: str | None) -> None:
    assert http_encoding.choose(accepted) == chosen


def test_chunked_and_plain_bodies() -> None:
    chunked = b"".join(b"%x;note=1\r\n%s\r\n" % (len(p), p) for p in cut(PLAIN)) + b"0\r\nTrailer: x\r\n\r\nNEXT"
    stream = io.BytesIO(chunked)
    assert b"".join(BodyStream(stream, {"Transfer-Encoding": "chunked"})) == PLAIN
    assert stream.read() == b"NEXT"
    stream = io.BytesIO(PLAIN + b"NEXT")
    assert b"".join(BodyStream(stream, {"Content-Length": str(len(PLAIN))})) == PLAIN
    assert stream.read() == b"NEXT"


@pytest.mark.parametrize("headers", [{"Transfer-Encoding": "chunked"}, {"Content-Length": "100"}])
def test_a_body_that_ends_early_is_an_error(headers: dict[str, str]) -> None:
    with pytest.raises(QueryError) as caught:
        list(BodyStream(io.BytesIO(b"50\r\n1234"), headers))
    assert caught.value.code == 3


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_forms_are_read_as_their_peer_writes_them(size: int, tmp_path: Path) -> None:
    tricky = b"\r\n--not the boundary\r\n" + bytes(range(256)) + b"\r\n"
    fields = {"query": "SELECT 'é'", "keys": ("keys.csv", tricky), "empty": ("e.csv", b""), "param_a": "1\r\n2"}
    body, content_type = encode_multipart_formdata(fields)
    boundary = boundary_of(content_type)
    assert boundary is not None
    params, files = read_form(cut(body, size), boundary, lambda: Spool(tmp_path))
    assert params == {"query": "SELECT 'é'", "param_a": "1\r\n2"}
    assert {name: b"".join(spool.chunks()) for name, spool in files.items()} == {"keys": tricky, "empty": b""}


def test_a_cut_off_form_is_an_error(tmp_path: Path) -> None:
    body, content_type = encode_multipart_formdata({"keys": ("k", PLAIN)})
    with pytest.raises(QueryError):
        read_form(cut(body[:-20]), boundary_of(content_type) or b"", lambda: Spool(tmp_path))


def test_large_bodies_move_to_disk_and_leave_nothing_behind(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for _ in range(10):
            spool.write(b"x" * 1_000_000)
        assert sum(len(piece) for piece in spool.chunks()) == spool.size == 10_000_000
        assert Path(spool.path).read_bytes()[:3] == b"xxx"
    assert list(tmp_path.iterdir()) == []


def test_blocks_round_trip_and_damage_is_noticed() -> None:
    encoder = BlockEncoder()
    body = encoder.compress(PLAIN) + encoder.flush()
    assert b"".join(decode_blocks(cut(body, 777))) == PLAIN
    damaged = bytearray(body)
    damaged[40] ^= 1
    with pytest.raises(QueryError) as caught:
        list(decode_blocks([bytes(damaged)]))
    assert caught.value.code == 40
    with pytest.raises(QueryError) as caught:
        list(decode_blocks([body[:-1]]))
    assert caught.value.code == 33


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    private = tmp_path / "data" / "ch_sink"
    private.mkdir(parents=True)
    first, second = DirectoryLock(private), DirectoryLock(private)
    first.acquire()
    first.describe("at http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"in use by process \d+ at http://127\.0\.0\.1:1"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


@pytest.mark.parametrize(
    ("code", "status"),
    [(62, 400), (60, 404), (81, 404), (115, 404), (497, 403), (516, 403), (159, 408), (241, 500), (48, 501)],
)
def test_statuses_are_the_servers(code: int, status: int) -> None:
    assert status_of(code) == status


def headers(**fields: str) -> Message:
    found = Message()
    for name, value in fields.items():
        found[name.replace("_", "-")] = value
    return found


def test_credentials_from_each_place_but_only_one() -> None:
    basic = headers(Authorization="Basic dTpwOmE=")
    assert Request("GET", "/", {}, basic).credentials() == ("u", "p:a")
    assert Request("GET", "/", {}, headers(X_ClickHouse_User="u", X_ClickHouse_Key="p")).credentials() == ("u", "p")
    assert Request("GET", "/", {"user": "u", "password": "p"}, headers()).credentials() == ("u", "p")
    assert Request("GET", "/", {}, headers()).credentials() == ("default", "")
    with pytest.raises(QueryError):
        Request("GET", "/", {"user": "u"}, basic).credentials()
    with pytest.raises(QueryError):
        Request("GET", "/", {}, headers(Authorization="Bearer x")).credentials()
