/* Faults in the system calls of one process, for tests, all of whose processes have this library (LD_PRELOAD). Set

     INJECT       "call:path:nth[:count]:action", several separated by ';'
     INJECT_RANK  only in the process whose OMPI_COMM_WORLD_RANK this is; unset: in every one
     INJECT_LOG   a file that gets a line "call path action" for each fault

   call    open, write, fsync, rename, read, mkdir, unlink, truncate, or any (all of these but read), or flock; each
           stands for its whole family, as write for write, pwrite, pwrite64, writev and so on
   path    a part of the file's path, of either path for rename, with * for any characters; empty: every path
   nth     the first call struck, counted from 1 among those of this process that match
   count   how many calls are struck from there on; * for all; 1 where it is left out
   action  the name of an error (the call is not made), zero (it is not made, and returns 0), kill (SIGKILL to this
           process before the call), kill-after (the call is made first) or sleep=SECONDS (before the call)

   A process without INJECT, or with other paths, does what it would do without this library. What the C library calls
   from within itself (fopen, fwrite) is not seen, nor is the entering of folders (O_PATH). A fork that is given another
   environment calls inject_begin(). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum call { OPEN = 1, WRITE = 2, FSYNC = 4, RENAME = 8, READ = 16, MKDIR = 32, UNLINK = 64, TRUNCATE = 128,
            FLOCK = 256 };
enum action { FAIL, KILL, KILL_AFTER, SLEEP };
enum { ZERO = -1 }; /* in the place of an error: none, and the call is not made */

static const struct { const char *name; int calls; } CALLS[] = {
    {"open", OPEN}, {"write", WRITE}, {"fsync", FSYNC}, {"rename", RENAME}, {"read", READ}, {"mkdir", MKDIR},
    {"unlink", UNLINK}, {"truncate", TRUNCATE}, {"flock", FLOCK}, {"any", OPEN | WRITE | FSYNC | RENAME | MKDIR | UNLINK | TRUNCATE},
};

static const struct { const char *name; int number; } ERRORS[] = {
    {"EIO", EIO}, {"ESTALE", ESTALE}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS}, {"EACCES", EACCES},
    {"ETIMEDOUT", ETIMEDOUT}, {"EINTR", EINTR},
};

static struct rule {
    int calls;
    const char *path;
    long first, count;
    enum action action;
    int number;
    double secs;
    const char *said;
    atomic_long seen;
} rules[512];
static int rule_count;
static int calls_of_interest;
static const char *log_path;

static void refuse(const char *what, const char *text) {
    fprintf(stderr, "INJECT: %s: '%s'\n", what, text);
    _exit(99);
}

static void parse_rule(char *text) {
    char *parts[5], *rest = text;
    int count = 0;
    for (char *part; (part = strsep(&rest, ":")) != NULL;) {
        if (count == 5) refuse("more than five parts", text);
        parts[count++] = part;
    }
    if (count < 4) refuse("not call:path:nth[:count]:action", text);
    if (rule_count == sizeof rules / sizeof *rules) refuse("too many rules", text);
    struct rule *rule = &rules[rule_count++];
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
        if (strcmp(parts[0], CALLS[i].name) == 0) rule->calls = CALLS[i].calls;
    if (!rule->calls) refuse("no such call", parts[0]);
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, "*%s*", parts[1]);
    rule->path = strdup(pattern);
    rule->first = atol(parts[2]);
    if (rule->first < 1) refuse("calls are counted from 1", parts[2]);
    rule->count = count == 4 ? 1 : strcmp(parts[3], "*") == 0 ? LONG_MAX : atol(parts[3]);
    if (rule->count < 1) refuse("not a count", parts[3]);
    const char *action = rule->said = parts[count - 1];
    if (strcmp(action, "kill") == 0) rule->action = KILL;
    else if (strcmp(action, "kill-after") == 0) rule->action = KILL_AFTER;
    else if (strcmp(action, "zero") == 0) rule->action = FAIL, rule->number = ZERO;
    else if (strncmp(action, "sleep=", 6) == 0) rule->action = SLEEP, rule->secs = atof(action + 6);
    else {
        rule->action = FAIL;
        for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
            if (strcmp(action, ERRORS[i].name) == 0) rule->number = ERRORS[i].number;
        if (!rule->number) refuse("no such action", action);
    }
    calls_of_interest |= rule->calls;
}

