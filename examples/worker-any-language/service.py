"""A bank in any language: it gets each transfer by POST, and keeps no ids.

    python3 service.py 9000

Hapax sends these fields with each message:

    Hapax-Operation   the id of the operation, the same for each copy of a message
    Idempotency-Key   the same id, for a framework that knows this field
    Hapax-Attempt     1, and one more each time the message is sent again
    Hapax-Token       a number that grows with each attempt

The status of the answer tells Hapax what happened:

    2xx   applied: the message is done
    409   not now: Hapax sends it again later (also 401, 403, 404, 405, 425, 429, and 503 with Retry-After)
    4xx   never: the message becomes a dead letter
    5xx   nobody knows: `--on-lapse` decides
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

balances = {"alice": 100, "bob": 100, "carol": 100}
lock = threading.Lock()


def transfer(order):
    """Moves money, and returns the status of the answer."""
    payer, payee, amount = order["from"], order["to"], order["amount"]
    with lock:
        if payer not in balances or payee not in balances:
            return 422
        if balances[payer] < amount:
            return 409
        balances[payer] -= amount
        balances[payee] += amount
        return 201


class Bank(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = transfer(order)
        operation, attempt = self.headers["Hapax-Operation"], self.headers["Hapax-Attempt"]
        print(f"operation {operation}, attempt {attempt}: {order} -> {status}", flush=True)
        self.answer(status, {})

    def do_GET(self):
        with lock:
            self.answer(200, balances)

    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Bank)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
