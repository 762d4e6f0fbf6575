// SPDX-License-Identifier: Apache-2.0
// All kernels: name in this code and in the image, argument, body, threads of a thread block, and
// the number of elements that justify one.
#pragma once

// clang-format off
#define STW_CUDA_KERNELS(X)                                                                        \
    X(kUpdateAdam, stw_update_adam, UpdateArguments, update<Adam>, 256, 1024)                      \
    X(kUpdateSgd, stw_update_sgd, UpdateArguments, update<Sgd>, 256, 1024)                         \
    X(kUpdateMomentum, stw_update_momentum, UpdateArguments, update<Momentum>, 256, 1024)          \
    X(kUpdateAdagrad, stw_update_adagrad, UpdateArguments, update<Adagrad>, 256, 1024)             \
    X(kUpdateLion, stw_update_lion, UpdateArguments, update<Lion>, 256, 1024)                      \
    X(kAverage, stw_average, AverageArguments, map<Average>, 256, 1024)                            \
    X(kConvert, stw_convert, ConvertArguments, map<Convert>, 256, 1024)                            \
    X(kAccumulate, stw_accumulate, AccumulateArguments, map<Accumulate>, 256, 1024)                \
    X(kScan, stw_scan, ScanArguments, scan, 64, 16384)
// clang-format on
