"""Runs the C++ example on a job and compares every line it prints with what the Python loader gives.

python scripts/compare_cpp_example.py PROGRAM JOB.yaml STEPS
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import widestream as ws

SHOWN_IDS = 8  # as many as examples/cpp/stream.cc prints of a microbatch


def python_lines(job_file: Path, steps: int, run_dir: str) -> list[str]:
    """The lines that the example should print."""
    job = ws.Job.load(job_file, overrides=[f"run_dir={run_dir}"])
    lines = []
    with ws.DataLoader(job, rank=0, world=1, tensors="numpy") as loader:
        for _, batch in zip(range(steps), loader, strict=False):
            lines.append(f"step {batch.step} digest {batch.digest} tokens {batch.real_tokens}")
            for microbatch in batch.microbatches:
                rows, width = microbatch.tokens.shape
                shown = " ".join(map(str, microbatch.tokens.ravel()[:SHOWN_IDS]))
                lines.append(f"  {rows} x {width}: {shown} ...")
    return lines


def main(program: str, job_file: str, steps: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        resolved = Path(folder) / "job.json"
        lint = [str(Path(sys.executable).with_name("widestream")), "lint", job_file, "--resolved"]
        resolved.write_bytes(subprocess.run(lint, check=True, stdout=subprocess.PIPE).stdout)
        done = subprocess.run([program, resolved, steps], check=True, stdout=subprocess.PIPE, text=True)
        expected = python_lines(Path(job_file), int(steps), str(Path(folder) / "run"))
    found = done.stdout.splitlines()
    for number, (line, wanted) in enumerate(zip(found, expected, strict=False), 1):
        if line != wanted:
            print(f"line {number}: C++ printed\n  {line}\nPython has\n  {wanted}")
            return 1
    if len(found) != len(expected) or not expected:
        print(f"C++ printed {len(found)} lines, Python has {len(expected)}")
        return 1
    print(f"the C++ example and Python agree on {steps} steps ({len(expected)} lines)")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
