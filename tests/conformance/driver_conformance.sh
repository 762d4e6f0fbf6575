#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The installed form of the suite: what passes, what fails and what is refused, by exit status.
# usage: driver_conformance.sh PROGRAM MODULES_DIRECTORY. Output: TAP.
set -uo pipefail

program=$1 modules=$2
number=0
# The build directory may be one that others write to; a module is not loaded from there.
work=$(mktemp -d /tmp/stepwell-conformance-XXXXXX)
trap 'rm -rf "$work"' EXIT
for name in ram older newer other_abi alone; do
    cp "$modules/libstepwell-$name.so" "$work" && chmod 0644 "$work/libstepwell-$name.so"
done
ram=$work/libstepwell-ram.so

# expect TITLE STATUS WORDS ARGUMENT...: the program's exit status, and words that it says.
expect() {
    local title=$1 status=$2 words=$3 said verdict=ok
    number=$((number + 1))
    said=$("$program" "${@:4}" 2>&1)
    local found=$?
    ((found == status)) && grep -qF -- "$words" <<<"$said" || verdict='not ok'
    printf '%s %d - %s\n' "$verdict" "$number" "$title"
    [[ $verdict == ok ]] || printf '# exit status %d\n%s\n' "$found" "$said" | sed 's/^/# /'
}

cd "$work" || exit 1
expect "both drivers of a module pass" 0 "[  PASSED  ]" ./libstepwell-ram.so
mkdir one two
expect "each directory is a run of its own" 0 "StorageConformance.InfoSaysWhatWasOpened/ram_in_2" \
    --filter '*InfoSays*' --directory one -d two "$ram"
expect "nothing is left in them" 0 "" --filter '*Info*' --directory one "$ram"
rmdir one two || number=0
expect "memory drivers are there too" 0 "MemoryConformance" --list "$ram"
expect "memory that is elsewhere is asked for more than any machine has" 0 \
    "Asks for 1048584.0 GiB" --memory-elsewhere --filter '*OverAvailable*' "$ram"
expect "a module of older headers passes" 0 "[  PASSED  ]" libstepwell-older.so
expect "a module of newer headers passes" 0 "[  PASSED  ]" libstepwell-newer.so
expect "a test that fails is status 1" 1 "has no option 'colour=blue'" --options colour=blue "$ram"
expect "a module of another ABI is refused" 2 "was built for driver ABI" libstepwell-other_abi.so
expect "a module with a collective driver alone is refused" 2 "needs several ranks" \
    libstepwell-alone.so
expect "a module that is not there is refused" 2 "is not there" missing.so
chmod 0666 "$ram"
expect "a module that anyone may write is refused" 2 "chmod go-w" "$ram"
chmod 0644 "$ram"
expect "a directory that is not there is refused" 2 "'none' is not a directory" -d none "$ram"
expect "a filter that matches nothing is refused" 2 "matches 'Tape'" -f Tape "$ram"
expect "a module must be named" 2 "takes one MODULE"
expect "an unknown option is refused" 2 "--help" --colour "$ram"
expect "help says how" 0 "usage: stepwell-driver-conformance" --help
printf '1..%d\n' "$number"
