#!/usr/bin/env python3
"""abi_test.py LIBRARY: the C interface by dlopen from Python, with nothing but the standard library. Expected
numbers are computed here."""

import array
import ctypes as c
import math
import random
import sys
import unittest

from c_structs import (
    Argument,
    Attention,
    Batch,
    Cache,
    CacheNeed,
    LayerCaches,
    LayerConfig,
    LayerOptions,
    OpMember,
    PoolInfo,
    PrefixStats,
    Scalar,
    Scope,
    Tensor,
)

DIM, ROPE = 512, 64
F32, BF16, I32, I64 = 1, 3, 6, 7
OK, INVALID = 0, 1
NUMBER, FORMAT, RULE, INPUT = 4, 5, 6, 7
DTYPES = {"f": F32, "H": BF16, "i": I32, "q": I64}


class Op:
    """An op by its name: all that a binding needs to know of it, it asks the library."""

    def __init__(self, name, **scalars):
        kinds = {member: kind for member, kind in members(name) if kind < INPUT}
        values = []
        for member, value in scalars.items():
            kind = kinds.get(member)
            field = "number" if kind == NUMBER else "text" if kind in (FORMAT, RULE) else "integer"
            values.append(Scalar(name=member.encode(), **{field: value}))
        self.plan = c.c_void_p()
        array_of = (Scalar * len(values))(*values)
        self.status = lib.smla_plan_create(name.encode(), array_of, c.c_int64(len(values)), None, c.byref(self.plan))

    def __call__(self, arguments):
        size = c.c_size_t()
        status = lib.smla_plan_workspace(self.plan, c.byref(size), None)
        workspace = Aligned(size.value)
        given = [
            Argument(
                name=name.encode(),
                **({"cache": c.pointer(value)} if isinstance(value, Cache) else {"tensor": c.pointer(value)}),
            )
            for name, value in arguments.items()
        ]
        return status or lib.smla_plan_run(
            self.plan, (Argument * len(given))(*given), c.c_int64(len(given)), c.c_void_p(workspace.address), size, None
        )

    def __del__(self):
        lib.smla_plan_destroy(self.plan)


def members(op):
    found = []
    while True:
        member = OpMember()
        if lib.smla_op_get_member(op.encode(), c.c_int64(len(found)), c.byref(member)) != OK:
            raise ValueError(lib.smla_last_error().decode())
        if member.kind == 0:
            return found
        found.append((member.name.decode(), member.kind))


def tensor(values, *shape):
    made = Tensor(data=values.buffer_info()[0], dtype=DTYPES[values.typecode], rank=len(shape))
    made.shape[: len(shape)] = shape
    return made


def bf16(values):
    """To the nearest of the numbers that are multiples of 1/64 below 2: exact in bf16, so the upper half of the
    float is all of it."""
    return array.array("H", (word >> 16 for word in array.array("I", array.array("f", values).tobytes())))


class Aligned:
    def __init__(self, size):
        self.memory = c.create_string_buffer(size + 64)
        self.address = (c.addressof(self.memory) + 63) // 64 * 64


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def attend(query, keys, sink):
    scores = [dot(query, key) / math.sqrt(DIM) for key in keys]
    total = sum(map(math.exp, scores)) + math.exp(sink)
    return [sum(math.exp(s) * key[d] for s, key in zip(scores, keys)) / total for d in range(DIM)]


def rms_norm(x, weight=None):
    factor = 1 / math.sqrt(dot(x, x) / len(x) + 1e-6)
    return [v * factor * (weight[i] if weight else 1) for i, v in enumerate(x)]


