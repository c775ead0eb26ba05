"""``generate``: text from a trained model."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from widestream.cli.options import Json
from widestream.errors import InvalidArgumentError, NotFoundError


def generate(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder, or a run (its newest).", show_default=False),
    ],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")] = "\n",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most likely token.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k most likely tokens; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(max=1.0, help="Sample among the most likely tokens of this probability.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer file; default: the one of the training.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate text from a checkpoint."""
    from widestream.cli.failures import clean
    from widestream.cli.output import print_json

    settings = {"max_new_tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if not 0 < top_p <= 1:
        raise typer.BadParameter("it must be above 0 and at most 1", param_hint="--top-p")
    pieces = _generate(_checkpoint_folder(checkpoint), prompt, tokenizer, settings)
    if as_json:
        print_json({"checkpoint": str(checkpoint), "prompt": prompt, "text": "".join(pieces), **settings})
        return
    sys.stdout.write(clean(prompt))
    for piece in pieces:
        sys.stdout.write(clean(piece))
        sys.stdout.flush()
    sys.stdout.write("\n")


def _checkpoint_folder(path: Path) -> Path:
    """The path itself if it is a checkpoint, else the newest checkpoint of a run."""
    from widestream.train import list_checkpoints

    if (path / "meta.json").exists():
        return path
    if not path.is_dir():
        raise NotFoundError(f"there is no folder {path}; give a checkpoint folder, or the run_dir of a job")
    for folder in (path / "checkpoints", path):
        found = list_checkpoints(folder) if folder.is_dir() else []
        if found:
            newest: Path = found[-1][1]
            return newest
    raise NotFoundError(f"{path} holds no checkpoint; give a checkpoint folder, or the run_dir of a job")


def _generate(checkpoint: Path, prompt: str, tokenizer: Path | None, settings: dict[str, Any]) -> Iterator[str]:
    import numpy as np

    from widestream.loader.engine import core
    from widestream.train import generate as sample
    from widestream.train import load_model

    model, meta = load_model(checkpoint)
    spec = meta.get("job", {}).get("tokenizer") or {}
    file = str(tokenizer) if tokenizer else spec.get("file")
    if not file:
        raise InvalidArgumentError(f"checkpoint {checkpoint} does not name its tokenizer; give --tokenizer FILE")
    encoder = core().Tokenizer.from_file(file, pattern=spec.get("pattern") or "")
    if encoder.vocabulary_size != model.config.vocabulary_size:
        raise InvalidArgumentError(
            f"the tokenizer {file} has {encoder.vocabulary_size} ids, but the model of {checkpoint} was trained with "
            f"{model.config.vocabulary_size}; give the tokenizer of its training with --tokenizer"
        )
    ids = encoder.encode(prompt).tolist()
    stop_ids = [token for name in spec.get("append") or () if (token := encoder.special_token_id(name)) is not None]
    ids = ids or stop_ids
    if not ids:
        raise InvalidArgumentError("the prompt is empty; write at least one character")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be cut between two tokens
    for token in sample(model, ids, stop_ids=stop_ids, **settings):
        yield decoder.decode(encoder.decode(np.array([token], dtype=np.uint32)))
    yield decoder.decode(b"", final=True)
