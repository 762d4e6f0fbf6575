// SPDX-License-Identifier: Apache-2.0
// addresses: where bytes are, what tables take, and how commands become transfers.
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
