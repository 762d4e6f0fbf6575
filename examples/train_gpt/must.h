// SPDX-License-Identifier: Apache-2.0
//
// What this program does with an error: say it in full and end. Nothing is left behind: the files
// of the nvme tier were unlinked when they were made.

#ifndef TRAIN_GPT_MUST_H
#define TRAIN_GPT_MUST_H

#include "options.h"

#include <stepwell/stepwell.h>

#include <cstdio>
#include <cstdlib>

namespace train_gpt {

[[noreturn]] inline void give_up(const char *sentence)
{
    std::fflush(stdout);
    std::fprintf(stderr, "train_gpt: %s\n", sentence);
    std::exit(1);
}

// The status of an stw_ call. Below 0 it is an error, and stw_last_error() has the whole sentence.
inline stw_status must(stw_status status)
{
    if (status < 0) give_up(in_own_words(stw_last_error()).c_str());
    return status;
}

}  // namespace train_gpt

#endif