__attribute__((constructor)) void inject_begin(void) {
    const char *text = getenv("INJECT"), *rank = getenv("INJECT_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
    if (text == NULL || (rank != NULL && (own == NULL || strcmp(rank, own) != 0))) return;
    log_path = getenv("INJECT_LOG");
    char *copy = strdup(text), *rest = copy;
    for (char *part; (part = strsep(&rest, ";")) != NULL;)
        if (*part) parse_rule(part);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void note(int call, const char *path, const char *action) {
    if (log_path == NULL) return;
    char line[PATH_MAX + 64];
    const char *name = "";
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
        if (CALLS[i].calls == call) name = CALLS[i].name;
    int length = snprintf(line, sizeof line, "%s %s %s\n", name, path, action);
    int log = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) return;
    syscall(SYS_write, log, line, (size_t)length);
    syscall(SYS_close, log);
}

static int matches(const struct rule *rule, const char *path) {
    return path != NULL && fnmatch(rule->path, path, 0) == 0;
}

/* What is to happen to a call on `path`, or on `other`: the error to fail with, ZERO, or 0; *after: die when it is done. */
static int strike(int call, const char *path, const char *other, int *after) {
    int number = 0, before = errno;
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (!(rule->calls & call) || (!matches(rule, path) && !matches(rule, other))) continue;
        long n = atomic_fetch_add(&rule->seen, 1) + 1;
        if (n < rule->first || n - rule->first >= rule->count) continue;
        note(call, path, rule->said);
        if (rule->action == KILL) die();
        if (rule->action == KILL_AFTER) *after = 1;
        if (rule->action == FAIL) number = rule->number;
        if (rule->action == SLEEP) {
            struct timespec wait = {(time_t)rule->secs, (long)((rule->secs - (long)rule->secs) * 1e9)};
            while (nanosleep(&wait, &wait) != 0 && errno == EINTR) {}
        }
    }
    errno = before;
    return number;
}

static const char *path_of(int descriptor, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    buffer[length < 0 ? 0 : length] = 0;
    return buffer;
}

static const char *full_path(int folder, const char *path, char *buffer) {
    int past = 0;
    if (path != NULL && sscanf(path, "/proc/self/fd/%d/%n", &folder, &past) == 1 && past) path += past;
    if (path == NULL || *path == '/') return path ? path : "";
    char start[PATH_MAX];
    if (folder != AT_FDCWD) path_of(folder, start);
    else if (getcwd(start, sizeof start) == NULL) *start = 0;
    if (snprintf(buffer, PATH_MAX, "%s/%s", start, path) >= PATH_MAX) return path;
    return buffer;
}

#define REAL(name, type)                                 \
    static __typeof__(type) real;                        \
    if (real == NULL) real = (__typeof__(type))dlsym(RTLD_NEXT, name)

#define STRUCK(kind, path, other, call)                  \
    int after = 0, was = errno, failure = 0;             \
    if (calls_of_interest & (kind)) {                    \
        char one[PATH_MAX], two[PATH_MAX];               \
        (void)one, (void)two;                            \
        failure = strike(kind, path, other, &after);     \
    }                                                    \
    errno = was;                                         \
    if (failure == ZERO) return 0;                       \
    if (failure) return errno = failure, -1;             \
    __typeof__(call) result = call;                      \
    if (after) die();                                    \
    return result

#define MODE                                             \
    mode_t mode = 0;                                     \
    if (flags & (O_CREAT | __O_TMPFILE)) {               \
        va_list more;                                    \
        va_start(more, flags);                           \
        mode = va_arg(more, mode_t);                     \
        va_end(more);                                    \
    }

