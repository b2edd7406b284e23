"""A payment service that charges for each request: it adds a line to a file, with the operation and the body.

	service.py LEDGER [remember]

With "remember" it charges once for each operation that the proxy names. It prints the port on which it listens.
"""
import http.server
import os
import random
import sys
import threading
import time

ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
remember = sys.argv[2:] == ["remember"]
lock, charges = threading.Lock(), {}


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(random.random() / 100)
        answer = self.charge(self.headers["Idempotency-Operation"], body)
        time.sleep(random.random() / 100)
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def charge(self, operation, body):
        with lock:
            if not remember or operation not in charges:
                os.write(ledger, operation.encode() + b" " + body + b"\n")
                charges[operation] = b"charge %d" % random.getrandbits(60)
            return charges[operation]

    def log_message(self, *of):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, address):  # a proxy that was killed does not read its answer
        pass


server = Server(("127.0.0.1", 0), Service)
print(server.server_port, flush=True)
server.serve_forever()
