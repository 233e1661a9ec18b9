/* gpu-test FOLDER --list, or gpu-test FOLDER NAME…: each test in a process and on a machine (a folder) of its own. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static const struct test *const groups[] = {nvml_tests, cuda_tests, share_tests};

static bool run(const char *folder, const struct test *test)
{
    char machine[4096];
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        snprintf(machine, sizeof machine, "%s/%s", folder, test->name);
        CHECK(mkdir(machine, 0700) == 0);
        setting("DIR", machine);
        setting("SLICE_BYTES", "4194304");
        test->body();
        exit(0);
    }
    int status = 0;
    bool passed = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s %s\n", passed ? "ok" : "FAILED", test->name);
    return passed;
}

int main(int argc, char **argv)
{
    bool lists = argc == 3 && strcmp(argv[2], "--list") == 0, passed = true;
    size_t ran = 0;
    for (size_t g = 0; argc >= 2 && g < sizeof groups / sizeof *groups; g++) {
        for (const struct test *test = groups[g]; test->name != NULL; test++) {
            bool wanted = argc == 2;
            for (int i = 2; i < argc; i++)
                wanted |= strcmp(argv[i], test->name) == 0;
            if (lists)
                puts(test->name);
            else if (wanted) {
                passed &= run(argv[1], test);
                ran++;
            }
        }
    }
    return lists || (passed && ran > 0) ? 0 : 1;
}
