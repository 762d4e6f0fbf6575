#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shared library exports what the headers declare and nothing else, under one version node, and
# needs nothing that the user did not agree to.
# usage: exports.sh INCLUDE_DIRECTORY LIBRARY VERSION_NODE SONAME SANITIZER. Output: TAP.
set -euo pipefail

include=$1 library=$2 node=$3 soname=$4 sanitizer=$5
number=0

# same TITLE EXPECTED FOUND: both are lists, one item a line.
same() {
    number=$((number + 1))
    if [[ "$2" == "$3" ]]; then
        printf 'ok %d - %s\n' "$number" "$1"
        return
    fi
    printf 'not ok %d - %s\n' "$number" "$1"
    { diff <(printf '%s\n' "$2") <(printf '%s\n' "$3") || true; } |
        sed -n 's/^</# missing:/p; s/^>/# too much:/p'
}

# Comments go first: they may name STW_API too.
declared=$(cat "$include"/stepwell/*.h | tr '\n' ' ' | sed 's@/\*@\n/*@g; s@\*/@*/\n@g' |
    grep -v '^/\*' | tr '\n' ' ' | grep -oE '\bSTW_API\b[^;(]*\bstw_[a-z0-9_]+ *\(' |
    grep -oE 'stw_[a-z0-9_]+ *\($' | tr -d ' (' | sort)
same "no function is declared twice" "" "$(printf '%s\n' "$declared" | uniq -d)"
same "the headers' functions are the library's" \
    "$(printf '%s\n' "$declared" | sort -u)" \
    "$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort)"
same "every symbol is a function in the version node" "" \
    "$(nm -D --defined-only "$library" | awk '$2 != "A"' | grep -v " T .*@@$node\$" || true)"
same "SONAME" "$soname" \
    "$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')"

# names FILE: what the dynamic loader brings in for it, without the loader.
names() { ldd "$1" | awk '{ print $1 }' | sed 's@.*/@@' | grep -vE '^(linux-vdso|ld-linux)' | sort; }

if [[ $sanitizer != none ]]; then
    number=$((number + 1))
    printf 'ok %d - needs # SKIP the %s sanitizer brings its own libraries\n' "$number" "$sanitizer"
else
    # libpthread was a library of its own in glibc before 2.34.
    same "names only libc, libm, libstdc++, libgcc_s and hwloc itself" "" \
        "$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
            grep -vE '^(ld-linux.*|lib(c|m|gcc_s|hwloc|pthread|stdc\+\+)\.so\.[0-9]+)$' || true)"
    hwloc=$(ldd "$library" | awk '/libhwloc/ { print $3 }')
    allowed=$({
        printf '%s\n' libc.so.6 libm.so.6 libstdc++.so.6 libgcc_s.so.1
        if [[ -n $hwloc ]]; then basename "$hwloc" && names "$hwloc"; fi
    } | sort -u)
    same "needs only libc, libm, libstdc++, libgcc_s, hwloc and what hwloc needs" "" \
        "$(names "$library" | grep -vxF "$allowed" || true)"
fi
printf '1..%d\n' "$number"
