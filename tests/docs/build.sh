#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The documentation builds without a warning, and every exported function has a manual page that the
# formatter takes without one. usage: build.sh SOURCE LIBRARY
set -euo pipefail

source=$1 library=$2
python=/usr/bin/python3
[[ -x $python ]] || python=python3
if ! "$python" -c 'import sphinx, myst_parser, furo' 2>/dev/null; then
    echo "Sphinx is not installed (python3-sphinx python3-myst-parser furo)"
    exit 77
fi

work=$(mktemp -d "$PWD/docs-XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -B "$source/scripts/docs" --output "$work"
man=$work/man
[[ -s $work/html/index.html && -s $man/man1/stepwell.1 && -s $man/man3/stepwell.3 ]]

functions=$(nm -D --defined-only "$library" | awk '$3 ~ /^stw_/ { sub("@.*", "", $3); print $3 }')
[[ $(wc -w <<<"$functions") -gt 40 ]] || { echo "the library exports almost nothing" && exit 1; }
for function in $functions; do
    page=$man/man3/$function.3
    [[ -s $page ]] || { echo "$function has no manual page" && exit 1; }
    # The page it names is of the header that declares it.
    grep -q "$function" "$man/$(awk '{ print $2 }' "$page")" ||
        { echo "$function is not on the page that its own one names" && exit 1; }
    grep -qr ">$function<" "$work/html/reference" ||
        { echo "$function is in no page of HTML" && exit 1; }
done
echo "$(wc -w <<<"$functions") functions have their pages"

if command -v groff >/dev/null; then
    for page in "$man"/man1/*.1 "$man"/man3/stepwell*.3; do
        said=$(groff -man -ww -z -K utf8 -Tutf8 "$page" 2>&1)
        [[ -z $said ]] || { echo "$page: $said" && exit 1; }
    done
fi
