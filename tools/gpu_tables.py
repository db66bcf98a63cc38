#!/usr/bin/env python3
"""Writes the GPU tables of docs/performance.md and docs/performance/gpu.md from `smla bench --device cuda --json FILE`.
Standard library only.

    python3 tools/gpu_tables.py FOLDER

FOLDER holds attention.json, indexer.json, ops.json, projection.json, layer.json (--json of the groups of that name),
serve.json and serve_fp8.json (--json of `smla bench serve`, without and with --fp8-weights), serve_stack.json and
serve_stack_fp8.json (likewise with --whole-stack), attention_bf16.json, attention_per_tensor.json (other rows) and
attention_next_n.json (several queries of a request); attention_few.json (other head counts), layer_pro.json,
layer_tp.json and layer_next_n.json (other models, slices, several queries of a request), layer_fp8.json,
layer_pro_fp8.json and layer_tp_fp8.json (FP8 weights) if they are there. Sections between <!-- gpu_NAME:begin --> and
<!-- gpu_NAME:end --> are rewritten.
"""

import json
import math
import sys
from pathlib import Path

import pages

SECTIONS = (
    "bars",
    "machine",
    "decode",
    "prefill",
    "formats",
    "queries",
    "indexer",
    "ops",
    "projection",
    "layer",
    "layer_fp8",
    "serve",
    "stack",
)
FP8_LAYERS = ("layer_fp8", "layer_pro_fp8", "layer_tp_fp8")
LAYERS = ["swa", "c4a_32k", "c128_8k", "c128_32k", "c128_128k", "c128_1M"]


def load(folder, name):
    path = folder / f"{name}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"gpu_tables: {path}: {error}")


def number(value):
    """Three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def cells(report):
    """{cell: row}; a row that is not right stops everything."""
    out = {}
    for row in report["rows"]:
        if row.get("check", "ok") != "ok":
            sys.exit(f"gpu_tables: {row['cell'] or row['name']}: {row['check']}")
        if row.get("cell") and "skipped" not in row:
            out[row["cell"]] = row
    return out


def mean(values):
    values = list(values)
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else 0.0


def microseconds(row):
    return row["median_ms"] * 1e3


def beside_peer(row):
    """Our time, and how many times the peer's (scaled by ceilings) it is."""
    if "peer_ratio" not in row:
        return number(microseconds(row))
    return f"{number(microseconds(row))} ({1 / row['peer_ratio']:.2f})"


def machine(reports):
    names = [
        ("product", "product"),
        ("mma", "mma.sync"),
        ("copy", "copy"),
        ("gather_2", "gather, 2"),
        ("gather_64", "gather, 64"),
    ]
    rows = []
    for group, report in reports.items():
        m = report["machine"]
        both = {**m["peak_gflops"], **m["bandwidth_gbs"]}
        rates = [f"{both[name] / (1000 if name in ('product', 'mma') else 1):,.0f}" for name, _ in names]
        times = [f"{m[name]:.2f}" for name in ("timer_us", "launch_us", "follow_us")]
        rows.append([group, *rates, *times, f"{100 * m['drift']:.1f} %"])
    first = next(iter(reports.values()))
    head = f"{first['device']}, driver {first['driver']}, CUDA {first['cuda'].split(',')[0]}, {first['date'][:10]}.\n\n"
    return head + table(["run", *[title for _, title in names], "timer", "launch", "follow", "moved"], rows)


def grid(found, prefix, layers, columns, cell):
    rows = []
    for layer in layers:
        row = [found.get(f"{prefix}/{layer}/{column}") for column in columns]
        if any(row):
            rows.append([layer, *[cell(r) if r else "-" for r in row]])
    return rows


def decode(found):
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    out = ""
    for heads in (64, 128, 32, 16, 8):
        rows = grid(found, f"decode/{heads}", LAYERS, batches, beside_peer)
        if not rows:
            continue
        against = ", and in brackets how many times FlashMLA's time that is" if heads in (64, 128) else ""
        out += f"{heads} heads, microseconds{against}:\n\n" + table(["layer", *[str(b) for b in batches]], rows) + "\n"
    return out


def prefill(found):
    lengths = [512, 2048, 4096, 8192]
    groups = sorted(
        {"/".join(c.split("/")[:-1]) for c in found if c.startswith("prefill/")},
        key=lambda c: [int(x) for x in c.split("/")[1:]],
    )
    rows = []
    for group in groups:
        row = [found.get(f"{group}/{n}") for n in lengths]
        _, heads, pool, keys = group.split("/")
        rows.append([heads, pool, keys, *[f"{r['gflops'] / 1000:.0f}" if r else "-" for r in row]])
    return table(["heads", "pool", "keys", *[str(n) for n in lengths]], rows)


