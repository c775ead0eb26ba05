"""The JSON schema of the job file. ``python -m widestream.job.schema docs/job.schema.json`` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def job_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of the YAML form, short forms included."""
    from pydantic import BaseModel

    from widestream.job.spec import Job

    # Of BaseModel: the subclass's own json_schema() calls this.
    schema = BaseModel.model_json_schema.__func__(Job)  # type: ignore[attr-defined]
    shuffle = schema["$defs"]["Shuffle"]
    schema["$defs"]["Shuffle"] = {"anyOf": [{"const": False}, shuffle], "description": shuffle.pop("description")}
    # With short forms, these need not be there although the stored form has them.
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Widestream job"}


def schema_text() -> str:
    """The committed form: sorted keys, two spaces."""
    return json.dumps(job_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m widestream.job.schema FILE")
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
