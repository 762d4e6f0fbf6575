// SPDX-License-Identifier: Apache-2.0
// Which files may be loaded into the process: those that only root and the user of the process
// could have written or replaced.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/descriptor.h"

#include <string>

namespace stepwell::drivers {

// Opens a regular file by its absolute path for reading. Every directory on the way and the file
// itself must belong to root or to the effective user, and be writable by nobody else; a sticky
// directory may be writable, since others cannot replace its entries. No part of the path may be a
// symbolic link. PERMISSION names the first part that fails: owner, mode and remedy.
//
// Each part is opened relative to the one before and checked through its descriptor, from the root
// down. After that only root and this user could make the path name another file, and they need no
// module to run code in the process. So there is no race between check and use, and dlopen can be
// given the path itself, which debuggers and $ORIGIN need.
stw_status open_safe_file(const std::string &path, Descriptor *file_out,
                          stw_driver_error *error_out);

}  // namespace stepwell::drivers
