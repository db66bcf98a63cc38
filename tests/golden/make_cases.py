#!/usr/bin/env python3
"""Cases of upstream's calls that no recorded file covers, computed from the formulas in plain Python: `make_cases.py
FOLDER`.

Nothing here is shared with the library: codecs are searched in tables of all codes, sums are doubles, layouts are
spelled out.
"""

import bisect
import json
import math
import random
import struct
import sys
from pathlib import Path


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF


def bf16(x):
    return struct.unpack("<f", struct.pack("<I", bf16_bits(x) << 16))[0]


E4M3 = [(m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) for e in range(16) for m in range(8)][:127]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nearest_code(table, sign, x):
    a = min(abs(x), table[-1])
    low = max(bisect.bisect_right(table, a) - 1, 0)
    high = min(low + 1, len(table) - 1)
    down, up = a - table[low], table[high] - a
    code = low if down < up or (down == up and low % 2 == 0) else high
    return code | (sign if math.copysign(1.0, x) < 0 else 0)


def e4m3(x):
    return nearest_code(E4M3, 0x80, x)


def e4m3_value(code):
    return -E4M3[code & 0x7F] if code & 0x80 else E4M3[code]


def e2m1(x):
    return nearest_code(E2M1, 8, x)


def ceil_log2(v):
    m, e = math.frexp(v)
    return e - 1 if m == 0.5 else e


