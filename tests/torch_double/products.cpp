// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/products.h"

#include <atomic>
#include <map>

namespace stepwell::torch_double {
namespace {

std::atomic<double> rate{0};

}  // namespace

void set_rate(double flops_per_s)
{
    rate = flops_per_s;
}

uint64_t product_ns(const Work &work)
{
    // Where the first factor stands among the arguments.
    static const std::map<std::string, size_t> factors{
        {"aten::mm", 0}, {"aten::bmm", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1}};
    const auto found = factors.find(work.name);
    if (rate == 0 || found == factors.end()) return 0;
    const auto factor = [&](size_t which) -> const Operand & {
        const int number = work.places.at(found->second + which).numbers[0];
        return work.operands.at(static_cast<size_t>(number));
    };
    double flops = 2.0 * static_cast<double>(factor(1).sizes.back());
    for (const int64_t size : factor(0).sizes) flops *= static_cast<double>(size);
    return static_cast<uint64_t>(flops / rate * 1e9);
}

}  // namespace stepwell::torch_double
