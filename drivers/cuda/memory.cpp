// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/memory.h"

#include <stepwell/types.h>

#include "drivers/common/edge.h"

#include <utility>

namespace stepwell::drivers::cuda {

stw_status DeviceMemory::open(const stw_memory_options &options,
                              std::unique_ptr<DeviceMemory> *memory_out,
                              stw_driver_error *error_out)
{
    std::unique_ptr<DeviceMemory> memory(new DeviceMemory());
    if (const stw_status status = load(&memory->library_, error_out)) return status;
    memory->ordinal_ = options.ordinal;
    memory->context_ = std::make_unique<Context>(memory->library_);
    if (const stw_status status = memory->context_->open(options.ordinal, error_out)) return status;
    if (const stw_status status = memory->take(options, error_out)) return status;
    *memory_out = std::move(memory);
    return STW_OK;
}

stw_status DeviceMemory::shares_host(const stw_memory_options &options, uint32_t *shares_out)
{
    Library library;
    Options wished;
    Sharing sharing;
    int device = 0;
    if (const stw_status status = read_options(options, &wished, nullptr)) return status;
    if (const stw_status status = load(&library, nullptr)) return status;
    if (const int error = library.api.device_get(&device, options.ordinal))
        return Library::status_of(error);
    const stw_status status = find_sharing(library.api, device, wished.unified, &sharing, nullptr);
    if (status == STW_OK) *shares_out = sharing.shares;
    return status;
}

// Free memory is queried for the sentence only: other users of the device, a framework for example,
// are left alone.
stw_status DeviceMemory::take(const stw_memory_options &options, stw_driver_error *error_out)
{
    const Context::Scope scope(*context_);
    marks_ = std::make_unique<Marks>(*context_);
    copies_ = std::make_unique<Copies>(*context_, *marks_);
    updates_ = std::make_unique<Updates>(*context_, *marks_, options.block_bytes);
    const int error = copies_->open();
    if (error != kSuccess)
        return fail(error_out, Library::status_of(error), {},
                    "Device %d gives no streams to copy on: %s.", ordinal_,
                    library_.text(error).c_str());
    return take_arena(options, error_out);
}

stw_status DeviceMemory::take_arena(const stw_memory_options &options, stw_driver_error *error_out)
{
    Options wished;
    Sharing sharing;
    if (const stw_status status = read_options(options, &wished, error_out)) return status;
    if (const stw_status status =
            find_sharing(library_.api, context_->device(), wished.unified, &sharing, error_out))
        return status;
    arena_ = std::make_unique<Arena>(*context_, *copies_);
    aliases_ = std::make_unique<AliasRanges>(*context_, *marks_, *arena_);
    if (sharing.shares) {
        copies_->never_batch();
        return arena_->open_shared(options, sharing.node, error_out);
    }
    const int error = arena_->open(options.bytes, options.block_bytes, wished.pieces);
    if (error == kSuccess && !sharing.remark.empty()) arena_->add_remark(sharing.remark);
    if (error == kSuccess) return STW_OK;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    library_.api.memory_info(&free_bytes, &total_bytes);
    return fail(error_out, Library::status_of(error), {0, options.bytes, free_bytes},
                "Device %d has no %s: %s are free of %s, and what is taken may be "
                "another program's or the framework's (%s); give the tier a smaller budget.",
                ordinal_, bytes_text(options.bytes).c_str(), bytes_text(free_bytes).c_str(),
                bytes_text(total_bytes).c_str(), library_.text(error).c_str());
}

// Work of the program may still use the memory, so it is waited for. A lost device has no such
// work.
DeviceMemory::~DeviceMemory()
{
    if (!context_ || context_->handle() == nullptr) return;
    const Context::Scope scope(*context_);
    if (arena_) library_.api.context_synchronize();
    aliases_.reset();
    arena_.reset();
    updates_.reset();
    copies_.reset();
    marks_.reset();
}

void DeviceMemory::info(stw_memory_info *info_out) const
{
    stw_memory_info info{};
    info.base = reinterpret_cast<void *>(arena_->base());
    info.bytes = arena_->bytes();
    info.numa_node = context_->numa_node();
    info.huge_pages = arena_->huge_pages();
    if (arena_->stays()) info.flags |= STW_MEMORY_STAYS;
    if (arena_->is_permanent()) info.flags |= STW_MEMORY_ALIASES_RUNS;
    if (arena_->is_one_handle()) info.flags |= STW_MEMORY_ONE_HANDLE;
    copy_text(info.remark, sizeof info.remark, arena_->remark());
    give_info(info, info_out);
}

stw_status DeviceMemory::copy(void *destination, const void *source, uint64_t bytes)
{
    if (bytes == 0) return STW_OK;
    uint64_t mark = 0;
    const stw_status status = copy_start(destination, source, bytes, &mark);
    return status < 0 ? status : wait(mark);
}

stw_status DeviceMemory::copy_start(void *destination, const void *source, uint64_t bytes,
                                    uint64_t *mark_out)
{
    bool to = is_here(destination);
    bool from = is_here(source);
    if (bytes == 0) return STW_ERROR_INVALID;
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    if (!to && !from) {  // memory of the program's
        from = is_on_device(source);
        to = !from && is_on_device(destination);
        if (!to && !from) return STW_ERROR_INVALID;
    }
    const Address into = address_of(destination);
    const Address out_of = address_of(source);
    const int error = to && from ? copies_->inside(into, out_of, bytes, mark_out)
                      : to       ? copies_->up(into, source, bytes, mark_out)
                                 : copies_->down(destination, out_of, bytes, mark_out);
    return library_.failed(error);
}

bool DeviceMemory::is_on_device(const void *pointer) const
{
    const Api &api = library_.api;
    unsigned type = 0;
    int ordinal = -1;
    return api.pointer_attribute(&type, kPointerMemoryType, address_of(pointer)) == kSuccess &&
           type == kMemoryOfDevice &&
           api.pointer_attribute(&ordinal, kPointerDevice, address_of(pointer)) == kSuccess &&
           ordinal == ordinal_;
}

// Its ends are asked for: an allocation of a program may be of several mappings beside each other.
stw_status DeviceMemory::check_memory(const void *pointer, uint64_t bytes,
                                      stw_driver_error *error_out)
{
    const char *const first = static_cast<const char *>(pointer);
    const char *const last = first + bytes - 1;
    if (is_here(first) && is_here(last)) return STW_OK;
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    if (is_on_device(first) && is_on_device(last)) return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {},
                "the %llu bytes at %p are not memory of device %d: pass its memory, or leave the "
                "tier 0 for memory of the host.",
                static_cast<unsigned long long>(bytes), pointer, ordinal_);
}

