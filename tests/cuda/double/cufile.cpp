// SPDX-License-Identifier: Apache-2.0
// A double of cuFile over that of CUDA's driver: reads of the file, and copies of the driver. It
// says nothing of speed.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream);
}

namespace {

struct Error {
    int error;
    int cuda_error;
};
struct Description {
    int kind;
    union {
        int file;
        void *handle;
    } of;
    const void *operations;
};

constexpr Error kNone = {0, 0};
constexpr Error kInvalid = {5007, 0};  // CU_FILE_INVALID_VALUE

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED Error cuFileDriverOpen()
{
    return kNone;
}

EXPORTED Error cuFileDriverClose()
{
    return kNone;
}

EXPORTED Error cuFileHandleRegister(void **handle, Description *description)
{
    if (description->kind != 1) return kInvalid;
    *handle = new int(description->of.file);
    return kNone;
}

EXPORTED void cuFileHandleDeregister(void *handle)
{
    delete static_cast<int *>(handle);
}

EXPORTED Error cuFileBufRegister(const void *base, size_t bytes, int flags)
{
    return base == nullptr || bytes == 0 || flags != 0 ? kInvalid : kNone;
}

EXPORTED Error cuFileBufDeregister(const void *)
{
    return kNone;
}

EXPORTED ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_offset, off_t offset)
{
    // The file may be open for direct reads.
    constexpr uintptr_t kAlign = 4096;
    std::vector<char> memory(bytes + kAlign);
    const auto begin = reinterpret_cast<uintptr_t>(memory.data());
    char *aligned = memory.data() + (kAlign - begin % kAlign) % kAlign;
    const ssize_t read = pread(*static_cast<int *>(handle), aligned, bytes, file_offset);
    if (read <= 0) return read;
    void *stream = nullptr;
    const auto to = reinterpret_cast<unsigned long long>(base) + static_cast<uint64_t>(offset);
    if (cuStreamCreate(&stream, 1) != 0) return -1;
    const bool copied = cuMemcpyHtoDAsync_v2(to, aligned, static_cast<size_t>(read), stream) == 0 &&
                        cuStreamSynchronize(stream) == 0;
    cuStreamDestroy_v2(stream);
    return copied ? read : -1;
}
