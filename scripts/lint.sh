#!/usr/bin/env bash
# scripts/lint.sh: every check of `make lint`, over tracked files only. One line for each; output where one fails.
# The tools come from the lock and are found on PATH.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
work=build/lint
rm -rf "$work" && mkdir -p "$work" || exit 1
failed=0

step() { # step NAME COMMAND...
    local name=$1 started=$SECONDS
    shift
    if "$@" >"$work/output" 2>&1; then
        printf 'ok    %s (%d s)\n' "$name" $((SECONDS - started))
    else
        printf 'FAIL  %s\n' "$name"
        sed 's/^/      /' "$work/output"
        failed=1
    fi
}

# tracked PATTERN...: into the array `files`; those that are deleted but not yet committed are no files.
tracked() { mapfile -t files < <(git ls-files -- "$@" | while IFS= read -r file; do [ ! -f "$file" ] || echo "$file"; done); }

# A compose override may use compose's own tags, which are no part of the schema: a value that is !reset goes, one that
# is !override stays.
# shellcheck disable=SC2329 # `step` calls it
schema_of_compose_files() {
    local file
    for file in "$@"; do
        sed -E -e '/: *!reset( |$)/d' -e 's/!override //' "$file" >"$work/$file"
        check-jsonschema --quiet --builtin-schema vendor.compose-spec "$work/$file" || return 1
    done
}

if ! git rev-parse --git-dir >/dev/null 2>&1; then
    echo "make lint checks what git tracks: it needs git, and a clone" >&2
    exit 1
fi

tracked '*.py'
step "ruff check" ruff check "${files[@]}"
step "ruff format" ruff format --check "${files[@]}"
step "mypy --strict" mypy "${files[@]}"

tracked
mapfile -t files < <(grep -lE '^#!.*[/ ](ba|da)?sh$' "${files[@]}")
step "shellcheck" shellcheck -x "${files[@]}"

tracked '*Dockerfile'
step "hadolint" hadolint "${files[@]}"

tracked '*.yaml' '*.yml'
step "yamllint" yamllint --strict "${files[@]}"

tracked 'compose*.yaml'
step "compose schema" schema_of_compose_files "${files[@]}"
step "compose-lint" compose-lint check --fail-on low --strict-config --no-env compose.yaml

step "dashboards match their generator" python -m grafana.generate --check
step "rules match their thresholds" python -m prometheus.generate --check
step "the API page's errors match the code" python -m docs.generate --check

exit "$failed"
