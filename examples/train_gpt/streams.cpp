// SPDX-License-Identifier: Apache-2.0
//
// Where the stream before a layer waits: the input of each layer for backward, and of micro-batches
// that are computed together also what comes between two layers. In backward the gradient of a
// stream takes its place.

#include "must.h"
#include "trainer.h"

namespace train_gpt {

// A view, or memory of the arithmetic.
float *Trainer::fetch_stream(Views &views, uint32_t index, uint32_t place, uint32_t access)
{
    stw_tensor *checkpoint = model_.checkpoint(index, place);
    if (checkpoint == nullptr)
        return arithmetic_.checkpoint(index * model_.options().together + place);
    views.add(checkpoint, access);
    views.fetch(runtime_, train_);
    return views[0];
}

void Trainer::keep_stream(uint32_t index, uint32_t place)
{
    Views views = empty_views();
    arithmetic_.keep_stream(model_.options().shape, fetch_stream(views, index, place, STW_WRITE));
    views.release_all(0);
}

void Trainer::load_stream(uint32_t index, uint32_t place)
{
    Views views = empty_views();
    arithmetic_.load_stream(model_.options().shape, fetch_stream(views, index, place, STW_READ));
    views.release_all(0);
}

void Trainer::keep_gradient(uint32_t index, uint32_t place)
{
    Views views = empty_views();
    arithmetic_.keep_gradient(model_.options().shape, fetch_stream(views, index, place, STW_WRITE));
    views.release_all(0);
}

// It is used once.
void Trainer::load_gradient(uint32_t index, uint32_t place)
{
    Views views = empty_views();
    arithmetic_.load_gradient(model_.options().shape, fetch_stream(views, index, place, STW_READ));
    views.release_all(STW_RELEASE_DISCARD);
}

// Of a group that waits: its streams are visited in turn at each level. Level 0 is the input of the
// first layer, level `layers` that of the head, and from there backward goes down again, where the
// level before it has left its gradient. Says that those of a later visit come soon.
void Trainer::prefetch_streams(uint32_t level, uint32_t place)
{
    const uint32_t layers = model_.options().layers;
    const uint32_t together = model_.options().together;
    const uint32_t visit = level * together + place + kLookAhead;
    const uint32_t later = visit / together;
    if (later > 2 * layers || model_.checkpoint(0, 0) == nullptr) return;
    const uint32_t index = later > layers ? 2 * layers - later : later;
    stw_fetch_request requests[2];
    uint32_t count = 0;
    requests[count++] = request_of(model_.checkpoint(index, visit % together), STW_READ, tier_);
    if (later > layers)
        requests[count++] =
            request_of(model_.checkpoint(index + 1, visit % together), STW_READ, tier_);
    must(stw_prefetch(runtime_, requests, count));
}

}  // namespace train_gpt