stw_status DeviceMemory::copies_start(const stw_memory_copy *copies, uint32_t n, uint64_t *mark_out)
{
    if (n == 0) return STW_ERROR_INVALID;
    const bool up = is_here(copies[0].destination);
    for (uint32_t i = 0; i < n; ++i) {
        const bool to = is_here(copies[i].destination);
        if (copies[i].bytes == 0 || to != up || is_here(copies[i].source) == to)
            return STW_ERROR_INVALID;
    }
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return library_.failed(copies_->several(up, copies, n, mark_out));
}

stw_status DeviceMemory::wait(uint64_t mark)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return library_.failed(marks_->wait_here(mark));
}

stw_status DeviceMemory::zero(void *destination, uint64_t bytes)
{
    if (bytes == 0) return STW_OK;
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    uint64_t mark = 0;
    int error = copies_->zero(address_of(destination), bytes, &mark);
    if (error == kSuccess) error = marks_->wait_here(mark);
    return library_.failed(error);
}

stw_status DeviceMemory::check_stream(void *stream, stw_driver_error *error_out)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    const bool is_default = stream == STW_STREAM_LEGACY || stream == STW_STREAM_PER_THREAD;
    ContextHandle its = context_->handle();
    int error = is_default ? int{kSuccess} : library_.api.stream_context(stream, &its);
    if (error == kSuccess && its == context_->handle()) {
        if (!is_default && context_->captures(stream))
            return fail(error_out, STW_ERROR_INVALID, {},
                        "Stream %p of device %d records a graph now; fetch before the capture and "
                        "release after the launch of the graph.",
                        stream, ordinal_);
        error = marks_->know(stream);
        if (error == kSuccess) return STW_OK;
        return fail(error_out, Library::status_of(error), {},
                    "Stream %p of device %d has the handle of one that was destroyed, and the work "
                    "of that one could not be waited for: %s; call stw_stream_forget before a "
                    "stream is destroyed.",
                    stream, ordinal_, library_.text(error).c_str());
    }
    return fail(
        error_out, STW_ERROR_INVALID, {},
        "Stream %p is none of the primary context of device %d%s%s; pass a CUstream of that "
        "device.",
        stream, ordinal_, error == kSuccess ? "" : ": ",
        error == kSuccess ? "" : library_.text(error).c_str());
}

stw_status DeviceMemory::mark(void *stream, uint64_t *mark_out)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return library_.failed(marks_->make(stream, mark_out));
}

stw_status DeviceMemory::forget_stream(void *stream)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return library_.failed(marks_->forget(stream));
}

stw_status DeviceMemory::copies_after(uint64_t mark, uint32_t copies)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return library_.failed(copies_->after(mark, copies));
}

stw_status DeviceMemory::stream_after(void *stream, uint64_t mark)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    if (context_->captures(stream)) return STW_ERROR_INVALID;
    return library_.failed(marks_->wait(stream, mark));
}

stw_status DeviceMemory::pin_host(void *base, uint64_t bytes, stw_driver_error *error_out)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    const int error = library_.api.host_register(base, bytes, kHostRegisterPortable);
    if (error == kSuccess) return STW_OK;
    return fail(
        error_out, Library::status_of(error), {0, bytes, 0},
        "CUDA registers no %s of host memory: %s; the memory that may be locked (ulimit -l) "
        "and the memory that is left matter.",
        bytes_text(bytes).c_str(), library_.text(error).c_str());
}

void DeviceMemory::unpin_host(void *base)
{
    const Context::Scope scope(*context_);
    if (scope.error() == kSuccess) library_.api.host_unregister(base);
}

stw_status DeviceMemory::update_stream(void **stream_out, stw_driver_error *error_out)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return updates_->open(stream_out, error_out);
}

stw_status DeviceMemory::give_back(uint32_t first, uint32_t count)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    const stw_status status = arena_->give_back(first, count);
    if (status == STW_OK) aliases_->forget(first, count);
    return status;
}

stw_status DeviceMemory::take_back(uint32_t first, uint32_t count, stw_driver_error *error_out)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return arena_->take_back(first, count, error_out);
}

stw_status DeviceMemory::reserve_alias(uint64_t bytes, void **address_out)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return aliases_->reserve(bytes, address_out);
}

stw_status DeviceMemory::map_alias(uint32_t first, uint32_t count, void *address,
                                   const uint64_t *marks, uint32_t n)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return aliases_->map_blocks(first, count, address, marks, n);
}

stw_status DeviceMemory::release_alias(void *address, uint64_t bytes, const uint64_t *marks,
                                       uint32_t n)
{
    const Context::Scope scope(*context_);
    if (const int error = scope.error()) return library_.failed(error);
    return aliases_->release(address, bytes, marks, n);
}

}  // namespace stepwell::drivers::cuda
