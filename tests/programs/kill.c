/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL in the middle of transfers leaves nothing in the directory.
 */
#include "program.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

static void move_for_ever(int ready)
{
    static float values[60 * BLOCK / 4];
    stw_runtime *runtime = open_small("kill-directory", NULL);
    stw_tensor *tensor = make_tensor(runtime, "t", 60 * BLOCK / 4);
    CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
    CHECK(write(ready, "r", 1) == 1);
    for (;;) {
        CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
        CHECK(stw_tensor_read(tensor, values, NULL) == STW_OK);
        CHECK(write(ready, "r", 1) == 1);
    }
}

int main(void)
{
    if (mkdir("kill-directory", 0700) != 0) CHECK(errno == EEXIST);
    for (int round = 0; round < 8; ++round) {
        int pipes[2], status;
        char byte;
        struct dirent *entry;
        DIR *directory;
        CHECK(pipe(pipes) == 0);
        pid_t pid = fork();
        if (pid == 0) move_for_ever(pipes[1]);
        /* Each round is killed after another number of passes, in the midst of the next. */
        for (int i = 0; i <= round; ++i) CHECK(read(pipes[0], &byte, 1) == 1);
        CHECK(kill(pid, SIGKILL) == 0);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        close(pipes[0]), close(pipes[1]);
        directory = opendir("kill-directory");
        CHECK(directory);
        while ((entry = readdir(directory))) CHECK(entry->d_name[0] == '.');
        closedir(directory);
    }
    CHECK(rmdir("kill-directory") == 0);
    return 0;
}
