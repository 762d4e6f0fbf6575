// SPDX-License-Identifier: Apache-2.0
//
// Views of several tensors, fetched in one call and given back by ranges. One thread.

#ifndef TRAIN_GPT_VIEWS_H
#define TRAIN_GPT_VIEWS_H

#include "must.h"

#include <stepwell/stepwell.h>

#include <array>
#include <cstdint>

namespace train_gpt {

inline stw_fetch_request request_of(stw_tensor *tensor, uint32_t access, uint32_t tier)
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor;
    request.access = access;
    request.tier = tier;
    return request;
}

class Views {
public:
    static constexpr uint32_t kMax = 16;

    // stream: where the work on the views is enqueued, at a tier that has streams.
    Views(uint32_t tier, void *stream) : tier_(tier), stream_(stream) {}
    Views(const Views &) = delete;
    Views &operator=(const Views &) = delete;

    void add(stw_tensor *tensor, uint32_t access)
    {
        requests_[count_++] = request_of(tensor, access, tier_);
    }
    void add(stw_tensor *const *tensors, uint32_t n, uint32_t access)
    {
        for (uint32_t i = 0; i < n; ++i) add(tensors[i], access);
    }
    // All or nothing; the bytes are there for what comes next on the stream.
    void fetch(stw_runtime *runtime, stw_phase *phase)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.stream = stream_;
        options.phase = phase;
        must(stw_fetch(runtime, &options, requests_.data(), count_, views_.data()));
    }
    // The bytes of the tensor that was added as number `index`.
    float *operator[](uint32_t index) const { return static_cast<float *>(views_[index].pointer); }
    void release(uint32_t begin, uint32_t n, uint32_t flags)
    {
        if (n != 0) must(stw_release(views_.data() + begin, n, stream_, flags));
    }
    void release_all(uint32_t flags) { release(0, count_, flags); }

private:
    const uint32_t tier_;
    void *const stream_;
    uint32_t count_ = 0;
    std::array<stw_fetch_request, kMax> requests_;
    std::array<stw_view, kMax> views_;
};

}  // namespace train_gpt

#endif
