"""A server of S3, moto's, with signatures: python s3_server.py. It prints its port."""

from __future__ import annotations

import os
import sys
import time

from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
sys.stdout.flush()
parent = os.getppid()
while os.getppid() == parent:  # it ends with the tests
    time.sleep(0.5)