def by_name(report):
    """{name: row} of rows that no peer has; a row that is not right stops everything."""
    cells(report)
    return {row["name"]: row for row in report["rows"] if "skipped" not in row}


def formats(reports):
    names = {"fp8_ds_mla": "attention", "bf16": "attention_bf16", "fp8_per_tensor": "attention_per_tensor"}
    heads = ", heads 64,"
    found = {
        f: by_name({"rows": [r for r in reports[file]["rows"] if heads in r["shape"]]}) for f, file in names.items()
    }
    rows = []
    for name in found["bf16"]:
        values = [found[f].get(name) for f in names]
        unit = "TFLOP/s" if name.startswith("prefill") else "us"
        rows.append(
            [
                name,
                unit,
                *[number(v["gflops"] / 1000 if unit == "TFLOP/s" else microseconds(v)) if v else "-" for v in values],
            ]
        )
    return table(["cell", "", *names], rows)


def queries(reports):
    found = by_name({"rows": [r for r in reports["attention"]["rows"] if ", heads 64," in r["shape"]]}) | by_name(
        reports["attention_next_n"]
    )
    names = {name.rsplit(" x ", 1)[0] for name in by_name(reports["attention_next_n"])}
    rows = []
    for name in sorted(names, key=lambda n: (LAYERS.index(n.split()[1]), n)):
        values = [found.get(name if n == 1 else f"{name} x {n}") for n in (1, 2, 4, 8)]
        rows.append([name, *[number(microseconds(v)) if v else "-" for v in values]])
    return table(["cell", "1", "2", "4", "8"], rows)


def indexer(found):
    entries = [2048, 8192, 32768, 262144]
    rows = []
    for batch in (1, 8, 32, 128):
        for next_n in (1, 2):
            row = [found.get(f"indexer/{batch}/{next_n}/{e}") for e in entries]
            rows.append(
                [
                    f"{batch} x {next_n}",
                    *[f"{beside_peer(r)}, scores {number(r['stages']['logits_us'])}" if r else "-" for r in row],
                ]
            )
    out = table(["requests x queries", *[f"{e:,}" for e in entries]], rows) + "\n"
    rows = []
    for queries in (2048, 4096):
        row = [found.get(f"indexer_prefill/{queries}/{e}") for e in (2048, 8192, 32768)]
        rows.append(
            [str(queries), *[f"{beside_peer(r)}, scores {number(r['stages']['logits_us'])}" if r else "-" for r in row]]
        )
    return out + table(["prefill queries", "2,048", "8,192", "32,768"], rows)


def ops(found):
    lengths = [1, 64, 256, 2048, 8192]
    names = sorted({c.split("/")[1] for c in found}, key=[c.split("/")[1] for c in found].index)
    rows = []
    for name in names:
        row = [found.get(f"ops/{name}/{n}") for n in lengths]
        last = row[-1]
        floor = (
            f"{number(last['floor_ms'] * 1e3)} ({microseconds(last) / (last['floor_ms'] * 1e3 + 2):.2f})"
            if last
            else "-"
        )
        rows.append([name, *[beside_peer(r) if r else "-" for r in row], floor])
    return table(["op", *[str(n) for n in lengths], "floor at 8,192 (time / (floor + 2 us))"], rows)


def projection(report):
    rows = []
    for row in report["rows"]:
        if "skipped" in row:
            continue
        rows.append(
            [
                row["shape"],
                row["implementation"],
                number(microseconds(row)),
                number(row["gflops"] / 1000),
                number(row["gbs"]),
                f"{row['over_floor']:.2f}",
            ]
        )
    return table(["shape", "by", "us", "TFLOP/s", "GB/s", "x floor"], rows)


def span(values, write):
    values = sorted(values)
    low, high = write(values[0]), write(values[-1])
    return low if low == high else f"{low} to {high}"


def layer(report):
    """A table of decodes and one of prefills for each model and number of heads; rows are layers, columns batch
    sizes or prompt lengths."""
    groups = {}
    for row in report["rows"]:
        parts = row["shape"].split(", ")
        numbers = {
            p.split()[0]: int(p.split()[1])
            for p in parts
            if p.split()[0] in ("requests", "context", "next_n", "tokens")
        }
        what = next(p for p in parts if " heads " in p)
        column = numbers.get("requests", numbers.get("tokens"))
        line = row["name"].split()[0]
        if "context" in numbers and not line.startswith("SWA"):
            line += f", {numbers['context']:,}"
        if "next_n" in numbers:
            line += f", {numbers['next_n']} queries"
        groups.setdefault((what, row["name"].split()[1]), {}).setdefault(line, {})[column] = row
    out = ""
    for (what, kind), lines in groups.items():
        columns = sorted({c for line in lines.values() for c in line})
        rows = []
        for line, found in lines.items():
            cell = [
                f"{number(microseconds(found[c]))} ({found[c]['over_floor']:.1f})"
                if c in found and "skipped" not in found[c]
                else "-"
                for c in columns
            ]
            stages = [r["stages"] for r in found.values() if "skipped" not in r]
            rows.append(
                [
                    line,
                    *cell,
                    *[
                        span([s[key] for s in stages], write)
                        for key, write in (
                            ("kernels", lambda v: f"{v:.0f}"),
                            ("library_kernels", lambda v: f"{v:.0f}"),
                            ("launch_us", lambda v: f"{v:.1f}"),
                        )
                    ],
                ]
            )
        title = "requests" if kind == "decode" else "tokens of a prompt"
        out += (
            f"{what}, {kind}, by {title}:\n\n"
            + table(["layer", *[f"{c:,}" for c in columns], "kernels", "cuBLASLt's", "launch, us"], rows)
            + "\n"
        )
    return out


