#!/usr/bin/env python3
"""Writes tests/golden/codec_tables.txt: what ml_dtypes makes of the number formats, as an oracle that is not this
project's.

`pip install ml_dtypes`, then `tools/make_codec_tables.py > tests/golden/codec_tables.txt`. Floats are written as their
32 bits in hex.
"""

import ml_dtypes
import numpy as np

DECODED = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 256),
    "e2m1": (ml_dtypes.float4_e2m1fn, 16),
    "ue8m0": (ml_dtypes.float8_e8m0fnu, 256),
}
ENCODED = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e2m1": (ml_dtypes.float4_e2m1fn, 6.0)}


def hex32(values):
    return [f"{bits:08x}" for bits in np.asarray(values, np.float32).view(np.uint32)]


def boundaries(dtype, codes, largest):
    """Every value and every midpoint of neighbours, each with the float below and above it."""
    values = np.unique(np.abs(np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float32)))
    values = values[np.isfinite(values)]
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, [largest * 2, 1e30]]).astype(np.float32)
    near = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    return np.unique(near[near >= 0])


print("# made by tools/make_codec_tables.py with ml_dtypes; decode: <format> <float of code 0> <of code 1> ...")
print("# encode: <format> <float> <code> of non-negative floats, saturating")
for name, (dtype, codes) in DECODED.items():
    print("decode", name, *hex32(np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float32)))
for name, (dtype, largest) in ENCODED.items():
    for value in boundaries(dtype, DECODED[name][1] // 2, largest):
        code = np.minimum(value, np.float32(largest)).astype(dtype).view(np.uint8)
        print("encode", name, hex32([value])[0], f"{code:02x}")
