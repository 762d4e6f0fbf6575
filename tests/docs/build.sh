#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The documentation builds without a warning and is installed; every exported function has a manual
# page that the formatter takes without one. usage: build.sh SOURCE LIBRARY
set -euo pipefail

source=$1 library=$2
if ! python3 -c 'import sphinx, myst_parser, furo, pycparser' 2>/dev/null; then
    echo "What makes the pages is not installed (python3-sphinx python3-myst-parser python3-pycparser furo)"
    exit 77
fi

work=$(mktemp -d "$PWD/docs-XXXXXX")
trap 'rm -rf "$work"' EXIT
# Nothing of the library is compiled for it.
meson setup "$work/build" "$source" -Ddocs=true -Dprefix=/usr -Dauto_features=disabled >"$work/log" ||
    { cat "$work/log" && exit 1; }
ninja -C "$work/build" docs/html
meson install -C "$work/build" --no-rebuild --tags doc --destdir "$work/root" >/dev/null
man=$work/root/usr/share/man html=$work/root/usr/share/doc/stepwell/html
[[ -s $html/index.html && -s $html/docs/concepts.html && -s $man/man3/stepwell.3 ]]

functions=$(nm -D --defined-only "$library" | awk '$3 ~ /^stw_/ { sub("@.*", "", $3); print $3 }')
[[ $(wc -w <<<"$functions") -gt 40 ]] || { echo "the library exports almost nothing" && exit 1; }
for function in $functions; do
    page=$man/man3/$function.3
    [[ -s $page ]] || { echo "$function has no manual page" && exit 1; }
    # Told together with another one: its page is only a link.
    [[ "$(head -c 4 "$page")" != .so\  ]] || page=$man/$(awk '{ print $2 }' "$page")
    grep -q "^.fB.*$function(" "$page" || { echo "$page does not declare $function" && exit 1; }
    grep -qr ">$function<" "$html/reference" ||
        { echo "$function is in no page of HTML" && exit 1; }
done
echo "$(wc -w <<<"$functions") functions have their pages"

if command -v groff >/dev/null; then
    for page in "$source"/bindings/cli/*.1 "$man"/man3/*.3; do
        said=$(cd "$man" && groff -man -ww -z -s -K utf8 -Tutf8 "$page" 2>&1)
        [[ -z $said ]] || { echo "$page: $said" && exit 1; }
    done
fi
