"""What both services share: the body of a request, the answer, and a transaction."""

import contextlib
import sqlite3
from http.server import BaseHTTPRequestHandler


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file = ""

    @contextlib.contextmanager
    def database(self):
        """One transaction: committed at the end, rolled back after an exception."""
        with contextlib.closing(sqlite3.connect(self.file, timeout=30)) as connection, connection:
            connection.execute("begin immediate")
            yield connection

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"])).decode()

    def do_GET(self):
        self.answer(200, "ready\n")

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass
