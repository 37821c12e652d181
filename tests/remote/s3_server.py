"""A server of S3, moto's: python s3_server.py [KEY_ID]. It prints its port.

With KEY_ID, requests must be signed with this key, and those to the bucket `open` with none.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

KEY_ID = sys.argv[1] if len(sys.argv) > 1 else None
S3 = DomainDispatcherApplication(create_backend_app)


def serve(environ, start_response):
    signed = environ.get("HTTP_AUTHORIZATION", "")
    is_open = environ["PATH_INFO"].startswith("/open")
    if KEY_ID and (bool(signed) if is_open else f"Credential={KEY_ID}/" not in signed):
        text = "<Error><Code>AccessDenied</Code><Message>not yours</Message></Error>"
        return Response(text, 403)(environ, start_response)
    return S3(environ, start_response)


server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=MotoRequestHandler)
sys.stdout.write(f"{server.server_port}\n")
sys.stdout.flush()
parent = os.getppid()
threading.Thread(target=server.serve_forever, daemon=True).start()
while os.getppid() == parent:  # it ends with the tests
    time.sleep(0.5)
