/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of the build, where only their own user may write: a test loads copies. */
#ifndef TESTS_ABI_MODULE_FILE_H
#define TESTS_ABI_MODULE_FILE_H

/* libstepwell-<name>.so of tests/modules to `path`. Not 0: it could not be. */
int copy_module(const char *name, const char *path);

#endif
