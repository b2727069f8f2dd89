"""A service that knows nothing of retries: every POST is a new charge."""

import http.server
import itertools

charges = itertools.count(1)


class Service(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        order = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        body = f"charge {next(charges)}: {order}\n".encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", 9000), Service).serve_forever()
