# SPDX-License-Identifier: Apache-2.0
"""cffi over the installed header and library: a tensor is written and fetched, then updated by a
step of SGD, and every number is looked at. usage: update.py PREPROCESSED_HEADER LIBRARY
"""
import array
import sys

import cffi

ELEMENTS = 1 << 20


class Stepwell:
    """The library, with its structs and constants as the header says."""

    def __init__(self, header, library):
        self.ffi = cffi.FFI()
        with open(header, encoding="utf-8") as text:
            self.ffi.cdef(text.read())
        self.c = self.ffi.dlopen(library)

    def check(self, status):
        if status < 0:
            sys.exit(self.ffi.string(self.c.stw_last_error()).decode())

    def struct(self, name, **values):
        made = self.ffi.new(f"stw_{name} *", values)
        made.struct_size = self.ffi.sizeof(f"stw_{name}")
        return made

    def out(self, kind, call, *arguments):
        """The handle that a call makes."""
        made = self.ffi.new(f"stw_{kind} **")
        self.check(call(*arguments, made))
        return made[0]


def open_runtime(stw):
    path, options = stw.ffi.new("char[]", b"."), stw.ffi.new("char[]", b"allow_tmpfs=1")
    nvme = stw.struct("nvme_options", path=path, budget_bytes=64 << 20, driver_options=options)
    return stw.out("runtime", stw.c.stw_runtime_open, stw.struct(
        "runtime_options", nvme=nvme, nvme_count=1, host_bytes=16 << 20))


def create(stw, runtime, role):
    spec = stw.struct("tensor_spec", role=role, dtype=stw.c.STW_F32, dimensions=1,
                      shape=[ELEMENTS])
    return stw.out("tensor", stw.c.stw_tensor_create, runtime, spec, 1)


def fetch(stw, runtime, tensor, access, body):
    """What `body` returns for the bytes of a view."""
    view = stw.ffi.new("stw_view *")
    request = stw.struct("fetch_request", tensor=tensor, access=access)
    stw.check(stw.c.stw_fetch(runtime, stw.ffi.NULL, request, 1, view))
    result = body(stw.ffi.buffer(view.pointer, view.bytes))
    stw.check(stw.c.stw_release(view, 1, stw.ffi.NULL, 0))
    return result


def main(header, library):
    stw = Stepwell(header, library)
    runtime = open_runtime(stw)
    weights = create(stw, runtime, stw.c.STW_ROLE_PARAM)
    gradient = create(stw, runtime, stw.c.STW_ROLE_GRAD)
    numbers = array.array("f", range(ELEMENTS))

    def write(memory):
        memory[:] = numbers.tobytes()

    fetch(stw, runtime, weights, stw.c.STW_WRITE, write)
    stw.check(stw.c.stw_tensor_fill(gradient, 4.0, stw.ffi.NULL))

    sgd = stw.out("optimizer", stw.c.stw_optimizer_create, runtime, stw.struct(
        "optimizer_options", algorithm=stw.c.STW_OPTIMIZER_SGD))
    entry = stw.struct("optimizer_entry", parameter=weights, gradient=gradient)
    stw.check(stw.c.stw_optimizer_add(sgd, entry, 1))
    stw.check(stw.c.stw_optimizer_set_hyper(sgd, 0, stw.struct("hyper", lr=0.25)))
    stw.check(stw.c.stw_optimizer_step(sgd, stw.ffi.NULL, stw.ffi.NULL))
    # Waits for the update.
    found = fetch(stw, runtime, weights, stw.c.STW_READ, lambda memory: bytes(memory[:]))
    stw.check(stw.c.stw_runtime_close(runtime, 0, 0))
    right = found == array.array("f", range(-1, ELEMENTS - 1)).tobytes()
    print("cffi: 2^20 numbers were fetched and updated,", "rightly" if right else "wrongly")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
