// SPDX-License-Identifier: Apache-2.0

#include "workspace.h"

#include "block.h"

#include <algorithm>

namespace train_gpt::gpu {

Workspace::Workspace(Gpu &gpu, const Shape &shape, uint32_t checkpoints, uint32_t micro_batches)
    : gpu_(gpu)
{
    bytes_ = layout(shape, checkpoints);
    memory_ = gpu_.allocate(bytes_);
    layout(shape, checkpoints);
    const uint64_t rows = uint64_t{micro_batches} * shape.rows();
    host_tokens = static_cast<uint8_t *>(gpu_.allocate_pinned(3 * rows));
    host_numbers = static_cast<float *>(
        gpu_.allocate_pinned(std::max(rows, uint64_t{kVocabulary}) * sizeof(float)));
}

Workspace::~Workspace()
{
    gpu_.free_pinned(host_numbers);
    gpu_.free_pinned(host_tokens);
    gpu_.free(memory_);
}

// Gives every member its place in the memory and returns the bytes taken; called first to count.
uint64_t Workspace::layout(const Shape &shape, uint32_t checkpoint_count)
{
    constexpr uint64_t kAlign = 256;
    const uint64_t rows = shape.rows();
    const uint64_t plane = rows * shape.width;
    const uint64_t scores = uint64_t{shape.batch} * shape.heads * shape.sequence * shape.sequence;
    uint64_t used = 0;
    const auto place = [&](uint64_t &member, uint64_t floats) {
        member = memory_ + used;
        used += (floats * sizeof(float) + kAlign - 1) / kAlign * kAlign;
    };
    for (uint64_t *member : {&stream, &dstream, &norm1, &norm2, &attention, &middle, &dnorm})
        place(*member, plane);
    place(qkv, 3 * plane);
    place(expanded, std::max(4 * plane, rows * kVocabulary));
    logits = expanded;
    place(gelu, 4 * plane);
    place(probabilities, scores);
    place(dprobabilities, scores);
    for (uint64_t *member : {&mean1, &rstd1, &mean2, &rstd2, &losses}) place(*member, rows);
    for (uint64_t *member : {&tokens, &targets}) place(*member, (rows + 3) / 4);
    place(checkpoints, checkpoint_count * plane);
    return used;
}

}  // namespace train_gpt::gpu
