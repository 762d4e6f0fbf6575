/* SPDX-License-Identifier: Apache-2.0 */
#include "module_file.h"

#include <stdio.h>
#include <sys/stat.h>

int copy_module(const char *name, const char *path)
{
    static char bytes[1 << 20];
    char built[1024];
    size_t n;
    FILE *from, *to;
    snprintf(built, sizeof built, "%s/libstepwell-%s.so", TEST_MODULES, name);
    from = fopen(built, "rb");
    to = fopen(path, "wb");
    if (!from || !to) return 1;
    while ((n = fread(bytes, 1, sizeof bytes, from)) > 0)
        if (fwrite(bytes, 1, n, to) != n) return 1;
    fclose(from);
    return fclose(to) || chmod(path, 0644);
}
