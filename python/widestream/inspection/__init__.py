"""Looking at data, jobs and runs: what the commands inspect, preview, plan, explain, state and journal show.

Every function returns JSON values; `widestream.inspection.render` turns them into text for a terminal.
"""

from widestream.inspection.dry_run import dry_run
from widestream.inspection.explain import explain
from widestream.inspection.files import inspect_path
from widestream.inspection.journal import journal_steps, read_journal, repair_journal
from widestream.inspection.preview import preview
from widestream.inspection.provenance import provenance_document, write_provenance
from widestream.inspection.state import read_state

__all__ = [
    "dry_run",
    "explain",
    "inspect_path",
    "journal_steps",
    "preview",
    "provenance_document",
    "read_journal",
    "read_state",
    "repair_journal",
    "write_provenance",
]