def rotate(x, position, sign=1):
    x = list(x)
    for i in range(ROPE // 2):
        angle = position * 10000 ** (-2 * i / ROPE)
        cos, sin, at = math.cos(angle), sign * math.sin(angle), DIM - ROPE + 2 * i
        x[at], x[at + 1] = x[at] * cos - x[at + 1] * sin, x[at + 1] * cos + x[at] * sin
    return x


def window_shapes(hidden, heads, q_lora, o_lora):
    """Of the weights of a window-only layer with a group a head."""
    return {
        "wq_a.weight": (q_lora, hidden),
        "q_norm.weight": (q_lora,),
        "wq_b.weight": (heads * DIM, q_lora),
        "wkv.weight": (DIM, hidden),
        "kv_norm.weight": (DIM,),
        "wo_a.weight": (heads * o_lora, DIM),
        "wo_b.weight": (hidden, heads * o_lora),
        "attn_sink": (heads,),
    }


class Abi(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(7)

    def numbers(self, n):
        return [self.random.randrange(-64, 64) / 64 for _ in range(n)]

    def check(self, status):
        self.assertEqual((OK, ""), (status, lib.smla_last_error().decode()))

    def test_version(self):
        self.assertRegex(lib.smla_version().decode(), r"^\d+\.\d+\.\d+$")

    def test_sparse_attention(self):
        rows, heads, tokens, width = 8, 2, 2, 4
        keys = [self.numbers(DIM) for _ in range(rows)]
        queries = [[self.numbers(DIM) for _ in range(heads)] for _ in range(tokens)]
        chosen = [[0, 5, -1, 7], [3, 99, 6, 1]]
        sinks = [0.5, -1.0]
        kv = bf16([x for row in keys for x in row])
        q = bf16([x for token in queries for row in token for x in row])
        indices = array.array("i", chosen[0] + chosen[1])
        sink, o = array.array("f", sinks), array.array("f", bytes(4 * tokens * heads * DIM))
        cache = Cache(format=b"bf16", base=kv.buffer_info()[0], num_blocks=2, block_size=4)
        t_q, t_indices, t_sink, t_o = (
            tensor(q, tokens, heads, DIM),
            tensor(indices, tokens, width),
            tensor(sink, heads),
            tensor(o, tokens, heads, DIM),
        )
        scope = Scope(cache=c.pointer(cache), indices=c.pointer(t_indices))
        args = Attention(
            q=c.pointer(t_q), scope=c.pointer(scope), sink=c.pointer(t_sink), o=c.pointer(t_o), implementation=b"ref"
        )
        size = c.c_size_t()
        self.check(lib.smla_sparse_attention_workspace(c.byref(args), c.byref(size), None))
        workspace = Aligned(size.value)
        self.check(lib.smla_sparse_attention(c.byref(args), c.c_void_p(workspace.address), size))
        for t in range(tokens):
            for h in range(heads):
                want = attend(queries[t][h], [keys[i] for i in chosen[t] if 0 <= i < rows], sinks[h])
                got = o[(t * heads + h) * DIM : (t * heads + h + 1) * DIM]
                self.assertLess(max(abs(a - b) for a, b in zip(want, got)), 1e-6)

        # The same by name: the same bytes.
        typed = o.tobytes()
        o[:] = array.array("f", [math.nan] * len(o))
        by_name = Op(
            "sparse_attention",
            tokens=tokens,
            heads=heads,
            dim=DIM,
            q=BF16,
            o=F32,
            scopes=1,
            **{"scopes[0].format": b"bf16", "scopes[0].block_size": 4, "scopes[0].width": width},
        )
        self.check(by_name.status)
        tensors = {"q": t_q, "sink": t_sink, "o": t_o, "scopes[0].cache": cache, "scopes[0].indices": t_indices}
        self.check(by_name(tensors))
        args.implementation = None
        fast = o.tobytes()
        self.check(lib.smla_sparse_attention_workspace(c.byref(args), c.byref(size), None))
        workspace = Aligned(size.value)
        self.check(lib.smla_sparse_attention(c.byref(args), c.c_void_p(workspace.address), size))
        self.assertEqual(fast, o.tobytes())
        self.assertLess(max(abs(a - b) for a, b in zip(array.array("f", typed), o)), 4e-3)
        del tensors["q"]
        self.assertEqual(INVALID, by_name(tensors))
        self.assertIn("sparse_attention: q: got no tensor", lib.smla_last_error().decode())

        args.struct_size = 3
        self.assertEqual(INVALID, lib.smla_sparse_attention(c.byref(args), c.c_void_p(workspace.address), size))
        self.assertIn("struct_size 3", lib.smla_last_error().decode())
        args.struct_size = c.sizeof(args)
        cache.format = b"fp9"
        self.assertEqual(INVALID, lib.smla_sparse_attention(c.byref(args), c.c_void_p(workspace.address), size))
        self.assertIn('"fp9"', lib.smla_last_error().decode())
        self.assertEqual(INVALID, lib.smla_sparse_attention(None, None, 0))

    def test_every_op_says_its_members(self):
        names = [lib.smla_op_name(c.c_int64(i)).decode() for i in range(lib.smla_num_ops())]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            found = members(name)
            # A scalar may have a tensor's name: the tensor's dtype, for example.
            self.assertEqual(len(found), len({(member, kind >= INPUT) for member, kind in found}), name)
            self.assertTrue(any(kind < INPUT for _, kind in found) and any(kind >= INPUT for _, kind in found), name)
            self.assertEqual([kind >= INPUT for _, kind in found], sorted(kind >= INPUT for _, kind in found), name)
        with self.assertRaisesRegex(ValueError, 'op: got "no_op", expected one of projection'):
            members("no_op")

    def test_ops_by_name(self):
        rows, dim = 3, 40
        x, weight, y = (
            array.array("f", self.numbers(rows * dim)),
            array.array("f", self.numbers(dim)),
            array.array("f", bytes(4 * rows * dim)),
        )
        norm = Op("rms_norm", rows=rows, dim=dim, out=F32, eps=1e-6, **{"in": F32})
        self.check(norm.status)
        self.check(norm({"x": tensor(x, rows, dim), "weight": tensor(weight, dim), "y": tensor(y, rows, dim)}))
        for r in range(rows):
            want = rms_norm(x[r * dim : (r + 1) * dim], weight)
            self.assertLess(math.dist(want, y[r * dim : (r + 1) * dim]), 1e-5 * math.hypot(*want))

        logits, lens = array.array("f", [3, 9, 1, 7, 5, 5, 2, 8]), array.array("i", [4, 3])
        chosen = array.array("i", [77] * 6)
        top = Op("topk", rows=2, width=4, k=3)
        self.check(top.status)
        self.check(top({"logits": tensor(logits, 2, 4), "lens": tensor(lens, 2), "indices": tensor(chosen, 2, 3)}))
        self.assertEqual([{0, 1, 3}, {0, 1, 2}], [set(chosen[:3]), set(chosen[3:])])

        w, out = array.array("f", self.numbers(5 * dim)), array.array("f", bytes(4 * rows * 5))
        linear = Op("projection", m=rows, n=5, k=dim, x=F32, w=F32, y=F32)
        self.check(linear.status)
        self.check(linear({"x": tensor(x, rows, 1, dim), "w": tensor(w, 1, 5, dim), "y": tensor(out, rows, 1, 5)}))
        for r in range(rows):
            for n in range(5):
                self.assertAlmostEqual(
                    dot(x[r * dim : (r + 1) * dim], w[n * dim : (n + 1) * dim]), out[r * 5 + n], places=4
                )

        self.assertEqual(INVALID, Op("rms_norm", rows=rows, width=dim).status)
        self.assertIn(
            "rms_norm: width: got a member of that name, expected one of rows, dim", lib.smla_last_error().decode()
        )
        self.assertEqual(
            INVALID, norm({"x": tensor(x, rows, dim), "gain": tensor(weight, dim), "y": tensor(y, rows, dim)})
        )
        self.assertIn(
            "rms_norm: gain: got a member of that name, expected one of x, weight, y", lib.smla_last_error().decode()
        )

    def test_prefixes(self):
        """A request of 200 tokens lends its blocks to one that shares 150 of them: windows alone, unit 64."""
        hidden, heads, q_lora, o_lora = 16, 2, 8, 4
        shapes = window_shapes(hidden, heads, q_lora, o_lora)
        weights = {name: array.array("f", bytes(4 * math.prod(shape))) for name, shape in shapes.items()}
        descriptors = {name: tensor(weights[name], *shape) for name, shape in shapes.items()}
        names = (c.c_char_p * len(shapes))(*(name.encode() for name in shapes))
        pointers = (c.POINTER(Tensor) * len(shapes))(*(c.pointer(d) for d in descriptors.values()))
        config = LayerConfig(
            hidden_size=hidden, num_heads=heads, q_lora_rank=q_lora, o_lora_rank=o_lora, o_groups=heads
        )
        layer, pool, cache = c.c_void_p(), c.c_void_p(), c.c_void_p()
        options = LayerOptions(max_position=256)
        self.check(
            lib.smla_layer_create(c.byref(config), c.byref(options), names, pointers, len(shapes), c.byref(layer))
        )
        self.check(lib.smla_pool_create(c.byref(layer), c.c_int64(1), c.c_int64(8), None, c.byref(pool)))
        self.check(lib.smla_prefix_cache_create(pool, None, c.byref(cache)))
        tokens = [array.array("i", range(200)), array.array("i", [*range(150), *range(500, 550)])]
        requests = [c.c_void_p(), c.c_void_p()]
        reserved, found = c.c_int32(), c.c_int64()

        def table(request):
            blocks, count = c.POINTER(c.c_int32)(), c.c_int64()
            self.check(lib.smla_request_table(request, c.c_int32(0), c.byref(blocks), c.byref(count)))
            return blocks[: count.value]

        def info():
            counts = PoolInfo()
            self.check(lib.smla_pool_get_info(pool, c.byref(counts)))
            return counts

        for request, own in zip(requests, tokens):
            self.check(lib.smla_request_create(pool, c.byref(request)))
            self.check(
                lib.smla_request_append_tokens(request, c.c_void_p(own.buffer_info()[0]), c.c_int64(len(own)))
            )
        first, second = requests
        self.check(lib.smla_request_reserve(first, c.c_int64(0), c.c_int64(200), c.byref(reserved)))
        self.assertEqual((1, 4, 1), (reserved.value, len(table(first)), info().num_groups))
        # The default rule keeps the prompt's end, rounded down to 64: 192 of 200 tokens, 128 of 150.
        self.check(lib.smla_prefix_keep(cache, first, c.c_int64(0), c.c_int64(200), c.c_int64(150)))
        self.check(lib.smla_prefix_adopt(cache, second, c.c_int64(199), c.byref(found)))
        self.assertEqual((128, table(first)[:2]), (found.value, table(second)[:2]))
        self.check(lib.smla_request_reserve(second, found, c.c_int64(200), c.byref(reserved)))
        self.assertEqual((1, 8 - 4 - 2), (reserved.value, info().free_blocks))
        self.check(lib.smla_request_reserve(second, c.c_int64(200), c.c_int64(999), c.byref(reserved)))
        self.assertEqual(0, reserved.value)
        stats = PrefixStats()
        self.check(lib.smla_prefix_get_stats(cache, c.byref(stats)))
        self.assertEqual((64, 1, 1, 128), (stats.unit, stats.lookups, stats.hits, stats.hit_tokens))
        for request in requests:
            lib.smla_request_destroy(request)
        self.assertEqual((6, 2), (info().free_blocks, info().idle_blocks))
        lib.smla_prefix_cache_destroy(cache)
        self.assertEqual((8, 0), (info().free_blocks, info().idle_blocks))
        lib.smla_pool_destroy(pool)
        lib.smla_layer_destroy(layer)

    def test_layer(self):
        hidden, heads, q_lora, o_lora, tokens = 16, 2, 8, 4, 3
        shapes = window_shapes(hidden, heads, q_lora, o_lora)
        weights = {name: array.array("f", self.numbers(math.prod(shape))) for name, shape in shapes.items()}
        descriptors = {name: tensor(weights[name], *shape) for name, shape in shapes.items()}
        names = (c.c_char_p * len(shapes))(*(name.encode() for name in shapes))
        pointers = (c.POINTER(Tensor) * len(shapes))(*(c.pointer(d) for d in descriptors.values()))
        config = LayerConfig(
            hidden_size=hidden, num_heads=heads, q_lora_rank=q_lora, o_lora_rank=o_lora, o_groups=heads
        )
        options = LayerOptions(max_position=16, precision=F32)
        layer, step = c.c_void_p(), c.c_void_p()
        self.check(
            lib.smla_layer_create(c.byref(config), c.byref(options), names, pointers, len(shapes), c.byref(layer))
        )
        self.check(lib.smla_step_create(layer, c.byref(step)))
        need = CacheNeed()
        self.check(lib.smla_layer_cache_need(layer, 0, c.byref(need)))
        memory = Aligned(need.page_bytes)
        cache = Cache(format=need.format, base=memory.address, num_blocks=1, block_size=need.block_size)
        caches = LayerCaches()
        caches.cache[0] = c.pointer(cache)

        x = array.array("f", self.numbers(tokens * hidden))
        out = array.array("f", bytes(4 * tokens * hidden))
        loc, seq, positions = array.array("i", [0, tokens]), array.array("i", [tokens]), array.array("q", range(tokens))
        table = array.array("i", [0])
        parts = [tensor(loc, 2), tensor(seq, 1), tensor(positions, tokens), tensor(table, 1, 1)]
        tables = (c.POINTER(Tensor) * 1)(c.pointer(parts[3]))
        batch = Batch(
            query_start_loc=c.pointer(parts[0]),
            seq_lens=c.pointer(parts[1]),
            positions=c.pointer(parts[2]),
            block_tables=tables,
            num_block_tables=1,
        )
        self.check(lib.smla_step_build(step, c.byref(batch)))
        size = c.c_size_t()
        self.check(lib.smla_layer_workspace(layer, c.c_int64(tokens), c.c_int64(1), c.c_int64(tokens), c.byref(size)))
        workspace = Aligned(size.value)
        t_x, t_out = tensor(x, tokens, hidden), tensor(out, tokens, hidden)
        self.check(
            lib.smla_layer_forward(
                layer,
                None,
                step,
                c.byref(caches),
                c.byref(t_x),
                c.byref(t_out),
                c.c_void_p(workspace.address),
                size,
                None,
            )
        )

        def linear(name, values):
            return [dot(weights[name][i : i + len(values)], values) for i in range(0, len(weights[name]), len(values))]

        keys = []
        for t in range(tokens):
            row = x[t * hidden : (t + 1) * hidden]
            keys.append(rotate(rms_norm(linear("wkv.weight", row), weights["kv_norm.weight"]), t))
            q = linear("wq_b.weight", rms_norm(linear("wq_a.weight", row), weights["q_norm.weight"]))
            z = []
            for h in range(heads):
                o = rotate(
                    attend(rotate(rms_norm(q[h * DIM : (h + 1) * DIM]), t), keys, weights["attn_sink"][h]), t, -1
                )
                z += [
                    dot(weights["wo_a.weight"][r * DIM : (r + 1) * DIM], o) for r in range(h * o_lora, (h + 1) * o_lora)
                ]
            want, got = linear("wo_b.weight", z), out[t * hidden : (t + 1) * hidden]
            self.assertLess(math.dist(want, got), 1e-5 * math.hypot(*want))

        cache.block_size = 1
        self.assertEqual(
            INVALID,
            lib.smla_layer_forward(
                layer,
                None,
                step,
                c.byref(caches),
                c.byref(t_x),
                c.byref(t_out),
                c.c_void_p(workspace.address),
                size,
                None,
            ),
        )
        self.assertIn("window cache", lib.smla_last_error().decode())
        bad = c.c_void_p()
        self.assertEqual(
            INVALID,
            lib.smla_layer_create(c.byref(config), c.byref(options), names, pointers, len(shapes) - 1, c.byref(bad)),
        )
        self.assertIn("attn_sink", lib.smla_last_error().decode())
        self.assertIsNone(bad.value)
        lib.smla_step_destroy(step)
        lib.smla_layer_destroy(layer)


if __name__ == "__main__":
    lib = c.CDLL(sys.argv.pop(1))
    lib.smla_last_error.restype = lib.smla_version.restype = lib.smla_op_name.restype = c.c_char_p
    lib.smla_num_ops.restype = c.c_int64
    for function in ("layer", "step", "plan", "pool", "request", "prefix_cache"):
        getattr(lib, f"smla_{function}_destroy").argtypes = [c.c_void_p]
    lib.smla_layer_create.argtypes = [c.c_void_p] * 4 + [c.c_int64, c.c_void_p]
    unittest.main()
