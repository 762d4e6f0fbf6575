#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stepwell beside PyTorch in one process, on one GPU.

usage: torch_step.py MODULE [--json FILE] [--absent]

Each case is tried whatever became of the others, until the device is lost. --absent: only say what
is not here. Exit status: 0 all passed, 1 one did not, 77 there is nothing to try it with.
"""
import json
import sys
import threading
import time
import traceback

MIB = 1 << 20
NOT_HERE = 77
VIEW_US = 50.0


def absent():
    """(torch, stepwell), or a sentence on what is not here."""
    try:
        import torch
    except ImportError as error:
        return None, f"PyTorch is not here: {error}"
    if not torch.cuda.is_available():
        return None, f"PyTorch {torch.__version__} sees no GPU"
    import stepwell
    return (torch, stepwell), ""


class Cases:
    ELEMENTS = 4 * MIB  # of each tensor, 16 MiB
    TENSORS = 6         # of which the device holds four

    def __init__(self, torch, stepwell, module):
        self.torch, self.stepwell = torch, stepwell
        self.figures = []
        # With a fixed ordinal both are in the primary context of that device.
        torch.cuda.init()
        self.runtime = stepwell.Runtime(
            devices=stepwell.Device(64 * MIB, driver=module), host_bytes=192 * MIB, probe=False,
            profile="", timeout=10.0)
        self.tensors = [self.runtime.create(f"t{i}", self.ELEMENTS, "f32", role="param")
                        for i in range(self.TENSORS)]

    def stream(self):
        """The current one as the library names it; torch calls the legacy one 0."""
        return self.torch.cuda.current_stream().cuda_stream or self.stepwell.Stream.LEGACY

    def values(self, tensor):
        with tensor.fetch(stream=self.stream()) as view:
            return self.torch.from_dlpack(view).clone()

    def expect(self, tensor, wanted):
        found = self.values(tensor)
        if not bool((found == wanted).all()):
            wrong = int((found != wanted).sum())
            raise AssertionError(f"{wrong} of {found.numel()} elements of '{tensor.name}' are not "
                                 "what was written")

    # -- cases --------------------------------------------------------------------------------

    def dlpack_out(self):
        """torch reads a view: its stream comes after the arrival of the bytes."""
        for i, tensor in enumerate(self.tensors):
            tensor.fill(i + 1)
        for i, tensor in enumerate(self.tensors):
            self.expect(tensor, i + 1)
        ns = []
        for _ in range(200):
            begin = time.perf_counter_ns()
            with self.tensors[-1].fetch(stream=self.stream()) as view:
                self.torch.from_dlpack(view)
            ns.append(time.perf_counter_ns() - begin)
        us = sorted(ns)[len(ns) // 2] / 1000
        self.figures.append({
            "name": "torch.view", "value": round(us, 2), "unit": "us",
            "against": f"at most {VIEW_US:g}", "ratio": round(VIEW_US / us, 3),
            "spread": [round(VIEW_US * 1000 / max(ns), 3), round(VIEW_US * 1000 / min(ns), 3)],
            "pairs": len(ns), "wanted": 1, "ok": us <= VIEW_US,
        })

    def dlpack_in(self):
        """torch writes a view; the copy that takes it to the host comes after that."""
        source = self.torch.arange(self.ELEMENTS, dtype=self.torch.float32, device="cuda")
        for i, tensor in enumerate(self.tensors):
            with tensor.fetch("write", stream=self.stream()) as view:
                self.torch.from_dlpack(view).copy_(source).add_(i)
        for i, tensor in enumerate(self.tensors):
            tensor.evict("device")
            self.expect(tensor, source + i)

    def two_streams(self):
        """More tensors than fit, added to on two streams that nobody synchronises."""
        streams = [self.torch.cuda.Stream() for _ in range(2)]
        for tensor in self.tensors:
            tensor.fill(0)
        rounds = 20
        for number in range(rounds * self.TENSORS):
            with self.torch.cuda.stream(streams[number % 2]):
                tensor = self.tensors[number % self.TENSORS]
                with tensor.fetch("read_write", stream=self.stream()) as view:
                    self.torch.from_dlpack(view).add_(1)
        for tensor in self.tensors:
            self.expect(tensor, rounds)

    def capture(self):
        """Graphs are captured, in the mode that forbids most, while a thread fetches and evicts."""
        stream = self.torch.cuda.Stream()  # in the thread that would be a call of torch's
        stop, errors, fetches = threading.Event(), [], [0]

        def fetch():
            try:
                while not stop.is_set():
                    for tensor in self.tensors:
                        tensor.fetch(stream=stream.cuda_stream).release()
                        fetches[0] += 1
            except Exception as error:  # it is told below
                errors.append(error)

        x = self.torch.ones(MIB, device="cuda")
        (x * 2).sum()  # what is made at a first call is not for a capture
        self.torch.cuda.synchronize()
        thread = threading.Thread(target=fetch)
        thread.start()
        try:
            for _ in range(20):
                graph = self.torch.cuda.CUDAGraph()
                with self.torch.cuda.graph(graph):
                    y = x * 2
                    before = fetches[0]
                    while fetches[0] < before + self.TENSORS and not errors:
                        pass  # each tensor is fetched while the capture goes on
                graph.replay()
                if not bool((y == 2).all()):
                    raise AssertionError("a graph that was captured beside fetches is wrong")
        finally:
            stop.set()
            thread.join()
        if errors:
            raise errors[0]

    def allocators(self):
        """What the tier gives back is torch's to allocate, and comes again when torch frees it."""
        torch, runtime = self.torch, self.runtime
        for tensor in self.tensors:
            tensor.fill(5)
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        runtime.set_budget("device", 24 * MIB)
        gained = torch.cuda.mem_get_info()[0] - free
        if gained < 32 * MIB:
            raise AssertionError(f"the device has {gained} bytes more after 40 MiB were given back")
        blocks = []
        for number in range(40):  # of changing sizes, between fetches
            blocks.append(torch.full(((number % 7 + 1) * MIB // 4,), float(number), device="cuda"))
            with self.tensors[number % self.TENSORS].fetch("read_write",
                                                           stream=self.stream()) as view:
                torch.from_dlpack(view).add_(1)
            if number % 3 == 0:
                blocks.pop(0)
        for block in blocks:
            if not bool((block == block[0]).all()):
                raise AssertionError("memory of torch's was written to")
        del blocks, block
        torch.cuda.empty_cache()
        runtime.set_budget("device", 64 * MIB)
        for number, tensor in enumerate(self.tensors):
            self.expect(tensor, 5 + (40 - number + self.TENSORS - 1) // self.TENSORS)

    ALL = ("dlpack_out", "dlpack_in", "two_streams", "capture", "allocators")


def main(arguments):
    found, why = absent()
    if found is None:
        print(why)
        return NOT_HERE
    if "--absent" in arguments:
        return 0
    torch, stepwell = found
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    cases = Cases(torch, stepwell, arguments[0])
    failed = 0
    for name in Cases.ALL:
        begin = time.perf_counter()
        try:
            getattr(cases, name)()
            torch.cuda.synchronize()
            verdict = "passed"
        except Exception:  # every case is tried
            failed += 1
            verdict = "failed\n" + traceback.format_exc()
        print(f"{name} ({time.perf_counter() - begin:.2f} s): {verdict}", flush=True)
        if "--json" in arguments:
            path = arguments[arguments.index("--json") + 1]
            lines = ",\n  ".join(json.dumps(figure) for figure in cases.figures)
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"results": [\n  ' + lines + "\n]}\n")
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"nothing more is tried: the device is lost: {error}")
            return 1
    try:
        cases.runtime.close()
    except stepwell.Error as error:
        print(f"the runtime does not close: {error}")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
