#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs outside of the tree build and run from what is installed and from nothing else: through
# pkg-config, CMake and dlopen, in C, C++, Rust, Go and Python with cffi; and from a build that is
# not installed, through pkg-config and as a subproject of Meson.
# usage: installed.sh SOURCE BUILD PREFIX LIBDIR VERSION CC CXX. Output: TAP.
set -euo pipefail

source=$1 build=$2 prefix=$3 libdir=$4 version=$5
export CC=$6 CXX=$7
outside=$source/tests/packaging/outside
cache=$PWD
# shellcheck source=tests/packaging/tap.sh
. "$source/tests/packaging/tap.sh"

# Only our .pc files: no other stepwell of this machine is found.
unset PKG_CONFIG_PATH LD_LIBRARY_PATH
root=$work/root
library=$root$prefix/$libdir
install_tree() {
    meson install -C "$build" --no-rebuild --destdir "$root"
    [[ -f $library/libstepwell.so.0 && -f $root$prefix/include/stepwell/stepwell.hpp &&
        -f $root$prefix/share/man/man3/stw_fetch.3 ]]
}
installed() { PKG_CONFIG_LIBDIR=$library/pkgconfig pkg-config "$@"; }
uninstalled() { PKG_CONFIG_LIBDIR=$build/meson-uninstalled pkg-config "$@"; }

# compile COMPILER FLAG... SOURCE PROGRAM; link flags come from FOUND_BY, one of the two above.
compile() {
    local flags=() at=$#
    read -r -a flags <<<"$("$FOUND_BY" --cflags --libs stepwell)"
    "${@:1:at-1}" -Wall -Wextra -Wpedantic -Werror -Wl,--as-needed "${flags[@]}" -o "$work/${!at}"
}
# run LIBRARY_DIRECTORY PROGRAM [ARGUMENT...]
run() { (cd "$work" && LD_LIBRARY_PATH=$1 "${@:2}"); }

requires_nothing() {
    same "" "$(installed --print-requires stepwell)$(installed --print-requires-private stepwell)"
    same "-lstepwell" "$(installed --libs-only-l stepwell | tr -d ' ')"
    same "$version" "$(installed --modversion stepwell)"
}
c_program() {
    compile "$CC" -std=c99 "$outside/round_trip.c" round_trip_c
    same "libc.so.6 libstepwell.so.0 " "$(needs "$work/round_trip_c")"
    run "$library" ./round_trip_c
}
cpp_program() {
    compile "$CXX" -std=c++17 "$outside/round_trip.cpp" round_trip_cpp
    run "$library" ./round_trip_cpp
}
dlopen_program() {
    compile "$CC" -std=c99 -D_GNU_SOURCE -DBY_DLOPEN "$outside/round_trip.c" round_trip_dlopen
    same "libc.so.6 " "$(needs "$work/round_trip_dlopen")"
    run "$library" ./round_trip_dlopen libstepwell.so.0
}
# The C ABI from other languages.
rust_program() {
    rustc --edition 2021 -C linker="$CC" -L "$library" -o "$work/update_rust" "$outside/update.rs"
    run "$library" ./update_rust
}
# Go keeps what it has compiled, its own library above all, for the next time.
go_program() {
    (cd "$work" && cp "$outside/update.go" . && GOCACHE=$cache/go-cache GO111MODULE=off \
        PKG_CONFIG_LIBDIR=$library/pkgconfig \
        go build -o update_go update.go)
    run "$library" ./update_go
}
cffi_program() {
    mkdir "$work/no_libc" && touch "$work/no_libc/stdint.h"
    printf '#include <stepwell/stepwell.h>\n' |
        "$CC" -E -P -x c -std=c99 -nostdinc '-D__attribute__(x)=' -I "$work/no_libc" \
            -I "$root$prefix/include" - >"$work/stepwell.i"
    run "$library" python3 -B "$outside/update.py" stepwell.i libstepwell.so.0
}
# Moved first: the files of CMake know no path of the build.
cmake_project() {
    cp -a "$root$prefix" "$work/moved"
    cmake -S "$outside" -B "$work/cmake" -G Ninja -DWANTED="$version" \
        -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_BUILD_TYPE=
    ninja -C "$work/cmake"
    (cd "$work" && cmake/round_trip_c && cmake/round_trip_cpp)
    same "$work/moved/$libdir" "$(readelf -d "$work/cmake/round_trip_c" |
        sed -n 's/.*RUNPATH.*\[\(.*\)\]/\1/p')"
}
uninstalled_program() {
    compile "$CC" -std=c99 "$outside/round_trip.c" round_trip_uninstalled
    run "$build" ./round_trip_uninstalled
}
# Compiled and not linked: linking would build the library once more.
subproject() {
    cp -r "$outside" "$work/project"
    mkdir "$work/project/subprojects"
    ln -s "$source" "$work/project/subprojects/stepwell"
    meson setup "$work/project/build" "$work/project" --force-fallback-for=stepwell
    ninja -C "$work/project/build" round_trip.p/round_trip.c.o
    grep -q '^build round_trip: .*subprojects/stepwell/libstepwell.so' \
        "$work/project/build/build.ninja"
}

