"""The report's page: sections from a run's data, as one HTML text without any script."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence

from widestream.report.run_data import ProvenanceRow, RunData, number
from widestream.report.series import Curve, Mixture, SourceMixture, curve, length_bins, mixture, sparse_curve
from widestream.report.svg import (
    COLOURS,
    Line,
    area_chart,
    escape,
    histogram,
    legend,
    line_chart,
    percent,
    plain,
    short,
)
from widestream.report.wide_state import wide_state

_SMALL = (240, 120)
MAX_SOURCES_SHOWN = 24
MAX_PROVENANCE_ROWS = 200
_TEXT_CHARACTERS = 80


def render(data: RunData) -> str:
    """The whole page. Every text that comes from the run is escaped."""
    title = data.job_name or data.folder.resolve().name
    wide = wide_state(data)  # before the head, which shows its notes
    body = "".join(
        (
            _head(data, title),
            _learning(data),
            wide,
            mixture_section(mixture(data.steps)),
            packing_section(data),
            _provenance(data),
            _job(data),
        )
    )
    return document(f"{title} - Widestream report", body)


def document(title: str, body: str) -> str:
    """A whole page around a body of escaped parts."""
    style = importlib.resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    # No script may run and nothing may be fetched, whatever the data holds.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def figure(title: str, body: str, caption: str = "", kind: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="{kind}"><h3>{escape(title)}</h3>{body}{below}</figure>'


def tile(value: str, label: str, mood: str = "") -> str:
    return f'<div class="tile"><b class="{mood}">{escape(value)}</b><span>{escape(label)}</span></div>'


def _head(data: RunData, title: str) -> str:
    steps = data.steps
    tiles = []
    loss = data.summary_number("final_loss")
    if loss is None:
        loss = next((step.loss for step in reversed(steps) if step.loss is not None), None)
    validation = data.summary_number("validation_loss")
    if validation is None:
        validation = sparse_curve("", steps, lambda s: s.validation_loss).last
    unigram = _unigram(data)
    if steps:
        tiles.append(tile(f"{steps[-1].step:,}", "steps done"))
        tiles.append(tile(plain(sum(step.tokens for step in steps)), "training tokens"))
    if loss is not None:
        tiles.append(tile(f"{loss:.3f}", "training loss of the last step, nats a token"))
    if validation is not None:
        bits = data.summary_number("validation_bits_per_byte")
        tiles.append(
            tile(f"{validation:.3f}", "validation loss, nats a token" + (f"; {bits:.3f} bits a byte" if bits else ""))
        )
    if unigram is not None:
        bits = data.summary_number("unigram_bits_per_byte")
        tiles.append(
            tile(
                f"{unigram:.3f}",
                "what guessing by word frequency costs (unigram)" + (f"; {bits:.3f} bits a byte" if bits else ""),
            )
        )
        if validation is not None and unigram > 0:
            ratio = validation / unigram
            tiles.append(tile(f"{ratio:.3f} x", "validation loss over unigram", "good" if ratio < 1 else "warn"))
    speed = data.summary_number("tokens_per_second")
    if speed is not None:
        tiles.append(tile(plain(speed), "tokens a second"))
    wait = data.summary_number("data_wait_share")
    if wait is not None:
        ranks = data.summary_number("ranks") or 1
        of = "of the time waiting for data" + (f", the slowest of {ranks:.0f} ranks at each step" if ranks > 1 else "")
        tiles.append(tile(percent(wait), of, "good" if wait < 0.01 else ""))
    if data.summary.get("mock_data"):
        data.notes.insert(0, "The run was a measurement on mock data: every step was the job's first batch.")
    notes = ""
    if data.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in data.notes)
        notes = f'<section class="notes"><b>About this report</b><ul>{items}</ul></section>'
    return (
        f'<header><h1>{escape(short(title, 120))}</h1><p class="soft">A training run of Widestream, from '
        f"{escape(data.folder.resolve())}. Hover over a chart for its figures.</p></header>"
        f'<div class="tiles">{"".join(tiles)}</div>{notes}'
    )


def _unigram(data: RunData) -> float | None:
    value = data.summary_number("unigram_cross_entropy")
    return sparse_curve("", data.steps, lambda s: s.unigram_cross_entropy).last if value is None else value


def _learning(data: RunData) -> str:
    steps = data.steps
    if not steps:
        return ""
    depths = max((len(step.mtp_losses) for step in steps), default=0)
    lines = [Line(curve("training, next token", steps, lambda s: s.loss), 1)]
    for depth in range(depths):

        def deeper(step: object, depth: int = depth) -> float | None:
            losses: Sequence[float | None] = getattr(step, "mtp_losses", ())
            return losses[depth] if depth < len(losses) else None

        lines.append(Line(curve(f"training, token {depth + 2}", steps, deeper), 3 + depth % (COLOURS - 2), thin=True))
    lines.append(Line(sparse_curve("validation, next token", steps, lambda s: s.validation_loss), 2, dots=True))
    unigram = _unigram(data)
    levels = [] if unigram is None else [("unigram", unigram)]
    curves = [
        ("Gradient norm", curve("gradient norm", steps, lambda s: s.gradient_norm), plain, False, "Before clipping."),
        ("Learning rate", curve("learning rate", steps, lambda s: s.learning_rate), plain, True, ""),
        (
            "Throughput",
            curve("tokens a second", steps, lambda s: s.tokens_per_second),
            plain,
            True,
            "Tokens a second, waiting for data included.",
        ),
        (
            "Waiting for data",
            curve("share of the step", steps, lambda s: s.wait_share),
            percent,
            True,
            "Share of a step's time in which the trainer waited for its batch.",
        ),
    ]
    loss = figure(
        "Loss",
        legend(lines) + line_chart(lines, label="Loss by step", levels=levels, size=(460, 350)),
        "Nats a token; lower is better. A band shows the range of the steps that a point averages. The dashed line is "
        "what a model that only knows how often each token occurs would get on the validation documents.",
        kind="tall",
    )
    others = "".join(
        figure(
            title, line_chart([Line(found, 1)], label=f"{title} by step", form=form, zero=zero, size=(460, 190)), below
        )
        for title, found, form, zero, below in curves
        if not found.empty
    )
    return f'<h2>Learning and speed</h2><div class="grid">{loss}{others}</div>'


def mixture_section(found: Mixture) -> str:
    if not found.sources:
        return ""
    shown = found.sources[:MAX_SOURCES_SHOWN]
    has_wanted = any(source.wanted_share is not None for source in shown)
    colours = {source.name: 1 + i for i, source in enumerate(found.sources[:COLOURS])}
    stacked = [(source.windowed, colours[source.name]) for source in found.sources[:COLOURS]]
    named = [(Curve(s.name, s.windowed.xs, s.windowed.ys), colours[s.name]) for s in found.sources[:COLOURS]]
    rest = found.sources[COLOURS:]
    if rest:
        xs = stacked[0][0].xs
        ys = tuple(sum(source.windowed.ys[i] or 0.0 for source in rest) for i in range(len(xs)))
        named.append((Curve(f"{len(rest)} smaller sources", xs, ys), 0))
    keys = legend([Line(found_curve, colour) for found_curve, colour in named], percent)
    overview = figure(
        "Share of the tokens by source",
        keys + area_chart(named, label="Stacked shares of the tokens by source"),
        f"Each point covers {found.window_steps} steps; the legend has the last one.",
    )
    sentence = "What each source gave of all tokens, and what the job's mixture asked for at those steps."
    if found.error is not None:
        sentence += (
            f" Over the whole run no source is further than {percent(found.error)} of the tokens from its share."
        )
    elif not has_wanted:
        sentence += " The log does not say what was asked for."
    small = "".join(_source(source, colours.get(source.name, 0)) for source in shown)
    key_lines = [
        ("realised in a window", "c1"),
        ("wanted in a window", "c0 d"),
        ("realised since the start", "c1 thin"),
        ("wanted since the start", "c0 d thin"),
    ]
    swatches = "".join(
        f'<li><svg class="k" viewBox="0 0 18 8" aria-hidden="true"><path class="l {kind}" d="M0 4H18"/></svg>{name}</li>'
        for name, kind in key_lines
        if has_wanted or "wanted" not in name
    )
    more = len(found.sources) - len(shown)
    below = f'<p class="soft">{more} smaller sources have no chart; the table below has them.</p>' if more > 0 else ""
    return (
        f'<h2>Mixture</h2><p>{escape(sentence)}</p><div class="grid">{overview}'
        f'<div>{_mixture_table(found.sources)}</div></div><ul class="legend" style="margin-top:16px">{swatches}</ul>'
        f'<div class="many">{small}</div>{below}'
    )


def _source(source: SourceMixture, colour: int) -> str:
    lines = [
        Line(source.wanted_cumulative, 0, dash=True, thin=True),
        Line(source.cumulative, colour, thin=True),
        Line(source.wanted_windowed, 0, dash=True),
        Line(source.windowed, colour),
    ]
    chart = line_chart(lines, label=f"Share of {source.name} by step", form=percent, zero=True, size=_SMALL)
    return figure(short(source.name, 60), chart)


def _mixture_table(sources: Sequence[SourceMixture]) -> str:
    rows = []
    for source in sources[:1000]:
        wanted = source.wanted_share
        off = "" if wanted is None else f"{100 * (source.share - wanted):+.2f}"
        rows.append(
            f'<tr><td class="path">{escape(short(source.name, 128))}</td><td class="n">{source.tokens:,}</td>'
            f'<td class="n">{percent(source.share)}</td><td class="n">{"" if wanted is None else percent(wanted)}</td>'
            f'<td class="n">{off}</td></tr>'
        )
    head = (
        '<tr><th>source</th><th class="n">tokens</th><th class="n">share</th><th class="n">wanted</th>'
        '<th class="n">off, points</th></tr>'
    )
    return _table(head, rows)


def _table(head: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


def packing_section(data: RunData) -> str:
    padding = curve("padding", data.steps, lambda s: s.padding_share)
    lengths = data.piece_lengths
    bins = length_bins(lengths)
    keys = (
        '<ul class="legend"><li><svg class="k" viewBox="0 0 18 8" aria-hidden="true"><path class="l c1" d="M0 4H18"/></svg>'
        'share of the pieces</li><li><svg class="k" viewBox="0 0 18 8" aria-hidden="true"><path class="l c2" d="M0 4H18"/>'
        "</svg>share of the tokens</li></ul>"
    )
    figures = ""
    if not padding.empty:
        figures += figure(
            "Padding",
            line_chart([Line(padding, 1)], label="Padding share by step", form=percent, zero=True, size=(460, 230)),
            "Share of a step's slots that hold no token.",
        )
    if bins:
        mean = sum(lengths) / len(lengths)
        figures += figure(
            "Length of pieces",
            keys + histogram(bins, label="Lengths of pieces in tokens"),
            f"{len(lengths):,} pieces of {data.piece_lengths_of}, on average {plain(mean)} tokens, at most "
            f"{max(lengths):,}.",
        )
    if not figures:
        return ""
    return (
        "<h2>Packing</h2><p>Documents are cut into pieces of at most one row and packed into rows; what stays empty is "
        f'padding.</p><div class="grid">{figures}</div>'
    )


def _provenance(data: RunData) -> str:
    if not data.provenance:
        return ""
    of = "the last step" if data.provenance_step is None else f"step {data.provenance_step}"
    rank = "" if data.provenance_rank is None else f", rank {data.provenance_rank}"
    shown = data.provenance[:MAX_PROVENANCE_ROWS]
    rows = "".join(_provenance_row(row) for row in shown)
    more = len(data.provenance) - len(shown)
    head = (
        '<tr><th class="n">microbatch</th><th class="n">row</th><th>source</th><th>shard</th><th class="n">record</th>'
        '<th class="n">tokens</th><th>beginning of the text</th></tr>'
    )
    return (
        f"<h2>Where the tokens of {escape(of)} come from</h2><p>Every piece of this batch{escape(rank)}, in the order in "
        "which it stands in the rows: its file, its record there, and which of the record's tokens it holds. "
        "<code>widestream explain</code> gives the same for any step.</p>"
        + _table(head, [rows])
        + (f'<p class="soft">and {more:,} more pieces</p>' if more > 0 else "")
    )


def _provenance_row(row: ProvenanceRow) -> str:
    text = short(row.text.replace("\n", "\u21b5"), _TEXT_CHARACTERS)
    return (
        f'<tr><td class="n">{escape(short(row.microbatch, 20))}</td><td class="n">{escape(short(row.row, 20))}</td>'
        f'<td class="path">{escape(short(row.source, 128))}</td>'
        f'<td class="path" title="{escape(short(row.shard, 1000))}">{escape(_file_name(row.shard))}</td>'
        f'<td class="n">{escape(short(row.record, 20))}</td>'
        f'<td class="n">{escape(short(row.start, 20))} to {escape(short(row.stop, 20))}</td>'
        f'<td class="text">{escape(text)}</td></tr>'
    )


def _file_name(path: str) -> str:
    return short(path.rsplit("/", 1)[-1], 80)


def _job(data: RunData) -> str:
    job = f"<details><summary>The job</summary><pre>{escape(data.job_text)}</pre></details>" if data.job_text else ""
    figures = "".join(
        f'<tr><td>{escape(short(str(key), 80))}</td><td class="n">{escape(_figure_text(value))}</td></tr>'
        for key, value in list(data.summary.items())[:100]
        if isinstance(value, int | float | str)
    )
    versions = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{escape(version)}</td></tr>'
        for name, version in data.versions.items()
    )
    tables = _table('<tr><th>figure</th><th class="n">value</th></tr>', [figures]) if figures else ""
    return (
        f'<h2>Job, figures, versions</h2>{job}<div class="grid"><div>{tables}</div><div>'
        + _table('<tr><th>package</th><th class="n">version</th></tr>', [versions])
        + "</div></div>"
    )


def _figure_text(value: object) -> str:
    found = number(value)
    if found is None:
        return short(str(value), 200)
    return f"{value:,}" if isinstance(value, int) else f"{found:.6g}"