#define OPENS(name)                                                                       \
    int name(const char *path, int flags, ...) {                                          \
        REAL(#name, int (*)(const char *, int, ...));                                     \
        MODE                                                                              \
        if (flags & O_PATH) return real(path, flags, mode);                               \
        STRUCK(OPEN, full_path(AT_FDCWD, path, one), NULL, real(path, flags, mode));      \
    }
#define OPENS_AT(name)                                                                    \
    int name(int folder, const char *path, int flags, ...) {                              \
        REAL(#name, int (*)(int, const char *, int, ...));                                \
        MODE                                                                              \
        if (flags & O_PATH) return real(folder, path, flags, mode);                       \
        STRUCK(OPEN, full_path(folder, path, one), NULL, real(folder, path, flags, mode)); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

#define ON_DESCRIPTOR(kind, type, name, parameters, arguments)   \
    type name parameters {                                       \
        REAL(#name, type (*) parameters);                        \
        STRUCK(kind, path_of(fd, one), NULL, real arguments);    \
    }
ON_DESCRIPTOR(WRITE, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ON_DESCRIPTOR(WRITE, ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
ON_DESCRIPTOR(WRITE, ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
ON_DESCRIPTOR(WRITE, ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
ON_DESCRIPTOR(WRITE, ssize_t, pwritev, (int fd, const struct iovec *p, int n, off_t at), (fd, p, n, at))
ON_DESCRIPTOR(WRITE, ssize_t, pwritev64, (int fd, const struct iovec *p, int n, off64_t at), (fd, p, n, at))
ON_DESCRIPTOR(WRITE, ssize_t, pwritev2, (int fd, const struct iovec *p, int n, off_t at, int f), (fd, p, n, at, f))
ON_DESCRIPTOR(WRITE, ssize_t, pwritev64v2, (int fd, const struct iovec *p, int n, off64_t at, int f), (fd, p, n, at, f))
ON_DESCRIPTOR(READ, ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
ON_DESCRIPTOR(READ, ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
ON_DESCRIPTOR(READ, ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
ON_DESCRIPTOR(READ, ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count))
ON_DESCRIPTOR(READ, ssize_t, preadv, (int fd, const struct iovec *p, int n, off_t at), (fd, p, n, at))
ON_DESCRIPTOR(READ, ssize_t, preadv64, (int fd, const struct iovec *p, int n, off64_t at), (fd, p, n, at))
ON_DESCRIPTOR(READ, ssize_t, preadv2, (int fd, const struct iovec *p, int n, off_t at, int f), (fd, p, n, at, f))
ON_DESCRIPTOR(READ, ssize_t, preadv64v2, (int fd, const struct iovec *p, int n, off64_t at, int f), (fd, p, n, at, f))
ON_DESCRIPTOR(FSYNC, int, fsync, (int fd), (fd))
ON_DESCRIPTOR(FSYNC, int, fdatasync, (int fd), (fd))
ON_DESCRIPTOR(FLOCK, int, flock, (int fd, int operation), (fd, operation))
ON_DESCRIPTOR(TRUNCATE, int, ftruncate, (int fd, off_t size), (fd, size))
ON_DESCRIPTOR(TRUNCATE, int, ftruncate64, (int fd, off64_t size), (fd, size))

#define ON_PATH(kind, name, parameters, arguments, folder)                    \
    int name parameters {                                                     \
        REAL(#name, int (*) parameters);                                      \
        STRUCK(kind, full_path(folder, path, one), NULL, real arguments);     \
    }
ON_PATH(MKDIR, mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD)
ON_PATH(MKDIR, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), at)
ON_PATH(UNLINK, unlink, (const char *path), (path), AT_FDCWD)
ON_PATH(UNLINK, rmdir, (const char *path), (path), AT_FDCWD)
ON_PATH(UNLINK, unlinkat, (int at, const char *path, int flags), (at, path, flags), at)

#define RENAMES(name, parameters, arguments, from, to)                                                   \
    int name parameters {                                                                                \
        REAL(#name, int (*) parameters);                                                                 \
        STRUCK(RENAME, full_path(from, path, one), full_path(to, target, two), real arguments);          \
    }
RENAMES(rename, (const char *path, const char *target), (path, target), AT_FDCWD, AT_FDCWD)
RENAMES(renameat, (int a, const char *path, int b, const char *target), (a, path, b, target), a, b)
RENAMES(renameat2, (int a, const char *path, int b, const char *target, unsigned f), (a, path, b, target, f), a, b)
