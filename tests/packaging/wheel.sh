#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's way from the source to the first fetch in Python is at most three commands, and they
# do what they say: the wheel carries the library, and an environment that has nothing else runs it.
# usage: wheel.sh SOURCE. Output: TAP.
set -euo pipefail

source=$1
# shellcheck source=tests/packaging/tap.sh
. "$source/tests/packaging/tap.sh"

# As a shell of somebody who has just got the source.
unset LD_LIBRARY_PATH PYTHONPATH STEPWELL_LIBRARY
export HOME=$work/home
mkdir "$HOME"
cd -- "$source"

# The commands of the first block after the heading, without their comments.
commands() {
    awk '/^## / { here = $0 == "## A Python program" }
        here && /^```/ { if (++fences == 2) exit; next }
        here && fences == 1 { sub(/ *#.*/, ""); print }' README.md
}
few_commands() {
    commands
    local lines
    lines=$(commands | grep -c .)
    ((lines >= 1 && lines <= 3))
}
they_run() {
    few_commands # else they are something else
    local line
    while read -r line; do
        printf '+ %s\n' "$line"
        (cd "$source" && bash -e -c "$line" <&-)
    done <<<"$(commands)"
}
carries_the_library() {
    local python=$HOME/stepwell-env/bin/python
    cd "$work"
    same "$HOME/stepwell-env" "$("$python" -c \
        'import stepwell; print(stepwell._library.lib._name)' | grep -o "^$HOME/stepwell-env")"
    same "stepwell" "$("$HOME/stepwell-env/bin/pip" list --format=freeze |
        sed 's/==.*//' | grep -vxE 'pip|setuptools|wheel|pkg[-_]resources')"
    "$python" "$source/examples/small/threads.py"
    # `pip install .` takes the files of the package from a list of its own.
    diff <(cd "$source/bindings/python" &&
        find stepwell -name '*.py' -o -name py.typed | LC_ALL=C sort) \
        <(grep -o "stepwell/[^']*\.[a-z]*" "$source/bindings/python/meson.build" | LC_ALL=C sort)
    # Licences travel, and the page of the package leads nowhere that is not there.
    local about=("$HOME"/stepwell-env/lib/python3*/site-packages/stepwell-*.dist-info)
    ls "${about[0]}/licenses/LICENSE" "${about[0]}/licenses/NOTICE"
    if grep -nE '\]\((\.|docs/|[A-Z]+\.md)' "${about[0]}/METADATA"; then return 1; fi
}

check "the README has at most three commands" few_commands
if ! python3 -m venv "$work/venv" >"$work/said" 2>&1; then
    skip "they run" "python3 makes no environments here (python3-venv)"
else
    check "they run" they_run
    check "the wheel carries the library, and needs no other package" carries_the_library
fi
done_testing
