// SPDX-License-Identifier: Apache-2.0
// The table of a storage driver that is one class: every entry finds the object and passes the call
// on. Open and close are the same for every driver: options of another build are refused, no
// exception reaches C, and the object is freed only when no request is in flight.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/edge.h"

#include <memory>

namespace stepwell::drivers {

constexpr uint32_t kQueueDepthDefault = 32;

inline uint32_t queue_depth_of(const stw_storage_options &options)
{
    return options.queue_depth != 0 ? options.queue_depth : kQueueDepthDefault;
}

// Storage has kName, a static open that makes it, and a member for each other operation.
template <class Storage> class StorageEntry {
public:
    static constexpr stw_storage_ops table(uint64_t capabilities)
    {
        return {sizeof(stw_storage_ops),
                STW_DRIVER_ABI,
                Storage::kName,
                capabilities,
                open,
                info,
                submit,
                poll,
                wake,
                flush,
                close,
                can_shrink(capabilities) ? give_back : nullptr,
                can_shrink(capabilities) ? take_back : nullptr};
    }
    static Storage *from(stw_storage *storage) { return reinterpret_cast<Storage *>(storage); }

private:
    static constexpr bool can_shrink(uint64_t capabilities)
    {
        return (capabilities & STW_STORAGE_CAN_SHRINK) != 0;
    }
    static stw_status open(const stw_services *services, const stw_storage_options *options,
                           stw_storage **storage_out, stw_driver_error *error_out)
    {
        if (!options_are_known(options) || storage_out == nullptr)
            return fail(error_out, STW_ERROR_INVALID, {},
                        "The %s driver was given options of another build.", Storage::kName);
        return open_handle<Storage>(storage_out, error_out, [&](std::unique_ptr<Storage> *made) {
            return Storage::open(services, *options, made, error_out);
        });
    }
    static void info(stw_storage *storage, stw_storage_info *info_out)
    {
        from(storage)->info(info_out);
    }
    static stw_status submit(stw_storage *storage, const stw_io *ios, uint32_t n,
                             uint32_t *accepted_out)
    {
        return from(storage)->submit(ios, n, accepted_out);
    }
    static uint32_t poll(stw_storage *storage, stw_io_done *done, uint32_t capacity,
                         uint64_t wait_ns)
    {
        return from(storage)->poll(done, capacity, wait_ns);
    }
    static void wake(stw_storage *storage) { from(storage)->wake(); }
    static stw_status flush(stw_storage *storage) { return from(storage)->flush(); }
    static stw_status close(stw_storage *storage, uint64_t wait_ns)
    {
        const stw_status status = from(storage)->close(wait_ns);
        if (status == STW_OK) delete from(storage);
        return status;
    }
    static stw_status give_back(stw_storage *storage, uint64_t offset_bytes, uint64_t bytes)
    {
        return from(storage)->give_back(offset_bytes, bytes);
    }
    static stw_status take_back(stw_storage *storage, uint64_t offset_bytes, uint64_t bytes,
                                stw_driver_error *error_out)
    {
        return guard_open(error_out,
                          [&] { return from(storage)->take_back(offset_bytes, bytes, error_out); });
    }
};

}  // namespace stepwell::drivers
