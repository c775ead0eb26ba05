"""The resolved form of a job: the JSON that the C++ engine parses (docs/formats/job.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widestream.job.sections import Source
    from widestream.job.spec import Job


def resolve(job: Job) -> dict[str, Any]:
    """Plain dicts, lists, strings, integers, floats, booleans and None."""
    batch = job.batch
    return {
        "name": job.name,
        "seed": job.seed,
        "run_dir": job.run_dir or "",
        "data_roots": list(job.data_roots or []),
        "tokenizer": {
            "file": job.tokenizer.file,
            "pattern": job.tokenizer.pattern or "",
            "append": list(job.tokenizer.append),
        },
        "sources": [_source(source) for source in job.sources],
        "mixture": {
            "unit": job.mixture.unit,
            "stages": [
                {"until": stage.until, "weights": dict(stage.weights), "ramp": stage.ramp}
                for stage in job.mixture.stages
            ],
        },
        "batch": {
            "layout": batch.layout,
            "sequence_length": batch.sequence_length,
            "rows": batch.step_rows,
            "tokens": batch.tokens if batch.layout == "thd" else 0,
            "max_piece_tokens": batch.max_piece_tokens or 0,
            "microbatch_tokens": batch.microbatch_tokens or 0,
            "overflow": batch.overflow,
            "last_step": batch.last_step,
            "cross_document_attention": batch.cross_document_attention,
        },
        "validation_fraction": job.validation.fraction,
        "lookahead_steps": job.lookahead_steps,
        "balance": job.balance,
        "mesh": {
            "dp": job.mesh.dp or 1,
            "cp": job.mesh.cp,
            "tp": job.mesh.tp,
            "pp": job.mesh.pp,
            "vpp": job.mesh.vpp,
        },
        "errors": {
            "skip_bad_records": job.errors.bad_record == "skip",
            "record_bytes": job.errors.record_bytes,
            "budget": job.errors.budget,
        },
        "limits": {
            "host_memory_bytes": job.limits.host_memory,
            "threads": job.limits.threads,
            "read_deadline_seconds": job.limits.read_deadline,
        },
    }


def _source(source: Source) -> dict[str, Any]:
    return {
        "name": source.name,
        "paths": list(source.path),
        "format": source.format or "",
        "text": source.text,
        "max_epochs": source.max_epochs,
        "on_exhausted": source.on_exhausted,
        "shuffle": {
            "mode": source.shuffle.mode,
            "records": source.shuffle.records,
            "bytes": source.shuffle.bytes,
        },
    }
