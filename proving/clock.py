"""A wall clock that can be moved, for the programs that are started with its environment."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

NO_COMPILER = "not done: no C compiler found"


# Shifts the wall clock by the seconds in a file. libfaketime (0.9.10) does not serve: it also shifts sleeps on the
# monotonic clock, which then fail, and it crashes with the malloc of Redis.
CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
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
time_t time(time_t *now) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (now) *now = t.tv_sec;
  return t.tv_sec;
}
"""


class Clock:
    """A clock that can be moved, for the programs that are started with its environment: Python's, or Redis."""

    def __init__(self, folder: Path, path: str, redis: bool = False) -> None:
        """Compile it. path: PATH of the programs. redis: for Redis alone; else for Python's programs alone.

        Raises: FileNotFoundError if there is no C compiler.
        """
        self.step, real, library = folder / "clock", folder / "real", folder / "clock.so"
        build = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), "-x", "c", "-"]
        subprocess.run(build, input=CLOCK, text=True, check=True)
        moved = {"LD_PRELOAD": str(library), "SLUICE_DRILL_CLOCK": str(self.step)}
        first = "export " + " ".join(f'{name}="{value}"' for name, value in moved.items())
        real.mkdir(exist_ok=True)
        # received_at comes from Redis's clock, and the drill compares that with its own. nginx needs no clock
        for name in "redis-server", "nginx":
            found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
            line = first if redis and name == "redis-server" else "unset LD_PRELOAD"
            (real / name).write_text(f'#!/bin/sh\n{line}\nexec "{found}" "$@"\n')
            (real / name).chmod(0o700)
        self.step.write_bytes(struct.pack("q", 0))
        self.environ = {"PATH": f"{real}:{path}"} | ({} if redis else moved)

    def move(self, seconds: int) -> None:
        """Set how far it is ahead."""
        with open(self.step, "r+b") as file:  # in place: the file is mapped
            file.write(struct.pack("q", seconds))
