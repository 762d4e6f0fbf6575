// SPDX-License-Identifier: Apache-2.0
// Which files may be loaded into the process: those that nobody could have written or exchanged but
// root and the user that runs it.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/descriptor.h"

#include <string>

namespace stepwell::drivers {

// Opens a regular file by its absolute path for reading. Every directory on the way and the file
// itself must belong to root or to the effective user, and be writable by nobody else; a directory
// may be when it is sticky, since its entries are then not others' to exchange. No part of the path
// may be a symbolic link. PERMISSION names the first part that is not so: owner, mode and remedy.
//
// Each part is opened from the one before and looked at through its descriptor, from the root down.
// So what the path names afterwards is what was looked at, for all but root and this user, who need
// no module to do as they like: that is why it can be given to dlopen by its name, which debuggers
// and $ORIGIN then see, and no race lies between the check and the use.
stw_status open_safe_file(const std::string &path, Descriptor *file_out,
                          stw_driver_error *error_out);

}  // namespace stepwell::drivers
