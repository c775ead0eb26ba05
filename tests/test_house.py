"""The house rules that a machine can check: imports, stub, include direction, what may not ship."""

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What `import widestream` loads only when used.
HEAVY = ("torch", "ray", "pyarrow", "transformers", "pandas", "pydantic", "plotly", "typer", "rich")

# Written in pieces, or this file would match itself.
UNSHIPPABLE = (
    "/" + "work/",
    "/" + "farm/",
    "/" + "root/",
    "pypi" + ".org",
    "python" + "hosted.org",
    "download.py" + "torch.org",
    "shared" + "/design",
    "shared" + "/reference",
    "shared" + "/tools",
)
CODE_SUFFIXES = {".py", ".pyi", ".cc", ".h", ".cu"}
SOURCE_SUFFIXES = CODE_SUFFIXES | {"", ".cmake", ".toml", ".json", ".yaml", ".yml", ".md", ".txt", ".in"}


def script(name: str) -> ModuleType:
    """A script of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def project_files(suffixes: set[str]) -> list[Path]:
    """Files that git knows or would add, less data sets and vocabularies (text that others wrote)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    files = []
    for name in done.stdout.decode().split("\0"):
        path = ROOT / name
        data = any(part in {"data", "corpus", "golden", "tokenizers"} for part in Path(name).parts[:-1])
        if name and not data and path.is_file() and path.suffix in suffixes:
            files.append(path)
    assert len(files) > 5
    return files


def matches(pattern: str, files: list[Path]) -> list[str]:
    """ "path:line: text" of every match."""
    expression = re.compile(pattern)
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if expression.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_import_loads_nothing_heavy() -> None:
    program = f"import sys, widestream; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_committed_stub_is_what_the_extension_gives(tmp_path: Path) -> None:
    committed = ROOT / "python" / "widestream" / "_core.pyi"
    if not (ROOT / "bindings" / "module.cc").exists():
        assert not committed.exists(), "a stub of an extension that does not exist"
        pytest.skip("there is no extension yet")
    assert committed.exists(), "type: scripts/update_stubs"
    subprocess.run([ROOT / "scripts" / "update_stubs", tmp_path], check=True, capture_output=True, timeout=100)
    assert (tmp_path / "_core.pyi").read_text() == committed.read_text(), "type: scripts/update_stubs"


def test_includes_go_down_the_street() -> None:
    files, faults = script("check_includes").check_tree(ROOT)
    assert files > 0
    assert faults == []


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("engine/base/a.h", "#pragma once\n#include <vector>\n", None),
        ("engine/base/a.h", "#include <vector>\n", "pragma once"),
        ("engine/plan/a.cc", '#include "engine/source/messages.h"\n', None),
        ("engine/plan/a.cc", '#include "engine/source/loader.h"\n', "may not know"),
        ("engine/formats/a.cc", '#include "engine/source/messages.h"\n', "up the street"),
        ("engine/base/a.cc", '#include "messages.h"\n', "not a file"),
        ("engine/base/a.cc", '#include "tests/x.h"\n', "may not include"),
        ("engine/utils/a.cc", "", "no room"),
        ("engine/base/a.cc", "#include <Python.h>\n", "no Python"),
        ("engine/runtime/a.cc", "#  include <torch/all.h>\n", "no Python, torch"),
        ("engine/formats/a.cc", "#include <parquet/arrow/reader.h>\n", "Arrow"),
        ("engine/formats/arrow/a.cc", "#include <parquet/arrow/reader.h>\n", None),
        ("ops/a.cc", '#include "engine/base/status.h"\n', "ops may include"),
        ("bindings/a.cc", '#include "engine/base/status.h"\n#include <nanobind/nanobind.h>\n', None),
    ],
)
def test_include_check_finds(tmp_path: Path, name: str, text: str, word: str | None) -> None:
    for existing in (
        "engine/source/messages.h",
        "engine/source/loader.h",
        "engine/base/status.h",
        "tests/x.h",
    ):
        (tmp_path / existing).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / existing).write_text("#pragma once\n")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    _, faults = script("check_includes").check_tree(tmp_path)
    if word is None:
        assert faults == []
    else:
        assert len(faults) == 1 and word in faults[0] and faults[0].startswith(f"{name}:")


def test_nothing_names_this_workplace() -> None:
    assert matches("|".join(map(re.escape, UNSHIPPABLE)), project_files(SOURCE_SUFFIXES)) == []


def test_no_unfinished_marks() -> None:
    marks = r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b"
    assert matches(marks, project_files(CODE_SUFFIXES)) == []


def test_code_is_ascii() -> None:
    """Tests may hold other text; they write it as they need."""
    code = [path for path in project_files(CODE_SUFFIXES) if "test" not in path.name]
    assert matches(r"[^\x00-\x7f]", code) == []


