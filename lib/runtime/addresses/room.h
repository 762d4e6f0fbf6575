// SPDX-License-Identifier: Apache-2.0
// addresses: where bytes are, the budget of tables, and how commands become transfers.
#pragma once

#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/addresses/sink.h"

namespace stepwell {

struct AddressesRoom {
    AddressTable table;
    MetadataBudget metadata;
    TransferSink sink;
};

}  // namespace stepwell
