/* doca-test --list, or doca-test NAME…: runs tests of the DOCA interface, each in a process of its own. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static const struct test *const groups[] = {
    dma_tests, order_tests, engine_tests, comch_tests, link_tests, fault_tests, gpu_tests, ask_tests};

static bool run(const struct test *test)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
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
    bool lists = argc == 2 && strcmp(argv[1], "--list") == 0, passed = true;
    size_t ran = 0;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (const struct test *test = groups[g]; test->name != NULL; test++) {
            bool wanted = argc == 1;
            for (int i = 1; i < argc; i++)
                wanted |= strcmp(argv[i], test->name) == 0;
            if (lists)
                puts(test->name);
            else if (wanted) {
                passed &= run(test);
                ran++;
            }
        }
    }
    return lists || (passed && ran > 0) ? 0 : 1;
}