def test_the_engine_neither_prints_nor_aborts() -> None:
    for_tests = ("_test.cc", "testing.h", "temporary_folder.h", "delivery_peer.cc")
    engine = [p for p in project_files({".cc", ".h"}) if "engine" in p.parts and not p.name.endswith(for_tests)]
    calls = r"std::(cout|cerr|clog|abort|terminate|exit)\b|(?<![\w.>])(f?printf|puts|abort|exit|_exit)\("
    assert matches(calls, engine) == []


def test_the_library_prints_only_from_the_command_line() -> None:
    """A `print` in the package is in its command line or in a program of its own, or says where it prints to."""
    found = []
    for path in sorted((ROOT / "python" / "widestream").rglob("*.py")):
        relative = path.relative_to(ROOT / "python" / "widestream")
        if relative.parts[0] in {"cli", "cli.py"} or relative.name == "__main__.py":
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        module.body = [node for node in module.body if not ast.unparse(node).startswith("if __name__ == '__main__':")]
        for node in ast.walk(module):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id == "print" and "file=" not in ast.unparse(node):
                found.append(f"{relative}:{node.lineno}")
    assert found == []


def test_the_package_never_unpickles() -> None:
    """Files are hostile: no pickle; torch.load only with weights_only."""
    package = sorted((ROOT / "python" / "widestream").rglob("*.py"))
    loads = r"^\s*(import|from)\s+(pickle|dill|cloudpickle|marshal|shelve)\b|(?<!safetensors\.)torch\.load\((?!.*weights_only=True)"
    assert matches(loads, package) == []


def pinned() -> dict[str, str]:
    requirements = script("check_requirements")
    pins: dict[str, str] = {}
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for name, version in requirements.pins(path).items():
            assert pins.setdefault(name, version) == version, f"two pins of {name}: {path.name} has {version}"
    return pins


def test_pins_meet_the_package_metadata() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    pins = {name.lower().replace("_", "-"): version for name, version in pinned().items()}
    for requirement in map(Requirement, wanted):
        if requirement.name.startswith("widestream") or requirement.name in {
            "ray",
            "transformers",
            "lightning",
        }:
            continue
        version = pins.get(requirement.name.lower().replace("_", "-"))
        assert version is not None, f"{requirement} has no pin in requirements/"
        assert requirement.specifier.contains(version), f"the pin {version} does not satisfy {requirement}"


def test_installed_packages_are_the_pinned_ones() -> None:
    names = ("run.txt", "train.txt", "build.txt", "test.txt")
    missing = script("check_requirements").missing([ROOT / "requirements" / name for name in names])
    assert missing == [], "type: scripts/setup test"


def test_the_package_imports_only_what_it_declares() -> None:
    """Imported modules belong to the dependencies, the extras or the standard library."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"] + [r for extra in project["optional-dependencies"].values() for r in extra]
    distributions = {re.split(r"[^A-Za-z0-9_.\-]", r)[0].lower().replace("_", "-") for r in declared}
    distributions.add("pydantic-core")  # comes with pydantic, which documents parts of it as its own
    owners = importlib.metadata.packages_distributions()
    undeclared = []
    for path in sorted((ROOT / "python" / "widestream").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for top in {name.split(".")[0] for name in names}:
                if top in sys.stdlib_module_names or top == "widestream":
                    continue
                if not {owner.lower().replace("_", "-") for owner in owners.get(top, [top])} & distributions:
                    undeclared.append(f"{path.relative_to(ROOT)}: {top}")
    assert undeclared == []


@pytest.mark.parametrize(
    ("report", "last_line", "status"),
    [
        ("<suite><testcase/><testcase><skipped/></testcase></suite>", "1 passed, 0 failed", 0),
        ("<suite><testcase/><testcase><failure/></testcase></suite>", "1 passed, 1 failed", 1),
        ("<all><suite><testcase><error/></testcase></suite></all>", "0 passed, 1 failed", 1),
        ("<suite><testcase", "0 passed, 1 failed", 1),
        ("<suite/>", "0 passed, 0 failed", 1),
    ],
)
def test_ci_counts_what_the_reports_say(tmp_path: Path, report: str, last_line: str, status: int) -> None:
    (tmp_path / "report.xml").write_text(report)
    command = [sys.executable, ROOT / "scripts" / "count_tests.py", tmp_path / "report.xml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == last_line
    assert done.returncode == status


def test_scripts_are_executable_and_parse() -> None:
    for path in [*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run"]:
        if path.is_dir() or path.suffix:
            continue
        assert path.stat().st_mode & 0o111, f"{path.name} is not executable"
        assert path.read_text().startswith("#!"), f"{path.name} names no interpreter"
        if "bash" in path.read_text().splitlines()[0]:
            subprocess.run(["bash", "-n", path], check=True, timeout=60)


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in project_files({".md"}):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_document_is_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []
