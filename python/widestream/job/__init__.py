"""The job: what a user writes down, checked and resolved.

``Job.load("job.yaml")`` reads a file, ``Job(sources=[...], ...)`` builds one in Python, ``job.resolve()`` gives the
plain values that the engine reads (docs/formats/job.md). Every key: docs/job.md.
"""

from widestream.job.sections import (
    Batch,
    Errors,
    Limits,
    Mesh,
    Mixture,
    Shuffle,
    Source,
    Stage,
    Tokenizer,
    Validation,
)
from widestream.job.spec import Job

__all__ = [
    "Batch",
    "Errors",
    "Job",
    "Limits",
    "Mesh",
    "Mixture",
    "Shuffle",
    "Source",
    "Stage",
    "Tokenizer",
    "Validation",
]
