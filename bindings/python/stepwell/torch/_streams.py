# SPDX-License-Identifier: Apache-2.0
"""Sequential reads and writes of files through a few buffers: while the caller uses one, threads
read or write others, so that the drive stays busy.

This module does not depend on tensors.
"""
from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Deque, Iterator, List, NamedTuple, Optional, Tuple

PARTS = 4
PART_BYTES = 2 << 20
_ALIGN = 4096         # of memory, offsets and lengths for O_DIRECT
_WORD = 8             # alignment of all dtypes
_THREADS = 2          # with one thread the drive is idle between two requests
_HUGE_PAGE = 2 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class _Mapped(NamedTuple):
    memory: mmap.mmap
    address: int


def _mapped(descriptor: int, size: int) -> _Mapped:
    """A private mapping of a file's page cache, or of huge pages without a file."""
    flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if descriptor < 0 else 0)
    memory = mmap.mmap(descriptor, size, flags=flags)
    return _Mapped(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))


def _parts(most: int, spare: int = 0) -> List[memoryview]:
    """Buffers for at most `most` bytes in total; each has `spare` more bytes."""
    size = min(PART_BYTES, -(-most // (PARTS * _ALIGN)) * _ALIGN or _ALIGN) + spare
    mapped = _mapped(-1, PARTS * size + _HUGE_PAGE)
    # In pages of 4 KiB a request of 2 MiB is split, and takes a drive up to three times as long.
    with suppress(AttributeError, OSError):
        mapped.memory.madvise(mmap.MADV_HUGEPAGE)
    begin = -mapped.address % _HUGE_PAGE
    memory = memoryview(mapped.memory)
    return [memory[at:at + size] for at in range(begin, begin + PARTS * size, size)]


class Place(NamedTuple):
    """A range of bytes in a file."""

    path: str
    descriptor: int
    offset: int
    size: int


class Reader:
    """Reads the bytes of places in an order that is known in advance.

    Cached bytes, as of a file that was just written or downloaded, are read from the page cache,
    others by direct I/O if the file system supports it: this saves a copy and gives the drive
    several requests at once.
    """

    def __init__(self, places: List[Place]) -> None:
        self._free = _parts(sum(place.size for place in places), spare=2 * _ALIGN)
        most = len(self._free[0]) - 2 * _ALIGN
        self._pieces = (
            place._replace(offset=place.offset + at, size=min(most, place.size - at))
            for place in places for at in range(0, place.size, most))
        self._due: Deque[Tuple["Future[memoryview]", memoryview]] = deque()
        files = {place.descriptor for place in places}
        self._direct = {at: _opened_direct(at) for at in files}
        self._cached = {at: _cache_of(at) for at in files}
        self._threads = ThreadPoolExecutor(_THREADS, "stepwell-files")

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        self._threads.shutdown(cancel_futures=True)
        for descriptor in self._direct.values():
            if descriptor >= 0:
                os.close(descriptor)

    def __iter__(self) -> Iterator[memoryview]:
        """Pieces, each of one place, valid until the next is requested."""
        while True:
            while self._free:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                part = self._free.pop()
                self._due.append((self._threads.submit(self._read, piece, part), part))
            if not self._due:
                return
            done, part = self._due.popleft()
            yield done.result()
            self._free.append(part)

    def _read(self, piece: Place, part: memoryview) -> memoryview:
        direct = self._direct[piece.descriptor]
        # With direct I/O bytes keep their offset in a page, which must be aligned for any dtype.
        if direct >= 0 and piece.offset % _WORD == 0 and not self._is_cached(piece):
            begin = piece.offset % _ALIGN
            try:
                _fill(direct, part[:-(-(begin + piece.size) // _ALIGN) * _ALIGN],
                      piece.offset - begin, piece, begin + piece.size)
                return part[begin:begin + piece.size]
            except OSError as error:
                if error.errno != errno.EINVAL:  # another alignment, or direct I/O is not supported
                    raise
        _fill(piece.descriptor, part[:piece.size], piece.offset, piece, piece.size)
        return part[:piece.size]

    def _is_cached(self, piece: Place) -> bool:
        cached = self._cached[piece.descriptor]
        if cached is None:
            return False
        begin = piece.offset // mmap.PAGESIZE * mmap.PAGESIZE
        size = piece.offset + piece.size - begin
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        done = _libc.mincore(ctypes.c_void_p(cached.address + begin), ctypes.c_size_t(size), pages)
        return done == 0 and pages.raw.count(1) == len(pages)


def _opened_direct(descriptor: int) -> int:
    """Open the same file for direct I/O, even if its name was reused."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return -1


def _cache_of(descriptor: int) -> Optional[_Mapped]:
    """A mapping for querying which pages are cached; None if the kernel hides this, as for files
    of another user. A read with RWF_NOWAIT would start to read pages that are not cached."""
    with suppress(OSError, ValueError):
        if os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
            return _mapped(descriptor, 0)
    return None


def _fill(descriptor: int, memory: memoryview, at: int, piece: Place, needed: int) -> None:
    """Read at least `needed` bytes, since the file may end within the last page."""
    have = 0
    while have < needed:
        count = os.preadv(descriptor, [memory[have:]], at + have)
        if count == 0:
            raise ValueError(f"{piece.path} ends before its tensors do")
        have += count


class Writer:
    """Creates a file of `size` bytes, which is on stable storage at the end of the `with`.

    It uses direct I/O if the file system supports it: copies into the page cache, and its
    write-back, which begins late, take longer than the drive.
    """

    def __init__(self, path: str, size: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._direct = True
        self._free = _parts(size)
        self._part = self._free.pop()
        self._filled = self._sent = 0
        self._due: Deque[Tuple["Future[None]", memoryview]] = deque()
        self._threads = ThreadPoolExecutor(_THREADS, "stepwell-files")
        try:
            self._set_direct(True)
        except OSError:
            self._direct = False

    def _set_direct(self, direct: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

    def room(self, size: int) -> Iterator[memoryview]:
        """Buffers for the next bytes: each piece must be filled before the next is requested."""
        while size:
            count = min(size, len(self._part) - self._filled)
            yield self._part[self._filled:self._filled + count]
            self._filled += count
            size -= count
            if self._filled == len(self._part):
                self._send(len(self._part))

    def put(self, data: bytes) -> None:
        for piece in self.room(len(data)):
            piece[:], data = data[:len(piece)], data[len(piece):]

    def _send(self, count: int) -> None:
        part = self._part
        self._due.append((self._threads.submit(self._write, part[:count], self._sent), part))
        self._sent += count
        if not self._free:
            self._free.append(self._done())
        self._part, self._filled = self._free.pop(), 0

    def _done(self) -> memoryview:
        done, part = self._due.popleft()
        done.result()
        return part

    def _write(self, memory: memoryview, at: int) -> None:
        while memory:
            try:
                count = os.pwrite(self._descriptor, memory, at)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._direct = False  # another alignment, or not supported
                self._set_direct(False)
                continue
            memory, at = memory[count:], at + count

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                size = self._sent + self._filled
                if self._filled:
                    self._send(-(-self._filled // _ALIGN) * _ALIGN)
                while self._due:
                    self._done()
                os.ftruncate(self._descriptor, size)
                os.fsync(self._descriptor)
        finally:
            self._threads.shutdown(cancel_futures=True)
            os.close(self._descriptor)
