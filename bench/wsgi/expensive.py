"""A computation that takes some seconds of CPU, without Python's lock, as one in a database would."""

import hashlib
import time


def compute(seconds):
    """When it began, in seconds since 1970."""
    began = time.time()
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)
    return began
