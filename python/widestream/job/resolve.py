"""The resolved form of a job: the JSON that the C++ engine parses (docs/formats/job.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from widestream.job.strategy import balance_of, cost_of

if TYPE_CHECKING:
    from widestream.job.sections import Mesh, Source
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
            "pad_documents_to": batch.pad_documents_to or 0,
            "pad_microbatch_to": batch.pad_microbatch_to or 0,
            "microbatch_pieces": batch.microbatch_pieces or 0,
            "fixed_shapes": batch.fixed_shapes,
        },
        "validation_fraction": job.validation.fraction,
        "lookahead_steps": job.lookahead_steps,
        "balance": job.balance,
        "balance_group_size": balance_of(job.strategy)[1],
        "cost": cost_of(job.strategy),
        "mesh": resolve_mesh(job.mesh, job.broadcast_at),
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


def resolve_mesh(mesh: Mesh, broadcast_at: list[str], dp: int | None = None) -> dict[str, Any]:
    """The mesh as the engine reads it; ``dp`` where the trainer's world says it."""
    size = dp or mesh.dp or 1
    return {
        "dp": size,
        "cp": mesh.cp,
        "tp": mesh.tp,
        "pp": mesh.pp,
        "vpp": mesh.vpp,
        "ep": mesh.ep,
        "dp_replicate": mesh.replicas(size),
        "order": list(mesh.order),
        "sequence_parallel": mesh.sequence_parallel,
        "cp_split": mesh.cp_split,
        "every_stage": list(mesh.every_stage),
        "broadcast_at": list(broadcast_at),
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
