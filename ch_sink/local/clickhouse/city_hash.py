"""CityHash128 in its version 1.0.2, which ClickHouse puts before each compressed block as a checksum.

The algorithm is Google's CityHash by Geoff Pike and Jyrki Alakuijala (MIT licence). Python's integers make it slow
(some megabytes per second), so the package ``clickhouse-cityhash`` is used if it is installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from struct import unpack_from

__all__ = ["city_hash_128"]

_M = (1 << 64) - 1
_K0, _K1, _K2, _K3 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MUL = 0x9DDFEA08EB382D69


def city_hash_128(piece: bytes) -> tuple[int, int]:
    """The hash as (low 64 bits, high 64 bits)."""
    fast = _fast()
    if fast is not None:
        whole = fast(piece)
        return whole & _M, whole >> 64
    size = len(piece)
    if size >= 16:
        low, high = unpack_from("<QQ", piece)
        return _seeded(piece, 16, low ^ _K3, high)
    if size >= 8:
        return _murmur(b"", _u64(piece, 0) ^ (size * _K0 & _M), _u64(piece, size - 8) ^ _K1)
    return _murmur(piece, _K0, _K1)


@cache
def _fast() -> Callable[[bytes], int] | None:
    try:
        found: Callable[[bytes], int] = importlib.import_module("clickhouse_cityhash.cityhash").CityHash128
    except ImportError:
        return None
    return found


def _u64(s: bytes, at: int) -> int:
    found: int = unpack_from("<Q", s, at)[0]
    return found


def _rotate(value: int, shift: int) -> int:
    return (value >> shift | value << (64 - shift)) & _M if shift else value


def _mix(value: int) -> int:
    return value ^ value >> 47


def _fold(u: int, v: int) -> int:
    a = _mix((u ^ v) * _MUL & _M)
    b = _mix((v ^ a) * _MUL & _M)
    return b * _MUL & _M


def _short(s: bytes) -> int:
    size = len(s)
    if size > 8:
        b = _u64(s, size - 8)
        return _fold(_u64(s, 0), _rotate(b + size & _M, size)) ^ b
    if size >= 4:
        first, last = unpack_from("<I", s)[0], unpack_from("<I", s, size - 4)[0]
        return _fold(size + (first << 3), last)
    if size:
        y = s[0] + (s[size >> 1] << 8)
        z = size + (s[-1] << 2)
        return _mix((y * _K2 ^ z * _K3) & _M) * _K2 & _M
    return _K2


def _murmur(s: bytes, a: int, b: int) -> tuple[int, int]:
    size = len(s)
    if size <= 16:
        a = _mix(a * _K1 & _M) * _K1 & _M
        c = (b * _K1 + _short(s)) & _M
        d = _mix(a + (_u64(s, 0) if size >= 8 else c) & _M)
    else:
        c = _fold(_u64(s, size - 8) + _K1 & _M, a)
        d = _fold(b + size & _M, c + _u64(s, size - 16) & _M)
        a = a + d & _M
        for at in range(0, size - 16, 16):
            a = (a ^ _mix(_u64(s, at) * _K1 & _M) * _K1 & _M) * _K1 & _M
            b ^= a
            c = (c ^ _mix(_u64(s, at + 8) * _K1 & _M) * _K1 & _M) * _K1 & _M
            d ^= c
    a, b = _fold(a, c), _fold(d, b)
    return a ^ b, _fold(b, a)


def _weak(w: int, x: int, y: int, z: int, a: int, b: int) -> tuple[int, int]:
    a = a + w & _M
    b = _rotate(b + a + z & _M, 21)
    c = a
    a = a + x + y & _M
    b += _rotate(a, 44)
    return a + z & _M, b + c & _M


def _seeded(s: bytes, start: int, x: int, y: int) -> tuple[int, int]:
    size = len(s) - start
    if size < 128:
        return _murmur(s[start:], x, y)
    z = size * _K1 & _M
    v0 = (_rotate(y ^ _K1, 49) * _K1 + _u64(s, start)) & _M
    v1 = (_rotate(v0, 42) * _K1 + _u64(s, start + 8)) & _M
    w0 = (_rotate(y + z & _M, 35) * _K1 + x) & _M
    w1 = _rotate(x + _u64(s, start + 88) & _M, 53) * _K1 & _M
    end = start + size // 128 * 128
    for at in range(start, end, 64):
        p = unpack_from("<8Q", s, at)
        x = _rotate(x + y + v0 + p[2] & _M, 37) * _K1 & _M ^ w1
        y = _rotate(y + v1 + p[6] & _M, 42) * _K1 & _M ^ v0
        z = _rotate(z ^ w0, 33)
        v0, v1 = _weak(p[0], p[1], p[2], p[3], v1 * _K1 & _M, x + w0)
        w0, w1 = _weak(p[4], p[5], p[6], p[7], z + w1, y)
        x, z = z, x
    y = (y + _rotate(w0, 37) * _K0 + z) & _M
    x = (x + _rotate(v0 + z & _M, 49) * _K0) & _M
    left, done = size % 128, 0
    while done < left:
        done += 32
        y = (_rotate(y - x & _M, 42) * _K0 + v1) & _M
        p = unpack_from("<4Q", s, end + left - done)
        w0 = w0 + p[2] & _M
        x = (_rotate(x, 49) * _K0 + w0) & _M
        w0 = w0 + v0 & _M
        v0, v1 = _weak(p[0], p[1], p[2], p[3], v0, v1)
    x, y = _fold(x, v0), _fold(y, w0)
    return (_fold(x + v1 & _M, w1) + y) & _M, _fold(x + w1 & _M, y + v1 & _M)
