/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ABI_REFUSE_DIRECT_H
#define TESTS_ABI_REFUSE_DIRECT_H

/* From now on files in it refuse O_DIRECT, as some file systems do. NULL: none any more. */
void refuse_direct_io_in(const char *directory);

int fcntl(int fd, int command, ...);
int fcntl64(int fd, int command, ...);

#endif
