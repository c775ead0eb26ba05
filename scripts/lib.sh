# Functions that every script here shares; sourced, not run. Bash.
#
# Progress is one line a step, with the seconds since the script began. What a step prints goes to
# build/logs/NAME.log and is shown only if the step fails.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
: "${WS_STARTED:=$(date +%s)}"
export WS_STARTED
VENV="$ROOT/.venv"
VENV_PYTHON="$VENV/bin/python"
LOGS="$ROOT/build/logs"
REPORTS="$ROOT/build/reports"
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$LOGS" "$REPORTS"

say() {
  printf '[%4d s] %s\n' "$(($(date +%s) - WS_STARTED))" "$*"
}

warn() {
  say "NOTE: $*" >&2
}

# fail WHAT [WHAT TO DO ...]: ends the script, one line an argument.
fail() {
  {
    printf '\n%s failed: %s\n' "${0##*/}" "$1"
    shift
    local line
    for line in "$@"; do printf '  %s\n' "$line"; done
  } >&2
  exit 1
}

# logged NAME COMMAND...: runs it quietly; on failure shows the end of its log. Returns its status.
logged() {
  local name="$1" status=0
  shift
  "$@" >"$LOGS/$name.log" 2>&1 || status=$?
  if ((status != 0)); then
    printf -- '---- %s (exit status %d); the end of build/logs/%s.log:\n' "$*" "$status" "$name" >&2
    tail -n 40 "$LOGS/$name.log" >&2
    printf -- '----\n' >&2
  fi
  return "$status"
}

# version_at_least FOUND WANTED, by dotted numbers.
version_at_least() {
  [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]
}

# One compiler job a core, and no more than one per 1.5 GB of memory.
build_jobs() {
  local cores memory_kb
  cores="$(nproc 2>/dev/null || echo 2)"
  memory_kb="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null || true)"
  local fit=$((${memory_kb:-3145728} / 1572864))
  local jobs=$((cores < fit ? cores : fit))
  echo "${WIDESTREAM_JOBS:-$((jobs > 0 ? jobs : 1))}"
}

# The first g++ of at least version 12: $CXX, g++, g++-15 ... g++-12. Prints nothing if there is none.
find_compiler() {
  local candidate version
  for candidate in ${CXX:-} g++ g++-15 g++-14 g++-13 g++-12; do
    version="$("$candidate" -dumpfullversion 2>/dev/null)" || continue
    if version_at_least "$version" 12; then
      command -v "$candidate"
      return
    fi
  done
}

# configure PRESET [-DX=Y ...]: CMake with the compiler and the Python that setup chose. Sanitizer and
# clang presets name their own compiler.
configure() {
  local preset="$1" compiler=()
  shift
  case "$preset" in
    dev | release | bench | asan-ubsan | tsan) compiler=("-DCMAKE_CXX_COMPILER=$(find_compiler)") ;;
  esac
  logged "configure-$preset" cmake --preset "$preset" "${compiler[@]}" \
    "-DPython_EXECUTABLE=$VENV_PYTHON" "$@"
}

build() {
  local preset="$1"
  shift
  logged "build-$preset" cmake --build --preset "$preset" -j "$(build_jobs)" "$@"
}

[[ -d "$VENV/bin" ]] && PATH="$VENV/bin:$PATH"
export PATH