def serve(reports):
    """`reports`: {weights: report}."""
    head = ["weights", "requests", "TPOT mean, ms", "median", "p99", "TTFT mean, ms", "median", "p99"]
    rows = []
    for weights, report in reports.items():
        for load_row in report["loads"]:
            times = [
                number(load_row[kind][key]) for kind in ("tpot", "ttft") for key in ("mean_ms", "median_ms", "p99_ms")
            ]
            rows.append([weights, str(load_row["requests"]), *times])
    return table(head, rows)


def stack(reports):
    """Steps of a whole stack, in milliseconds: rows are lengths of the requests, columns their number."""
    rows = []
    for weights, report in reports.items():
        steps = {}
        for row in report["layers"]:
            if not row["name"].startswith("stack decode"):
                continue
            if row.get("check", "ok") != "ok":
                sys.exit(f"gpu_tables: {row['name']}, {row['shape']}: {row['check']}")
            numbers = dict(part.split() for part in row["shape"].split(", ")[:2])
            steps.setdefault(int(numbers["context"]), {})[int(numbers["requests"])] = row["median_ms"]
        requests = sorted({n for of_length in steps.values() for n in of_length})
        for length, of_length in steps.items():
            rows.append([weights, f"{length:,}", *[f"{of_length[n]:.2f}" if n in of_length else "-" for n in requests]])
    return table(["weights", "tokens", *[str(n) for n in requests]], rows)


def peer_ceilings():
    """(ceiling, value) of the runs that the peers' times are of."""
    return {
        (name, float(value))
        for path in (pages.ROOT / "data" / "peers").glob("*.csv")
        for line in path.read_text().splitlines()
        if line.startswith("# ceiling ")
        for name, value in [line.split()[2:]]
    }


def void(report):
    """Whether comparisons of this run with the peers count for nothing: a ceiling is more than 5 % off, or moved
    that much during the run."""
    m = report["machine"]
    ours = {
        "product_tflops": m["peak_gflops"]["product"] / 1000,
        "copy_gbs": m["bandwidth_gbs"]["copy"],
        "gather_2_gbs": m["bandwidth_gbs"]["gather_2"],
        "gather_64_gbs": m["bandwidth_gbs"]["gather_64"],
    }
    return m["drift"] > 0.05 or any(
        abs(ours[name] / value - 1) > 0.05 for name, value in peer_ceilings() if name in ours
    )


