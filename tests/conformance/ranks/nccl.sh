#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The module over NCCL, from a directory that is safe to load it from.
# usage: nccl.sh PROGRAM MODULE
set -euo pipefail

work=$(mktemp -d /tmp/stepwell-ranks-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp "$2" "$work" && chmod 0644 "$work"/*.so
"$1" "$work/${2##*/}"
