"""bjoern with the five-line app: bjoern_server.py SOCKET PROCESSES."""

import os
import sys

import bjoern

from raw import app

bjoern.listen(app, "unix:" + sys.argv[1])
for _ in range(int(sys.argv[2]) - 1):
    if os.fork() == 0:
        break
bjoern.run()
