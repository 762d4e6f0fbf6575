// SPDX-License-Identifier: Apache-2.0
// What PyTorch asks of the backend that it knows by name.
#include "tests/torch_double/generator.h"
#include "tests/torch_double/memory.h"
#include "tests/torch_double/storage.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace stepwell::torch_double {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    void setCurrentDevice(c10::DeviceIndex) const override {}
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
    c10::Allocator *getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
    bool isPinnedPtr(const void *data) const override { return PinnedMemory::holds(data); }
    c10::Device getDeviceFromPtr(void *) const override { return kDevice; }
    const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override
    {
        return LateGenerator::of_device();
    }
    at::Generator getNewGenerator(c10::DeviceIndex) const override
    {
        return at::make_generator<LateGenerator>();
    }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        resize_storage(storage.unsafeGetStorageImpl(), bytes);
    }
};

// When this library is loaded.
const bool registered = [] {
    c10::SetAllocator(kDevice.type(), &DeviceMemory::get());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

}  // namespace
}  // namespace stepwell::torch_double
