// SPDX-License-Identifier: Apache-2.0
//
// One GPU through CUDA's driver, which is loaded when one is opened: its primary context, a stream,
// the kernels. Links nothing of CUDA's. Whatever fails ends the program with a sentence.

#ifndef TRAIN_GPT_CUDA_GPU_H
#define TRAIN_GPT_CUDA_GPU_H

#include "launch.h"

#include <cstddef>
#include <cstdint>
#include <string>

// All code for all devices. No bytes where the build had no nvcc.
extern "C" const unsigned char train_gpt_image[];
extern "C" const uint64_t train_gpt_image_bytes;

namespace train_gpt::gpu {

// The functions that are used.
struct Driver;

// One thread. Outlives all memory that was taken of it.
class Gpu {
public:
    explicit Gpu(int ordinal);
    ~Gpu();
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;

    void *stream() const { return stream_; }
    std::string name() const;

    uint64_t allocate(uint64_t bytes);
    void free(uint64_t address);
    void *allocate_pinned(uint64_t bytes);
    void free_pinned(void *memory);

    // Enqueued on the stream.
    template <class Arguments>
    void launch(Kernel kernel, const Arguments &arguments, uint64_t blocks)
    {
        launch_bytes(kernel, &arguments, sizeof(arguments), blocks);
    }
    void copy_to_device(uint64_t to, const void *from, uint64_t bytes);
    void copy_to_host(void *to, uint64_t from, uint64_t bytes);
    void copy_inside(uint64_t to, uint64_t from, uint64_t bytes);
    // Until all of that is done.
    void wait();

private:
    void launch_bytes(Kernel kernel, const void *arguments, uint32_t bytes, uint64_t blocks);
    void load_kernels();
    void must(int error, const char *call) const;

    Driver *driver_;
    int device_ = 0;
    void *stream_ = nullptr;
    void *module_ = nullptr;
    void *functions_[kKernelCount] = {};
};

}  // namespace train_gpt::gpu

#endif
