// SPDX-License-Identifier: Apache-2.0
#include "drivers/common/memory_options.h"

#include "drivers/common/edge.h"
#include "drivers/common/option_text.h"

#include <bit>
#include <string_view>

namespace stepwell::drivers {

namespace {

constexpr uint32_t kBlockBytesMin = 64 << 10;

}  // namespace

stw_status check_memory_size(const char *driver, const stw_memory_options *options,
                             stw_driver_error *error_out)
{
    if (!options_are_known(options))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The %s driver was given options of another build.", driver);
    if (!std::has_single_bit(options->block_bytes) || options->block_bytes < kBlockBytesMin)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A block of %u bytes is not a power of two from 65536 up.",
                    options->block_bytes);
    if (options->bytes == 0 || options->bytes % options->block_bytes != 0)
        return fail(error_out, STW_ERROR_INVALID, {0, options->bytes, 0},
                    "The %s memory of %s is not a multiple of its blocks of %u bytes.", driver,
                    bytes_text(options->bytes).c_str(), options->block_bytes);
    return STW_OK;
}

stw_status check_memory_options(const char *driver, const stw_memory_options *options,
                                bool *populates, stw_driver_error *error_out)
{
    if (const stw_status status = check_memory_size(driver, options, error_out)) return status;
    std::string_view rest = options->options != nullptr ? options->options : "";
    if (populates == nullptr && !rest.empty())
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The %s driver has no options, and was given '%.64s'.", driver,
                    options->options);
    for (Option option; next_option(&rest, &option);) {
        if (option.key == "populate" && parse_switch(option.value, populates)) continue;
        return unknown_option(driver, option, "populate=0|1", error_out);
    }
    if (options->ordinal == 0) return STW_OK;
    return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                "The %s driver has one device, 0, and none of ordinal %d; leave the ordinal 0.",
                driver, options->ordinal);
}

}  // namespace stepwell::drivers
