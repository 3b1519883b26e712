"""A wall clock that can be moved, for the programs that are started with its environment."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Collection
from pathlib import Path

NO_COMPILER = "not done: no C compiler found"
PROGRAMS = PYTHON, REDIS, NGINX = "python", "redis-server", "nginx"


# Shifts the wall clock by the seconds in a file. libfaketime (0.9.10) does not serve: it also shifts sleeps on the
# monotonic clock, which then fail, and it crashes with the malloc of Redis.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t zero, *step = &zero;
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SLUICE_DRILL_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) step = at;
  if (fd >= 0) close(fd);
}
int clock_gettime(clockid_t which, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, which, now);
  if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *step;
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  now->tv_sec = t.tv_sec;
  now->tv_usec = t.tv_nsec / 1000;
  return 0;
}
/* A wait until a time of the wall clock ends when that clock says so, which may step meanwhile: look 20 times a second.
   Only PyPy has such waits, of semaphores; everything else waits on the monotonic clock. */
int sem_timedwait(sem_t *restrict at, const struct timespec *restrict end) {
  static int (*wait)(sem_t *, const struct timespec *);
  if (!wait) *(void **)&wait = dlsym(RTLD_NEXT, "sem_timedwait");
  for (;;) {
    struct timespec now, until;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t left = (end->tv_sec - now.tv_sec) * 1000000000LL + end->tv_nsec - now.tv_nsec, most = 50000000;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &until);
    int64_t at_most = until.tv_nsec + (left < most ? left < 0 ? 0 : left : most);
    until.tv_sec += at_most / 1000000000;
    until.tv_nsec = at_most % 1000000000;
    int failed = wait(at, &until);
    if (!failed || errno != ETIMEDOUT || left <= most) return failed;
  }
}
time_t time(time_t *now) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (now) *now = t.tv_sec;
  return t.tv_sec;
}
"""


class Clock:
    """A clock that can be moved, for the programs that are started with its environment."""

    def __init__(self, folder: Path, path: str, moved: Collection[str] = (PYTHON,)) -> None:
        """Compile it. path: PATH of the programs. moved: those whose clock it is, out of PROGRAMS.

        Raises: FileNotFoundError if there is no C compiler.
        """
        self.step, real, library = folder / "clock", folder / "real", folder / "clock.so"
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), "-x", "c", "-"]
        subprocess.run(build, input=CLOCK, text=True, check=True)
        preload = {"LD_PRELOAD": str(library), "SLUICE_DRILL_CLOCK": str(self.step)}
        first = "export " + " ".join(f'{name}="{value}"' for name, value in preload.items())
        real.mkdir(exist_ok=True)
        for name in PROGRAMS[1:]:
            found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
            line = first if name in moved else "unset LD_PRELOAD"
            (real / name).write_text(f'#!/bin/sh\n{line}\nexec "{found}" "$@"\n')
            (real / name).chmod(0o700)
        self.step.write_bytes(struct.pack("q", 0))
        self.environ = {"PATH": f"{real}:{path}"} | (preload if PYTHON in moved else {})

    def move(self, seconds: int) -> None:
        """Set how far it is ahead."""
        with open(self.step, "r+b") as file:  # in place: the file is mapped
            file.write(struct.pack("q", seconds))