# The example of a driver, as its author would build it: its folder and what is installed. Under
# /tmp, since the folders above a build may be others' to write, and no module is loaded from there.
driver_built() {
    cp -r "$source/examples/drivers/zstd" "$work/zstd"
    same "" "$(installed --libs stepwell-driver | tr -d ' ')"
    local headers
    headers=$(installed --cflags stepwell-driver | tr -d ' ')
    same "$root$prefix/include" "$(realpath "${headers#-I}")"
    same "$library/stepwell" "$(realpath -m "$(installed --variable=moduledir stepwell-driver)")"
    PKG_CONFIG_LIBDIR=$library/pkgconfig:$(pkg-config --variable pc_path pkg-config) \
        meson setup "$work/zstd/build" "$work/zstd" --prefix "$prefix" -Dwerror=true
    meson install -C "$work/zstd/build"
    same "" "$(needs "$library/stepwell/libstepwell-zstd.so" | grep stepwell || true)"
    install -m 644 "$library/stepwell/libstepwell-zstd.so" "$safe"
}
driver_conforms() {
    run "$library" "$root$prefix/bin/stepwell-driver-conformance" "$safe/libstepwell-zstd.so"
}
driver_by_path() {
    compile "$CC" -std=c99 "$outside/compressed.c" compressed
    run "$library" ./compressed "$safe/libstepwell-zstd.so"
}
# Beside the library, wherever it was moved to, also when the loader was given a relative path.
driver_by_name() {
    mkdir -p "$safe/moved/stepwell"
    cp "$library/libstepwell.so.0" "$safe/moved"
    install -m 644 "$library/stepwell/libstepwell-zstd.so" "$safe/moved/stepwell"
    run "$safe/moved" ./compressed zstd
    (cd "$safe" && LD_LIBRARY_PATH=moved "$work/compressed" zstd)
    chmod g+w "$safe/moved/stepwell"
    if run "$safe/moved" ./compressed zstd 2>"$work/refused"; then return 1; fi
    cat "$work/refused"
    grep -F "chmod go-w" "$work/refused"
}

# What ./dev package would stumble over: it builds the library once more, so it is no test. This
# build installs no Python package.
debian_files() {
    same "stepwell ($version)" "$(grep -om1 '^stepwell ([^)]*)' "$source/debian/changelog")"
    # As with Debian's libdir, whatever this build's is.
    mkdir -p "$work/usr/lib"
    ln -s "$root$prefix"/{bin,include,share} "$work/usr"
    ln -s "$library" "$work/usr/lib/triplet"
    local pattern
    cat "$source"/debian/{libstepwell*,stepwell}.install | while read -r pattern; do
        # A module of what this machine lacks was not built.
        [[ $pattern != *libstepwell-mpi.so || -d $build/drivers/mpi ]] || continue
        # shellcheck disable=SC2086  # a pattern
        (cd "$work" && ls -d $pattern)
    done
}

FOUND_BY=installed
check "meson install into an empty tree" install_tree
check "pkg-config requires nothing and links to the library alone" requires_nothing
check "a C99 program through pkg-config" c_program
check "a C++17 program through pkg-config" cpp_program
check "a program that loads what is installed by dlopen" dlopen_program
if command -v rustc >/dev/null; then
    check "a program in Rust, by rustc alone" rust_program
else
    skip "a program in Rust" "rustc is not installed"
fi
if command -v go >/dev/null; then
    check "a program in Go, through cgo and pkg-config" go_program
else
    skip "a program in Go" "go is not installed (golang-go)"
fi
if python3 -c 'import cffi' 2>/dev/null; then
    check "a program in Python, through cffi" cffi_program
else
    skip "a program in Python, through cffi" "cffi is not installed (python3-cffi)"
fi
if command -v cmake >/dev/null; then
    check "a project of CMake finds the installed tree where it was moved to" cmake_project
else
    skip "a project of CMake" "cmake is not installed"
fi
if pkg-config --exists libzstd; then
    safe=$(mktemp -d /tmp/stw-XXXXXX)
    trap 'rm -rf "$work" "$safe"' EXIT
    check "a driver builds from what is installed and links to nothing of it" driver_built
    if [[ -x $root$prefix/bin/stepwell-driver-conformance ]]; then
        check "that driver passes the installed conformance suite" driver_conforms
    else
        skip "that driver passes the installed conformance suite" "it is not built (libgtest-dev)"
    fi
    check "a program trains through that driver, found by its path" driver_by_path
    check "and found by its name in the module directory" driver_by_name
else
    skip "a driver from what is installed" "zstd is not installed (libzstd-dev)"
fi
check "the Debian packages find their files, and are of this version" debian_files
FOUND_BY=uninstalled
check "a C99 program through pkg-config, from a build that is not installed" uninstalled_program
check "a project of Meson with the library as its subproject" subproject
done_testing
