"""P7: the tokenizer alone, against the released ones on the same texts, each text new to each of them.

The ids of every peer are compared after the clock stopped; a peer that gave other ids is named in ``checked`` and does not
count as the fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from widestream.bench.harness import Figure, commit, in_process
from widestream.errors import InvalidArgumentError, NotFoundError

_MODULE = "widestream.bench.tokenizer_run"
_FAMILIES = {
    "r50k": "r50k_base.tiktoken",
    "cl100k": "cl100k_base.tiktoken",
    "o200k": "o200k_base.tiktoken",
    "qwen3": "qwen3/tokenizer.json",
}


def run(*, quick: bool, data: str | None = None, tokenizer: str | None = None, pairs: int = 3) -> Iterator[Figure]:
    """
    Args:
        quick: a few hundred kB, one family.
        data: a folder of corpora, a file each: JSON Lines or Parquet with a column ``text``.
        tokenizer: a folder with r50k_base.tiktoken, cl100k_base.tiktoken, o200k_base.tiktoken and qwen3/tokenizer.json
            (those that are there are measured), or one of these files.
        pairs: MB of each corpus, the first of which warms up.
    """
    if tokenizer is None or data is None:
        raise InvalidArgumentError(
            "bench tokenizer needs --data FOLDER of corpora and --tokenizer FOLDER of vocabularies"
        )
    families = _families(Path(tokenizer))
    if quick:
        families = dict(list(families.items())[:1])
    corpus_bytes = 100_000 if quick else (pairs + 1) * 1_000_000
    for family, file in families.items():
        arguments = {
            "family": family,
            "tokenizer": str(file.resolve()),
            "data": str(Path(data).resolve()),
            "corpus_bytes": corpus_bytes,
            "size_bytes": 100_000 if quick else 10_000_000,
        }
        yield from _figures(family, arguments, quick)


def _families(path: Path) -> dict[str, Path]:
    candidates = {family: [path, path / name, path / "openai" / name] for family, name in _FAMILIES.items()}
    found: dict[str, Path] = {}
    for family, name in _FAMILIES.items():
        for file in candidates[family]:
            if file.is_file() and (file.name == Path(name).name):
                found.setdefault(family, file)
    if not found:
        raise NotFoundError(f"{path} has none of {', '.join(_FAMILIES.values())}")
    return found


def _figures(family: str, arguments: dict[str, Any], quick: bool) -> Iterator[Figure]:
    one = in_process(_MODULE, {**arguments, "run": "encode"}, {0})
    wrong = one["different"]
    corpora = one["corpora"]
    first = next(iter(corpora.values()))
    peers = [name for name in first["seconds"] if name != "widestream"]
    exact = [name for name in peers if name not in wrong]
    total = sum(sum(corpus["bytes"]) for corpus in corpora.values())
    mix = {
        name: total / 1e6 / sum(sum(c["seconds"][name]) for c in corpora.values()) for name in ["widestream", *peers]
    }
    checked = f"{one['documents']} documents: " + "; ".join(
        f"{name}: other ids in {', '.join(sorted(set(wrong[name])))}" if name in wrong else f"{name}: equal ids"
        for name in peers
    )
    case = f"{family}, {total / 1e6:.1f} MB of {len(corpora)} corpora, not seen before, one core"

    def figure(id: str, case: str, value: float, unit: str, goal: float | None, **more: Any) -> Figure:
        better = more.pop("better", "higher")
        met = None if quick or goal is None else value >= goal if better == "higher" else value <= goal
        defaults: dict[str, Any] = {"against": None, "floor": None, "checked": checked, "pairs": [[value, 1.0]]}
        return Figure(
            id=id,
            case=case,
            value=value,
            unit=unit,
            better=better,
            goal=goal,
            met=met,
            commit=commit(),
            **{**defaults, **more},
        )

    def against(name: str, value: float) -> dict[str, Any]:
        package, _, version = name.partition(" ")
        calls = {
            "tiktoken": "encode_to_numpy a document",
            "tokenizers": "encode_batch_fast of 64 documents",
            "fastokens": "encode_batch_flat of 1 MB",
        }
        return {"name": package, "version": version, "settings": calls[package], "value": value}

    for name in exact:
        fastest = name == max(exact, key=lambda peer: mix[peer])
        goal = 1.3 if fastest else 10.0 if name.startswith("tiktoken") else None
        chunks = [
            [size / 1e6 / a, size / 1e6 / b]
            for corpus in corpora.values()
            for size, a, b in zip(
                corpus["bytes"], corpus["seconds"]["widestream"], corpus["seconds"][name], strict=True
            )
        ]
        yield figure(
            "P7",
            case,
            mix["widestream"] / mix[name],
            f"times {name.partition(' ')[0]}'s MB/s, ours {mix['widestream']:.1f}",
            goal,
            against=against(name, mix[name]),
            pairs=chunks,
        )
        if not fastest:
            continue
        for corpus, times in corpora.items():
            ours, theirs = sum(times["seconds"]["widestream"]), sum(times["seconds"][name])
            yield figure(
                "P7-corpus",
                f"{family}, {corpus}, {sum(times['bytes']) / 1e6:.1f} MB, one core",
                theirs / ours,
                f"times {name.partition(' ')[0]}'s MB/s",
                1.0,
                against=against(name, sum(times["bytes"]) / 1e6 / theirs),
                pairs=[[sum(times["bytes"]) / 1e6 / ours, sum(times["bytes"]) / 1e6 / theirs]],
            )
    yield from _other(family, arguments, figure, mix["widestream"])


def _other(family: str, arguments: dict[str, Any], figure: Any, one_thread: float) -> Iterator[Figure]:
    """Threads, decode, count, load, memory and hard inputs."""
    pairs = in_process(_MODULE, {**arguments, "run": "threads"}, {0, 1})["pairs"]
    if pairs:
        floor = {"name": "one thread, MB/s", "value": statistics.median(one for _, one in pairs)}
        value = statistics.median(two for two, _ in pairs) / floor["value"]
        checked = "a batch is the same with any number of threads: tests"
        yield figure(
            "P7-threads",
            f"{family}, two threads on two cores",
            value,
            "times one thread",
            1.9,
            floor=floor,
            checked=checked,
            pairs=pairs,
        )
    own = in_process(_MODULE, {**arguments, "run": "faces"}, {0})
    floor = {"name": "encode, MB/s", "value": own["encode"]}
    checked = "decoding gives the text back; count is the number of ids"
    pair = [[own["decode"], own["encode"]]]
    yield figure(
        "P7-decode", f"{family}, one core", own["decode"], "MB/s", 500.0, floor=floor, checked=checked, pairs=pair
    )
    pair = [[own["count"], own["encode"]]]
    yield figure(
        "P7-count",
        f"{family}, one core",
        own["count"] / own["encode"],
        "times encode",
        1.2,
        floor=floor,
        checked=checked,
        pairs=pair,
    )
    loaded = [in_process(_MODULE, {**arguments, "run": "load"}, {0}) for _ in range(3)]
    value = statistics.median(run["milliseconds"] for run in loaded)
    checked = "a text was encoded"
    size = Path(arguments["tokenizer"]).stat().st_size / 1e6
    floor = {"name": "the file, MB", "value": size}
    yield figure(
        "P7-load",
        f"{family}, file in the page cache",
        value,
        "milliseconds",
        30.0,
        better="lower",
        floor=floor,
        checked=checked,
    )
    value = statistics.median(run["megabytes"] for run in loaded)
    yield figure(
        "P7-memory",
        f"{family}, growth of the proportional set size in a fresh process",
        max(value, 1e-3),
        "MB",
        12.0 if family == "o200k" else None,
        better="lower",
        floor=floor,
        checked=checked,
    )
    speeds = in_process(_MODULE, {**arguments, "run": "hard"}, {0})
    worst = min(speeds, key=lambda name: speeds[name])
    yield figure(
        "P7-worst",
        f"{family}, {arguments['size_bytes'] / 1e6:g} MB of {worst}, the worst of {', '.join(speeds)}",
        speeds[worst] / one_thread,
        "times the mix's MB/s",
        1 / 20,
        floor={"name": "the mix, MB/s", "value": one_thread},
        checked="decoding gives the text back",
        pairs=[[speeds[name], one_thread] for name in speeds],
    )