class Case:
    def __init__(self, op, **params):
        self.op, self.params, self.tensors = "upstream:" + op, params, {}

    def add(self, name, dtype, shape, values):
        values = list(values)
        assert math.prod(shape) == len(values), (name, shape, len(values))
        pack = {"F32": "f", "I32": "i", "I64": "q", "U8": "B", "F8_E4M3": "B", "BOOL": "?", "BF16": "H"}[dtype]
        if dtype == "BF16":
            values = [bf16_bits(v) for v in values]
        self.tensors[name] = (dtype, shape, struct.pack(f"<{len(values)}{pack}", *values))

    def write(self, folder, name):
        header = {"__metadata__": {"format": "smla-case/1", "op": self.op, "params": json.dumps(self.params)}}
        offset = 0
        for key, (dtype, shape, data) in self.tensors.items():
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(Path(folder) / f"formula_{name}.safetensors", "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _, _, data in self.tensors.values():
                out.write(data)


def flat(rows):
    return [x for row in rows for x in row]


def rope_table(positions, theta):
    rows = []
    for p in range(positions):
        angles = [f32(p * f32(theta ** (-2 * i / 64))) for i in range(32)]
        rows.append([f32(math.cos(a)) for a in angles] + [f32(math.sin(a)) for a in angles])
    return rows


def rotate(row, cos_sin, inverse=False):
    """The last 64 numbers, each product and sum rounded to fp32."""
    out = list(row)
    base = len(row) - 64
    for i in range(32):
        c, s = cos_sin[i], -cos_sin[32 + i] if inverse else cos_sin[32 + i]
        e, o = row[base + 2 * i], row[base + 2 * i + 1]
        out[base + 2 * i] = f32(f32(e * c) - f32(o * s))
        out[base + 2 * i + 1] = f32(f32(o * c) + f32(e * s))
    return out


def put_main_row(cache, stride, block, slot, row, clamp="amax"):
    """584 bytes: in a block first 576 bytes a row, then 8 bytes of scales a row."""
    base, offset = slot // block * stride, slot % block
    scales = []
    for g in range(7):
        x = [bf16(v) for v in row[64 * g : 64 * g + 64]]
        amax = max(abs(v) for v in x)
        e = ceil_log2(max(amax, f32(1e-4)) / 448) if clamp == "amax" else ceil_log2(max(f32(amax / 448), f32(1e-4)))
        scales.append(e + 127)
        for i, v in enumerate(x):
            cache[base + offset * 576 + 64 * g + i] = e4m3(v * 2.0**-e)
    for i, v in enumerate(row[448:]):
        cache[base + offset * 576 + 448 + 2 * i : base + offset * 576 + 450 + 2 * i] = struct.pack("<H", bf16_bits(v))
    cache[base + block * 576 + 8 * offset : base + block * 576 + 8 * offset + 8] = bytes(scales + [0])


def put_index_row(cache, stride, block, slot, row, quant):
    base, offset = slot // block * stride, slot % block
    x = [bf16(v) for v in row]
    if quant == "fp8":
        e = ceil_log2(max(max(abs(v) for v in x), f32(1e-4)) / 448)
        cache[base + offset * 128 : base + offset * 128 + 128] = bytes(e4m3(v * 2.0**-e) for v in x)
        at = base + block * 128 + 4 * offset
        cache[at : at + 4] = struct.pack("<f", 2.0**e)
        return
    packed, scales = mxfp4(x)
    cache[base + offset * 64 : base + offset * 64 + 64] = bytes(packed)
    cache[base + block * 64 + 4 * offset : base + block * 64 + 4 * offset + 4] = bytes(scales)


def mxfp4(x):
    packed, scales = [], []
    for g in range(len(x) // 32):
        group = x[32 * g : 32 * g + 32]
        e = ceil_log2(max(max(abs(v) for v in group), 6 * 2.0**-126) / 6)
        scales.append(e + 127)
        codes = [e2m1(v * 2.0**-e) for v in group]
        packed += [codes[i] | codes[i + 1] << 4 for i in range(0, 32, 2)]
    return packed, scales


def gaussians(rng, n, scale=1.0):
    return [f32(rng.gauss(0, scale)) for _ in range(n)]


def bf16_rows(rng, rows, n):
    return [[bf16(v * 2.0 ** rng.randint(-3, 3)) for v in gaussians(rng, n)] for _ in range(rows)]


def q_kv_rmsnorm(folder, rng):
    c = Case("fused_q_kv_rmsnorm", eps=1e-6, q_lora=1536)
    x, wq, wk = bf16_rows(rng, 3, 1536 + 512), bf16_rows(rng, 1, 1536)[0], bf16_rows(rng, 1, 512)[0]

    def norm(row, w):
        inv = f32(1 / math.sqrt(sum(v * v for v in row) / len(row) + 1e-6))
        return [f32(f32(v * inv) * g) for v, g in zip(row, w)]

    c.add("in.qr_kv", "BF16", [3, 2048], flat(x))
    c.add("in.q_weight", "BF16", [1536], wq)
    c.add("in.kv_weight", "BF16", [512], wk)
    c.add("out.qr_out", "BF16", [3, 1536], flat(norm(r[:1536], wq) for r in x))
    c.add("out.kv_out", "BF16", [3, 512], flat(norm(r[1536:], wk) for r in x))
    c.write(folder, "q_kv_rmsnorm_1536")


def compress(folder, rng, name, ratio, dim, quant, clamp, requests, state_block, kv_block, stride):
    coff = 2 if ratio == 4 else 1
    width, row_floats = coff * dim, 2 * coff * dim
    params = dict(
        compress_ratio=ratio,
        head_dim=dim,
        overlap=ratio == 4,
        state_block=state_block,
        kv_block=kv_block,
        kv_block_stride=stride,
    )
    c = Case(
        "save_partial_states + compress_norm_rope_store",
        **params,
        eps=1e-6,
        quant=quant,
        requests=requests,
        clamp=clamp,
    )
    window = coff * ratio
    table, position, request, state_slot, kv_slot = (
        rope_table(max(p + n for p, n in requests) + 1, 160000),
        [],
        [],
        [],
        [],
    )
    columns = max(p + n for p, n in requests) // state_block + 1
    blocks_used, block_table, next_entry = 0, [], 0
    for r, (first, n) in enumerate(requests):
        row = [-1] * columns
        for column in range(max(first - window, 0) // state_block, (first + n - 1) // state_block + 1):
            row[column] = blocks_used
            blocks_used += 1
        block_table.append(row)
        for p in range(first, first + n):
            position.append(p)
            request.append(r)
            state_slot.append(row[p // state_block] * state_block + p % state_block)
            kv_slot.append(next_entry * 3 if (p + 1) % ratio == 0 else -1)
            next_entry += 1 if (p + 1) % ratio == 0 else 0
    tokens = len(position) + 1
    position, request, state_slot, kv_slot = (
        position + [0],
        request + [0],
        state_slot + [-1],
        kv_slot + [-1],
    )  # one padding token
    state = gaussians(rng, blocks_used * state_block * row_floats)
    kv_score = [gaussians(rng, row_floats, 0.01 if clamp == "scale" else 1.0) for _ in range(tokens)]
    ape, norm = [gaussians(rng, width) for _ in range(ratio)], [bf16(1 + 0.1 * v) for v in gaussians(rng, dim)]
    if clamp == "scale":
        norm = [bf16(v * 0.002) for v in norm]
    kv_blocks = next_entry * 3 // kv_block + 1
    cache = bytearray([0xA5]) * (kv_blocks * stride)
    c.add("in.kv_score", "F32", [tokens, row_floats], flat(kv_score))
    c.add("in.ape", "F32", [ratio, width], flat(ape))
    c.add("in.norm_weight", "BF16", [dim], norm)
    c.add("in.position", "I64", [tokens], position)
    c.add("in.token_to_req", "I32", [tokens], request)
    c.add("in.state_slot", "I64", [tokens], state_slot)
    c.add("in.block_table", "I32", [len(requests), columns], flat(block_table))
    c.add("in.kv_slot", "I64", [tokens], kv_slot)
    c.add("in.state_before", "F32", [blocks_used, state_block, row_floats], state)
    c.add("in.cache_before", "U8", [kv_blocks, stride], cache)
    c.add("in.cos_sin", "F32", [len(table), 64], flat(table))
    rows = []
    for t in range(tokens):
        row = [0.0] * row_floats
        if state_slot[t] >= 0:
            bias = ape[position[t] % ratio]
            row = kv_score[t][:width] + [f32(s + b) for s, b in zip(kv_score[t][width:], bias)]
            state[state_slot[t] * row_floats : (state_slot[t] + 1) * row_floats] = row
        rows.append(row)
    for t in range(tokens):
        if kv_slot[t] < 0:
            continue
        entry = []
        for ch in range(dim):
            values, logits = [], []
            for j in range(window):
                p = position[t] - window + 1 + j
                if p < 0:
                    continue
                at = (block_table[request[t]][p // state_block] * state_block + p % state_block) * row_floats
                at += ch + (dim if coff == 2 and j >= ratio else 0)
                values.append(state[at])
                logits.append(state[at + width])
            top = max(logits)
            weights = [math.exp(s - top) for s in logits]
            entry.append(sum(w * v for w, v in zip(weights, values)) / sum(weights))
        inv = 1 / math.sqrt(sum(v * v for v in entry) / dim + 1e-6)
        row = rotate([f32(v * inv * w) for v, w in zip(entry, norm)], table[position[t] // ratio * ratio])
        if dim == 512:
            put_main_row(cache, stride, kv_block, kv_slot[t], row, clamp)
        else:
            put_index_row(cache, stride, kv_block, kv_slot[t], row, quant)
    c.add("out.state_rows", "F32", [tokens, row_floats], flat(rows))
    c.add("out.cache", "U8", [kv_blocks, stride], cache)
    c.write(folder, name)


def indexer_q_mxfp4(folder, rng):
    c = Case("fused_indexer_q_rope_quant", softmax_scale=128**-0.5, head_scale=64**-0.5, mode="mxfp4")
    table, position = rope_table(40, 160000), [0, 7, 39]
    q, w = bf16_rows(rng, 3 * 64, 128), bf16_rows(rng, 3, 64)
    packed, scales = [], []
    for i, row in enumerate(q):
        p, s = mxfp4([bf16(v) for v in rotate(row, table[position[i // 64]])])
        packed += p
        scales.append(struct.unpack("<i", bytes(s))[0])
    c.add("in.q", "BF16", [3, 64, 128], flat(q))
    c.add("in.weights", "BF16", [3, 64], flat(w))
    c.add("in.position", "I64", [3], position)
    c.add("in.cos_sin", "F32", [40, 64], flat(table))
    c.add("out.q_packed", "U8", [3, 64, 64], packed)
    c.add("out.q_scale", "I32", [3, 64], scales)
    c.add("out.weights_out", "F32", [3, 64], [v * 128**-0.5 * 64**-0.5 for v in flat(w)])
    c.write(folder, "indexer_q_mxfp4")


def insert_k(folder, rng):
    c = Case("quantize_and_insert_k_cache", block_size=16, block_stride=9792)
    k, slots, cache = bf16_rows(rng, 4, 512), [17, -1, 0, 31], bytearray([0xA5]) * (2 * 9792)
    c.add("in.k", "BF16", [4, 512], flat(k))
    c.add("in.slot_mapping", "I64", [4], slots)
    c.add("in.cache_before", "U8", [2, 9792], cache)
    for row, slot in zip(k, slots):
        if slot >= 0:
            put_main_row(cache, 9792, 16, slot, row)
    c.add("out.cache", "U8", [2, 9792], cache)
    c.write(folder, "quantize_and_insert_k")


def index_cache(rng, blocks, stride):
    cache = bytearray([0xFF]) * (blocks * stride)
    for slot in range(blocks * 64):
        put_index_row(cache, stride, 64, slot, gaussians(rng, 128), "fp8")
    return cache


def index_row(cache, stride, block, offset):
    at = block * stride
    values = cache[at + 128 * offset : at + 128 * offset + 128]
    scale = cache[at + 8192 + 4 * offset : at + 8192 + 4 * offset + 4]
    return values, scale


def cp_gather(folder, rng):
    c = Case("cp_gather_indexer_k_quant_cache", block_size=64, block_stride=8640, fill=165)
    cache, table, starts = index_cache(rng, 4, 8640), [[2, 0], [3, 1]], [0, 70, 73]
    k, scale = bytearray([165]) * (80 * 128), bytearray([165]) * (80 * 4)
    for b in range(2):
        for j in range(starts[b + 1] - starts[b]):
            v, s = index_row(cache, 8640, table[b][j // 64], j % 64)
            to = starts[b] + j
            k[128 * to : 128 * to + 128], scale[4 * to : 4 * to + 4] = v, s
    c.add("in.cache", "U8", [4, 8640], cache)
    c.add("in.cu_seq_lens", "I32", [3], starts)
    c.add("in.block_table", "I32", [2, 2], flat(table))
    c.add("out.dst_k", "U8", [80, 128], k)
    c.add("out.dst_scale", "U8", [80, 4], scale)
    c.write(folder, "cp_gather_indexer_k")


def score(q, k, k_scale, weights):
    return k_scale * sum(max(sum(a * b for a, b in zip(head, k)), 0.0) * w for head, w in zip(q, weights))


def paged_logits(folder, rng):
    c = Case("DeepGEMM fp8_paged_mqa_logits (sm90)", block_size=64, block_stride=8640)
    cache, table, lens, width = index_cache(rng, 3, 8640), [[2, 0], [1, 1]], [[3, 66], [0, 2]], 128
    q = [[e4m3(v) for v in gaussians(rng, 128)] for _ in range(4 * 64)]
    w = gaussians(rng, 4 * 64, 0.1)
    logits = []
    for row in range(4):
        heads = [[e4m3_value(v) for v in q[64 * row + h]] for h in range(64)]
        for j in range(width):
            if j >= lens[row // 2][row % 2]:
                logits.append(-1e30 if j % 3 else math.nan)
                continue
            v, s = index_row(cache, 8640, table[row // 2][j // 64], j % 64)
            logits.append(
                score(heads, [e4m3_value(x) for x in v], struct.unpack("<f", s)[0], w[64 * row : 64 * row + 64])
            )
    c.add("in.q", "F8_E4M3", [2, 2, 64, 128], flat(q))
    c.add("in.cache", "U8", [3, 8640], cache)
    c.add("in.weights", "F32", [4, 64], w)
    c.add("in.context_lens", "I32", [2, 2], flat(lens))
    c.add("in.block_table", "I32", [2, 2], flat(table))
    c.add("out.logits", "F32", [4, width], logits)
    c.add("out.schedule", "I32", [3, 2], [0, 0, 1, 1, 2, 2])
    c.write(folder, "paged_mqa_logits_nn2")


def ragged_logits(folder, rng):
    c = Case("DeepGEMM fp8_mqa_logits (sm90)")
    keys, ks, ke = 40, [0, 3, 39, 10], [1, 40, 40, 10]
    q = [[e4m3(v) for v in gaussians(rng, 128)] for _ in range(4 * 64)]
    k = [[e4m3(100 * v) for v in gaussians(rng, 128)] for _ in range(keys)]
    scale, w, logits = [2.0 ** rng.randint(-9, -5) for _ in range(keys)], gaussians(rng, 4 * 64, 0.1), []
    for row in range(4):
        heads = [[e4m3_value(v) for v in q[64 * row + h]] for h in range(64)]
        for j in range(keys):
            inside = ks[row] <= j < ke[row]
            logits.append(
                score(heads, [e4m3_value(x) for x in k[j]], scale[j], w[64 * row : 64 * row + 64]) if inside else -1e30
            )
    c.add("in.q", "F8_E4M3", [4, 64, 128], flat(q))
    c.add("in.k", "F8_E4M3", [keys, 128], flat(k))
    c.add("in.k_scale", "F32", [keys], scale)
    c.add("in.weights", "F32", [4, 64], w)
    c.add("in.ks", "I32", [4], ks)
    c.add("in.ke", "I32", [4], ke)
    c.add("out.logits", "F32", [4, keys], logits)
    c.write(folder, "mqa_logits")


def cooperative_topk(folder, rng):
    k, width, lens = 512, 700, [0, 5, 512, 513, 700]
    c = Case("vllm cooperative_topk", k=k)
    logits = [gaussians(rng, width) for _ in lens]
    rows = []
    for row, n in zip(logits, lens):
        best = sorted(sorted(range(n), key=lambda j: (-row[j], j))[:k])
        rows.append(best + [-1] * (k - len(best)))
    c.add("in.logits", "F32", [len(lens), width], flat(logits))
    c.add("in.lens", "I32", [len(lens)], lens)
    c.add("out.indices_sorted", "I32", [len(lens), k], flat(rows))
    c.write(folder, "cooperative_topk")


def inverse_rope(folder, rng, heads, groups, kind):
    tokens = 3
    c = Case("fused_inv_rope_fp8_quant", groups=groups, eps=1e-10, scale=kind)
    table, position = rope_table(60, 10000), [0, 59, 17]
    o = bf16_rows(rng, tokens * heads, 512)
    o[5] = [0.0] * 512
    codes, exponents = [], []
    for i, row in enumerate(o):
        x = rotate(row, table[position[i // heads]], inverse=True)
        for g in range(4):
            part = x[128 * g : 128 * g + 128]
            e = ceil_log2(f32(max(max(abs(v) for v in part), f32(1e-10)) * f32(1 / 448)))
            exponents.append(e)
            codes += [e4m3(v * 2.0**-e) for v in part]
    width = heads // groups * 512
    c.add("in.o", "BF16", [tokens, heads, 512], flat(o))
    c.add("in.position", "I64", [tokens], position)
    c.add("in.cos_sin", "F32", [60, 64], flat(table))
    c.add("out.o_fp8", "F8_E4M3", [tokens, groups, width], codes)
    if kind == "f32":
        c.add("out.o_scale", "F32", [tokens, groups, width // 128], [2.0**e for e in exponents])
    else:
        words = [
            struct.unpack("<i", bytes(e + 127 for e in exponents[i : i + 4]))[0] for i in range(0, len(exponents), 4)
        ]
        c.add("out.o_scale", "I32", [tokens, groups, width // 512], words)
    c.write(folder, f"inv_rope_h{heads}_{kind}")


def dequant_gather(folder, rng):
    c = Case("dequantize_and_gather_k_cache", block_size=16, offset=2, block_stride=9792, fill=-3.0)
    rows, cache = bf16_rows(rng, 48, 512), bytearray([0xFF]) * (3 * 9792)
    for slot, row in enumerate(rows):
        put_main_row(cache, 9792, 16, slot, row)
    table, seq, out = [[2, 1], [0, -1000000]], [20, 5], []
    for b in range(2):
        for i in range(24):
            j = i - 2
            if not 0 <= j < seq[b]:
                out += [-3.0] * 512
                continue
            base, offset = table[b][j // 16] * 9792, j % 16
            for g in range(7):
                scale = 2.0 ** (cache[base + 16 * 576 + 8 * offset + g] - 127)
                out += [e4m3_value(cache[base + 576 * offset + 64 * g + i]) * scale for i in range(64)]
            bits = struct.unpack("<64H", cache[base + 576 * offset + 448 : base + 576 * offset + 576])
            out += [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in bits]
    c.add("in.cache", "U8", [3, 9792], cache)
    c.add("in.seq_lens", "I32", [2], seq)
    c.add("in.block_table", "I32", [2, 2], flat(table))
    c.add("out.out", "BF16", [2, 24, 512], out)
    c.write(folder, "dequant_gather_all")


def combine(folder, rng, ratio, top_k, width):
    requests, base, m, n = [(40, 3), (9, 9), (300, 2)], 6, 400, 80
    c = Case("combine_topk_swa_indices", window=128, compress_ratio=ratio, topk=top_k, M=m, N=n)
    starts, topk, rows, lens, gather = [base], [], [], [], []
    for b, (seq, qlen) in enumerate(requests):
        starts.append(starts[-1] + qlen)
        gather.append(qlen + min(seq - qlen, 127))
        for pos in range(seq - qlen, seq):
            visible = min((pos + 1) // ratio, top_k)
            chosen = rng.sample(range((pos + 1) // ratio), visible)
            topk.append(chosen + [-1] * (top_k - visible))
            window = [b * m + n + p - (seq - gather[b]) for p in range(max(pos - 127, 0), pos + 1)]
            row = [b * m + v for v in chosen] + window
            lens.append(len(row))
            rows.append(row + [-1] * (width - len(row)))
    c.add("in.topk_indices", "I32", [len(topk), top_k], flat(topk))
    c.add("in.query_start_loc", "I32", [len(starts)], starts)
    c.add("in.seq_lens", "I32", [3], [seq for seq, _ in requests])
    c.add("in.gather_lens", "I32", [3], gather)
    c.add("out.combined_indices", "I32", [len(rows), width], flat(rows))
    c.add("out.combined_lens", "I32", [len(lens)], lens)
    c.write(folder, f"combine_topk_swa_c{ratio}")


def mixed_global(folder, rng):
    # C128A: two decode tokens of ready slots, a prefill of three tokens that closes entry 1; blocks of 2 entries lie 9
    # tokens apart.
    ws, p, span, window = 128, 8, 9, 128
    c = Case("build_flashinfer_mixed_sparse_indices", swa_block=64, compressed_block=2, window=window, compress_ratio=128, topk=8, local=False,
             compressed_span=span)  # fmt: skip
    swa = [[i * 3 if i < 128 else -1 for i in range(ws)], [500 + i if i < 77 else -1 for i in range(ws)]]
    ready, lens = [[8, 9, 22, -1, -1, -1, -1, -1], [4, -1, -1, -1, -1, -1, -1, -1]], [3, 1]
    topk = [[0] + [-1] * 7, [0, 1] + [-1] * 6, [0, 1] + [-1] * 6]
    window_table, compressed_table, seq = [[0] * 5, [0] * 5, [4, 9, 1, 7, 3]], [[0], [0], [6]], [400, 200, 257]

    def remap(s):
        return s // 2 * span + s % 2 if s >= 0 else -1

    rows = [swa[t] + [remap(s) for s in ready[t]] for t in range(2)]
    for t, pos in enumerate(range(254, 257)):
        row = [window_table[2][q // 64] * 64 + q % 64 for q in range(pos - 127, pos + 1)]
        rows.append(row + [remap(6 * 2 + v) if v >= 0 else -1 for v in topk[t]])
    c.add("in.decode_swa_indices", "I32", [2, ws], flat(swa))
    c.add("in.decode_compressed_indices", "I32", [2, p], flat(ready))
    c.add("in.decode_compressed_topk_lens", "I32", [2], lens)
    c.add("in.prefill_topk_indices", "I32", [3, p], flat(topk))
    c.add("in.query_start_loc", "I32", [4], [0, 1, 2, 5])
    c.add("in.seq_lens", "I32", [3], seq)
    c.add("in.token_to_req", "I32", [5], [0, 1, 2, 2, 2])
    c.add("in.swa_block_table", "I32", [3, 5], flat(window_table))
    c.add("in.compressed_block_table", "I32", [3, 1], flat(compressed_table))
    c.add("out.sparse_indices", "I32", [5, ws + p], flat(rows))
    c.add("out.sparse_topk_lens", "I32", [5], [ws + 3, ws + 1, ws + 1, ws + 2, ws + 2])
    c.write(folder, "mixed_sparse_global")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, rng = sys.argv[1], random.Random(20)
    q_kv_rmsnorm(folder, rng)
    compress(folder, rng, "compress_c128_main", 128, 512, "fp8", "amax", [[120, 10], [255, 1]], 8, 2, 1728)
    compress(folder, rng, "compress_c4_main_scale_clamp", 4, 512, "fp8", "scale", [[0, 5], [30, 2]], 4, 4, 2368)
    compress(folder, rng, "compress_c4_indexer_mxfp4", 4, 128, "mxfp4", "amax", [[0, 9], [21, 3]], 4, 64, 4608)
    indexer_q_mxfp4(folder, rng)
    insert_k(folder, rng)
    cp_gather(folder, rng)
    paged_logits(folder, rng)
    ragged_logits(folder, rng)
    cooperative_topk(folder, rng)
    inverse_rope(folder, rng, 64, 8, "ue8m0x4")
    inverse_rope(folder, rng, 128, 16, "f32")
    dequant_gather(folder, rng)
    combine(folder, rng, 4, 16, 256)
    combine(folder, rng, 128, 2, 256)
    mixed_global(folder, rng)


if __name__ == "__main__":
    main()
