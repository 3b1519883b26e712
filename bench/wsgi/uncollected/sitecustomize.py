"""With this directory in PYTHONPATH, Python collects no garbage: for `bench/latency --off`."""

import gc

gc.disable()