def bars(attention, chain, op, voids):
    """`voids`: {run: whether its comparisons with peers are void}."""

    def met(ok, run=None):
        return ("met" if ok else "missed") + (", void" if run and voids[run] else "")

    rows = []
    ours = {c: 1 / r["peer_ratio"] for c, r in attention.items() if c.startswith("decode/") and "peer_ratio" in r}
    worst = max(ours, key=ours.get)
    rows.append(
        [
            "decode, all cells",
            "geometric mean at most 1.5 times FlashMLA's time",
            f"{mean(ours.values()):.2f}",
            met(mean(ours.values()) <= 1.5, "attention"),
        ]
    )
    rows.append(
        ["decode, worst cell", "at most 2.5", f"{ours[worst]:.2f} ({worst})", met(ours[worst] <= 2.5, "attention")]
    )
    single = {c: v for c, v in ours.items() if c.endswith("/1")}
    rows.append(
        [
            "decode, one request",
            "at most 1.2",
            f"{min(single.values()):.2f} to {max(single.values()):.2f}",
            met(max(single.values()) <= 1.2, "attention"),
        ]
    )
    few = {}
    for cell, row in attention.items():
        parts = cell.split("/")
        wide = attention.get("/".join(["decode", "64", *parts[2:]]))
        if parts[0] == "decode" and parts[1] in ("8", "16", "32") and wide:
            few[cell] = row["median_ms"] / wide["peer_scaled_ms"]
    if few:
        slow = [c for c, v in few.items() if v > 1]
        text = f"{mean(few.values()):.2f} on average, {max(few.values()):.2f} at worst ({max(few, key=few.get)}); {len(few) - len(slow)} of {len(few)} cells faster"
        rows.append(["decode, 8 to 32 heads", "faster than FlashMLA's 64 heads", text, met(not slow, "attention")])
    for heads, least in ((64, 200), (128, 250)):
        rates = {
            c: r["gflops"] / 1000
            for c, r in attention.items()
            if c.startswith(f"prefill/{heads}/") and int(c.split("/")[-1]) >= 2048
        }
        text = f"{min(rates.values()):.0f} to {max(rates.values()):.0f} TFLOP/s"
        rows.append(
            [
                f"prefill, {heads} heads, 2,048 queries and more",
                f"at least {least} TFLOP/s",
                text,
                met(min(rates.values()) >= least),
            ]
        )
    ratios = {c: 1 / r["peer_ratio"] for c, r in chain.items() if "peer_ratio" in r}
    for what, chosen, average, most in (
        (
            "index chain, one query",
            [c for c in ratios if c.startswith("indexer/") and c.split("/")[2] == "1"],
            1.5,
            2.0,
        ),
        (
            "index chain, two queries",
            [c for c in ratios if c.startswith("indexer/") and c.split("/")[2] == "2"],
            None,
            2.5,
        ),
        ("index chain, prefill", [c for c in ratios if c.startswith("indexer_prefill/")], 2.5, 3.0),
    ):
        average_now, worst_now = mean(ratios[c] for c in chosen), max(ratios[c] for c in chosen)
        bound = (f"geometric mean at most {average}, " if average else "") + f"no cell over {most}"
        ok = worst_now <= most and (average is None or average_now <= average)
        rows.append([what, bound, f"{average_now:.2f}, {worst_now:.2f} at worst", met(ok, "indexer")])
    faster = [c for c, r in op.items() if r.get("peer_ratio", 0) >= 1]
    known = [c for c, r in op.items() if "peer_ratio" in r]
    rows.append(
        [
            "ops",
            "each at most its peer's time",
            f"{len(faster)} of {len(known)} cells",
            met(len(faster) == len(known), "ops"),
        ]
    )
    long = {c: microseconds(r) / (r["floor_ms"] * 1e3 + 2) for c, r in op.items() if c.endswith("/8192")}
    near = [c for c, v in long.items() if v <= 1.5]
    rows.append(
        [
            "ops, 8,192 tokens",
            "within 1.5 of (byte floor + 2 us)",
            f"{len(near)} of {len(long)} cells",
            met(len(near) == len(long)),
        ]
    )
    c128 = [c for c in op if c.startswith("ops/compress_c128_main") and "two_stage" in c]
    within = [c for c in c128 if op[c].get("peer_ratio", 0) >= 1]
    rows.append(
        [
            "C128A compress",
            "at most the two-stage rows",
            f"{len(within)} of {len(c128)} cells",
            met(len(within) == len(c128), "ops"),
        ]
    )
    return table(["what", "bound", "measured", ""], rows)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    reports = {name: load(folder, name) for name in ("attention", "indexer", "ops", "projection", "layer")}
    more = {
        name: load(folder, name)
        for name in ("attention_few", "layer_pro", "layer_tp", "layer_next_n", *FP8_LAYERS)
        if (folder / f"{name}.json").exists()
    }
    others = reports | {
        name: load(folder, name) for name in ("attention_bf16", "attention_per_tensor", "attention_next_n")
    }
    attention, chain, op = (cells(reports[name]) for name in ("attention", "indexer", "ops"))
    attention |= cells(more["attention_few"]) if "attention_few" in more else {}
    layers = {
        "rows": reports["layer"]["rows"]
        + [row for name in ("layer_pro", "layer_tp", "layer_next_n") if name in more for row in more[name]["rows"]]
    }
    sections = {
        "bars": bars(attention, chain, op, {name: void(report) for name, report in reports.items()}),
        "machine": machine(reports | more),
        "decode": decode(attention),
        "prefill": prefill(attention),
        "formats": formats(others),
        "queries": queries(others),
        "indexer": indexer(chain),
        "ops": ops(op),
        "projection": projection(reports["projection"]),
        "layer": layer(layers),
        "layer_fp8": layer({"rows": [row for name in FP8_LAYERS if name in more for row in more[name]["rows"]]}),
        "serve": serve({"bf16": load(folder, "serve"), "FP8": load(folder, "serve_fp8")}),
        "stack": stack({"bf16": load(folder, "serve_stack"), "FP8": load(folder, "serve_stack_fp8")}),
    }
    assert set(sections) == set(SECTIONS)
    print("\n".join(pages.rewrite(pages.PERFORMANCE, {f"gpu_{name}": content for name, content in sections.items()})))


if __name__ == "__main__":
    main()
