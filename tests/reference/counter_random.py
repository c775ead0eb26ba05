"""The random numbers and permutations of the stream, from the definitions in engine/base/{rng,permutation}.h."""

from __future__ import annotations

import math

from xxhash import xxh3_128_intdigest

M32, M64 = 2**32 - 1, 2**64 - 1


def philox(c: list[int], k: list[int]) -> list[int]:
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & M32, (p0 >> 32) ^ c[3] ^ k[1], p0 & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def random_at(seed: int, a: int, b: int, c: int) -> int:
    x = philox([a & M32, a >> 32, b & M32, b >> 32], [seed & M32, seed >> 32])
    y = philox([c & M32, c >> 32, x[2], x[3]], x[:2])
    return y[0] + (y[1] << 32)


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def permuted(n: int, seed: int, source_id: int, epoch: int, purpose: str, index: int) -> list[int]:
    """The keyed permutation of range(n), n > 0."""
    numbers = b"".join(v.to_bytes(8, "little") for v in (seed, source_id, epoch, index))
    high, low = divmod(xxh3_128_intdigest(numbers + purpose.encode()), 2**64)
    left_radix = math.isqrt(n - 1) + 1
    right_radix = -(-n // left_radix)
    keys = [mix(mix((low + (i + 1) * 0x9E3779B97F4A7C15) & M64) ^ high) for i in range(8)]

    def once(x: int) -> int:
        left, right = divmod(x, right_radix)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = (left + (mix(right ^ even) * left_radix >> 64)) % left_radix
            right = (right + (mix(left ^ odd) * right_radix >> 64)) % right_radix
        return left * right_radix + right

    result = [once(x) for x in range(n)]
    while max(result) >= n:
        result = [x if x < n else once(x) for x in result]
    return result
